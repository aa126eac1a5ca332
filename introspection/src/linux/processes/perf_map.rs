//! Finds out under which name a process writes its perf map: the names of the code that it generates
//! (`tools/perf/Documentation/jit-interface.txt` of the Linux sources).
//!
//! A program writes `/tmp/perf-PID.map` with its id as it knows it, below its own root directory. A program in a container knows
//! another id than the host of the container, and has another root. So another process may have a file of the same name.

use super::InstanceLayout;
use crate::PhysicalMemory;
use crate::image::types::{Missing, Types};
use crate::linux::view::KernelView;

/// The maximum of `pid.level` (`MAX_PID_NS_LEVEL`, `include/linux/pid_namespace.h`).
const MAX_LEVEL: u64 = 32;

/// Offsets in bytes, each from the start of its structure.
#[derive(Debug)]
pub struct PerfMapLayout {
    /// `task_struct.thread_pid` and `fs`.
    own_pid: u64,
    filesystem: u64,
    /// `pid.level` and `numbers`, one for each namespace, the outermost first.
    level: u64,
    numbers: u64,
    /// `upid.nr`, and bytes of a `struct upid`.
    number: u64,
    number_length: u64,
    /// `fs_struct.root.mnt` and `root.dentry`.
    root: [u64; 2],
}

impl PerfMapLayout {
    /// Finds the layout.
    ///
    /// # Errors
    /// The first offset that isn't known.
    pub fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let task = types.structures("task_struct");
        let pid = types.structures("pid");
        let filesystem = types.structures("fs_struct");
        Ok(Self {
            own_pid: task.need("thread_pid")?,
            filesystem: task.need("fs")?,
            level: pid.need("level")?,
            numbers: pid.need("numbers")?,
            number: types.need("upid", "nr")?,
            number_length: types.size_of("upid")?,
            root: [
                filesystem.need_within("root.mnt")?,
                filesystem.need_within("root.dentry")?,
            ],
        })
    }

    /// The path of the perf map of the process of the task at `task`, in the guest. `pid` is its id in the first pid namespace. Where
    /// its root directory isn't that of process 1, or its id is another one, the path leads through `/proc/PID/root`. `None` if
    /// the process's root or id is unknown.
    pub fn path<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        instances: &InstanceLayout,
        task: u64,
        pid: i32,
    ) -> Option<String> {
        let leader = instances.instance(view, task)?.leader();
        let (_, own) = self.innermost_pid(view, leader, pid)?;
        // A main thread that has ended has none any more.
        let root = self.root(view, leader).or_else(|| self.root(view, task))?;
        let first = instances.first_process(view)?;
        let is_guests = own == pid && root == self.root(view, first)?;
        Some(if is_guests {
            format!("/tmp/perf-{own}.map")
        } else {
            format!("/proc/{pid}/root/tmp/perf-{own}.map")
        })
    }

    /// How many pid namespaces the innermost one of the process with this main thread is within, and the process's id in it; its id in the first one is
    /// `pid`.
    pub fn innermost_pid<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        leader: u64,
        pid: i32,
    ) -> Option<(u64, i32)> {
        let own = view.pointer(leader, self.own_pid)?;
        let level = u64::try_from(view.i32(own.wrapping_add(self.level))?).ok()?;
        let number = |level: u64| {
            let offset = self.numbers + level * self.number_length + self.number;
            view.i32(own.wrapping_add(offset))
        };
        let is_it = level <= MAX_LEVEL && number(0)? == pid;
        let own = is_it.then(|| number(level))?;
        own.filter(|number| *number > 0).map(|own| (level, own))
    }

    /// The root directory of the process with this main thread: its mount, which belongs to one mount namespace, and its entry.
    fn root<M: PhysicalMemory>(&self, view: &KernelView<'_, M>, leader: u64) -> Option<[u64; 2]> {
        let filesystem = view.pointer(leader, self.filesystem)?;
        let [mount, entry] = self.root;
        Some([
            view.pointer(filesystem, mount)?,
            view.pointer(filesystem, entry)?,
        ])
    }
}

#[cfg(test)]
mod tests {
    use crate::test_guest::LinuxGuest;
    use kvmprof_introspection_fixtures::kernel::{HOT, NEW, OLD, offsets, task};
    use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, IMAGE, TASKS};
    use kvmprof_introspection_fixtures::processes::{AreaPlan, FixtureMemory, PAGE};

    /// The path that is found for the process of task 1 if its executable mapping is of `file`.
    fn found(guest: &LinuxGuest, room: &mut FixtureMemory<'_>, file: u64) -> String {
        let begin = 0x7f00_0000_0000;
        let area = AreaPlan {
            begin,
            end: begin + PAGE,
            executable: true,
            offset: 0,
            file,
        };
        room.process(1, &[area]);
        let mut introspector = guest.introspector(0);
        for registers in [guest.kernel(0), guest.user()] {
            introspector.identify(&guest.memory, &registers, false, false);
        }
        let map = introspector.follow_process(&guest.memory, &guest.user(), 0);
        map.unwrap().perf_map.clone()
    }

    #[test]
    fn a_path_uses_the_pid_of_the_process_namespace() {
        for kernel in [OLD, HOT, NEW] {
            let guest = LinuxGuest::new(kernel);
            let mut room = FixtureMemory::new(&guest, kernel.areas);
            // Process 1 is task 2, the first one in the list.
            guest.task(2, 1, 1, 1);
            let head = DIRECT_MAP + IMAGE + offsets::INIT_TASK + task::TASKS;
            room.put(head, DIRECT_MAP + TASKS + 2 * 0x1000 + task::TASKS);
            let entry = room.dentry(0, "/");
            let (guests, own) = (room.mount(entry, 0, 0), room.mount(entry, 0, 0));
            room.namespaces(2, &[1], guests, entry);
            for (numbers, mount, path) in [
                (&[41][..], guests, "/tmp/perf-41.map"),
                (&[41], own, "/proc/41/root/tmp/perf-41.map"),
                (&[41, 9], guests, "/proc/41/root/tmp/perf-9.map"),
                (&[41, 9, 7], own, "/proc/41/root/tmp/perf-7.map"),
                // Another process's ids, ids that can't be, and no root.
                (&[42], guests, ""),
                (&[41, 0], guests, ""),
                (&[41; 34], guests, ""),
                (&[41], 0, ""),
            ] {
                room.namespaces(1, numbers, mount, entry);
                assert_eq!(found(&guest, &mut room, 0), path, "{kernel:?} {numbers:?}");
            }
            room.namespaces(1, &[41], guests, entry);
            // A process without memory for such code.
            let program = room.dentry(entry, "program");
            let inode = room.inode(77, PAGE, 0);
            let program = room.file(guests, program, inode);
            assert_eq!(found(&guest, &mut room, program), "");
            // The main thread, task 3, has ended before the one that runs.
            guest.task(3, 41, 41, 41);
            room.namespaces(3, &[41], guests, entry);
            let filesystem = DIRECT_MAP + TASKS + 3 * 0x1000 + task::FILESYSTEM;
            room.put(filesystem, 0);
            guest.leader(1, 3);
            assert_eq!(found(&guest, &mut room, 0), "/tmp/perf-41.map");
            // Where process 1 isn't known, the guest's root isn't either.
            guest.task(2, 3, 3, 3);
            assert_eq!(found(&guest, &mut room, 0), "");
        }
    }
}
