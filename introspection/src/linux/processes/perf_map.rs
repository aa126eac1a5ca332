//! Finds out where a process writes its perf map: the names of the code that it generates
//! (`tools/perf/Documentation/jit-interface.txt` of the Linux sources).
//!
//! A program writes `/tmp/perf-PID.map` with its id as it knows it, below its own root directory. A program in a container knows
//! another id than the host of the container, and has another root. So another process may have a file of the same name.

use super::directories::Directories;
use super::{
    FileIdentity, GuestProcesses, InstanceLayout, ProcessFate, ProcessInstance, ProcessView,
};
use crate::PhysicalMemory;
use crate::image::types::{Missing, Types};
use crate::linux::LinuxKnowledge;
use crate::linux::view::KernelView;

/// The maximum of `pid.level` (`MAX_PID_NS_LEVEL`, `include/linux/pid_namespace.h`).
const MAX_LEVEL: u64 = 32;

/// Where a process writes its perf map. The default is nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfMapPlace {
    /// The path of the file in the guest: `/tmp/perf-PID.map`; where its root directory isn't that of process 1, or its id is another one,
    /// `/proc/PID/root/tmp/perf-OWN.map`. Empty if unknown.
    pub path: String,
    /// The process.
    pub process: ProcessInstance,
    /// Its id in its innermost pid namespace.
    own: i32,
    /// Its root directory: mount and entry.
    root: [u64; 2],
}

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
                filesystem.need("root.mnt")?,
                filesystem.need("root.dentry")?,
            ],
        })
    }

    /// Where the process of the task at `task` writes its perf map. `pid` is its id in the first pid namespace. `None` if
    /// the process's root or id is unknown.
    pub fn place<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        instances: &InstanceLayout,
        task: u64,
        pid: i32,
    ) -> Option<PerfMapPlace> {
        let process = instances.instance(view, task)?;
        let leader = process.leader();
        let (_, own) = self.innermost_pid(view, leader, pid)?;
        // A main thread that has ended has none any more.
        let root = self.root(view, leader).or_else(|| self.root(view, task))?;
        let first = instances.first_process(view)?;
        let is_guests = own == pid && root == self.root(view, first)?;
        let path = if is_guests {
            format!("/tmp/perf-{own}.map")
        } else {
            format!("/proc/{pid}/root/tmp/perf-{own}.map")
        };
        Some(PerfMapPlace {
            path,
            process,
            own,
            root,
        })
    }

    /// How many pid namespaces the innermost one of `task` is within, and the thread's id in it, which for a main thread is the process's; its id in the
    /// first one is `tid`.
    pub fn innermost_pid<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        task: u64,
        tid: i32,
    ) -> Option<(u64, i32)> {
        let own = view.pointer(task, self.own_pid)?;
        let level = u64::try_from(view.i32(own.wrapping_add(self.level))?).ok()?;
        let number = |level: u64| {
            let offset = self.numbers + level * self.number_length + self.number;
            view.i32(own.wrapping_add(offset))
        };
        let is_it = level <= MAX_LEVEL && number(0)? == tid;
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

impl LinuxKnowledge {
    /// The perf map at `place`, as it is now. `None` if it isn't in guest memory. `room` is the number of directory entries that may still be
    /// visited.
    pub fn perf_map_file<M: PhysicalMemory>(
        &self,
        memory: &M,
        place: &PerfMapPlace,
        room: &mut usize,
    ) -> Option<FileIdentity> {
        let files = self.processes.as_ref()?;
        let view = &self.direct_view(memory)?;
        let layout = files.directories.as_ref().ok()?;
        let mut directories = Directories {
            view,
            layout,
            files,
            room,
        };
        let name = format!("perf-{}.map", place.own);
        let inode = directories.find(place.root, &["tmp", &name])?;
        ProcessView::new(view, files).identity(inode)
    }

    /// Whether `process` executes the program that it did. `None` if that is unknown.
    pub fn still_executes<M: PhysicalMemory>(
        &self,
        memory: &M,
        process: &ProcessInstance,
    ) -> Option<bool> {
        let view = self.direct_view(memory)?;
        let processes = GuestProcesses::new(view, self.instances.as_ref()?, None);
        Some(processes.fate(process)? == ProcessFate::Lives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest::LinuxGuest;
    use kvmprof_introspection_fixtures::kernel::{HOT, NEW, OLD, offsets, task};
    use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, IMAGE, TASKS};
    use kvmprof_introspection_fixtures::processes::{AreaPlan, FixtureMemory, PAGE, PAGES};

    /// Process 1 is task 2, the first one in the list.
    fn start_process_1(guest: &LinuxGuest, room: &mut FixtureMemory<'_>) {
        guest.task(2, 1, 1, 1);
        let head = DIRECT_MAP + IMAGE + offsets::INIT_TASK + task::TASKS;
        room.put(head, DIRECT_MAP + TASKS + 2 * 0x1000 + task::TASKS);
    }

    /// The path that is found for the process of task 1 if its executable mapping is of `file`.
    fn found(guest: &LinuxGuest, room: &mut FixtureMemory<'_>, file: u64) -> String {
        place(guest, room, file).path
    }

    /// The place that is found for it.
    fn place(guest: &LinuxGuest, room: &mut FixtureMemory<'_>, file: u64) -> PerfMapPlace {
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
            start_process_1(&guest, &mut room);
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

    /// A file of one page with this text. Returns its inode.
    fn text_file(guest: &LinuxGuest, room: &mut FixtureMemory<'_>, text: &str) -> u64 {
        let page = room.pages(&[0]);
        guest.write((page - PAGES) / 64 * PAGE, text.as_bytes());
        room.inode(77, text.len() as u64, page)
    }

    #[test]
    fn files_are_found_in_directories_in_memory() {
        for kernel in [OLD, HOT, NEW] {
            let guest = LinuxGuest::new(kernel);
            let mut room = FixtureMemory::new(&guest, kernel.areas);
            start_process_1(&guest, &mut room);
            let root = room.dentry(0, "/");
            let mount = room.mount(root, 0, 0);
            let covered = room.dentry(root, "tmp");
            let inode = room.inode(2, 0, 0);
            room.instantiate(covered, inode);
            room.dentry(root, "bin");
            // What is below the mount on /tmp isn't there.
            let hidden = room.dentry(covered, "perf-9.map");
            let inode = text_file(&guest, &mut room, "hidden\n");
            room.instantiate(hidden, inode);
            let top = room.dentry(0, "/");
            room.mount(top, mount, covered);
            let file = |room: &mut FixtureMemory<'_>, text| {
                let entry = room.dentry(top, "perf-9.map");
                let inode = text_file(&guest, room, text);
                room.instantiate(entry, inode);
                (entry, inode)
            };
            let (_, inode) = file(&mut room, "10 1 a\n20 1 b\n");
            room.dentry(top, "other");
            let (deleted, _) = file(&mut room, "deleted");
            room.unhash(deleted);
            // Looked for before it was made.
            room.dentry(top, "perf-9.map");
            room.namespaces(1, &[41, 9], mount, root);
            room.namespaces(2, &[1], mount, root);
            let place = place(&guest, &mut room, 0);
            assert!(place.path.ends_with("/tmp/perf-9.map"), "{place:?}");
            let linux = guest.linux();
            let find = |entries: &mut usize| linux.perf_map_file(&guest.memory, &place, entries);
            let found = find(&mut 100).unwrap();
            assert_eq!((found.inode, found.length), (inode, 14), "{kernel:?}");
            let read = |begin, limit| linux.growing_file(&guest.memory, &found, begin, limit);
            assert_eq!(read(0, 100).unwrap(), (b"10 1 a\n20 1 b\n".to_vec(), 14));
            assert_eq!(read(7, 3).unwrap(), (b"20 ".to_vec(), 14));
            assert_eq!(read(14, 3).unwrap(), (Vec::new(), 14));
            // It grows, and is another one.
            room.resize(inode, 16);
            assert_eq!(read(12, 100).unwrap(), (b"b\n\0\0".to_vec(), 16));
            room.resize(inode, PAGE + 1);
            assert_eq!(read(PAGE - 1, 100), None, "a page that isn't there");
            let other = FileIdentity {
                number: 78,
                ..found
            };
            assert_eq!(linux.growing_file(&guest.memory, &other, 0, 1), None);
            // Too few entries may be visited.
            assert_eq!(find(&mut 3), None);
        }
    }

    #[test]
    fn an_overlays_file_is_the_upper_one() {
        let guest = LinuxGuest::new(HOT);
        let mut room = FixtureMemory::new(&guest, HOT.areas);
        start_process_1(&guest, &mut room);
        let root = room.dentry(0, "/");
        let mount = room.mount(root, 0, 0);
        let folder = room.dentry(root, "tmp");
        let inode = room.inode(2, 0, 0);
        room.instantiate(folder, inode);
        let entry = room.dentry(folder, "perf-41.map");
        let overlays = room.inode(5, 7, 0);
        room.instantiate(entry, overlays);
        let elsewhere = room.dentry(0, "/");
        let upper = room.dentry(elsewhere, "perf-41.map");
        let inode = text_file(&guest, &mut room, "10 1 a\n");
        room.instantiate(upper, inode);
        room.overlay(overlays, upper);
        room.namespaces(1, &[41], mount, root);
        room.namespaces(2, &[1], mount, root);
        let place = place(&guest, &mut room, 0);
        let linux = guest.linux();
        let find = || linux.perf_map_file(&guest.memory, &place, &mut 100);
        let found = find().unwrap();
        assert_eq!(found.inode, inode);
        assert!(linux.growing_file(&guest.memory, &found, 0, 7).is_some());
        // What is behind the inode isn't the entry of such a file.
        let other = room.dentry(elsewhere, "perf-42.map");
        room.instantiate(other, inode);
        room.overlay(overlays, other);
        assert_eq!(find(), None);
        // A directory that contains itself without an end.
        room.unhash(entry);
        let link = entry + room.sibling();
        room.put(link, link);
        assert_eq!(find(), None);
    }
}
