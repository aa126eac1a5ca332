//! Notices changes of a process's executable mappings.

use std::sync::Arc;

use crate::{PhysicalMemory, Registers};

use super::areas::RawArea;
use super::labels::{LabelNumbers, Labelled};
use super::perf_map::PerfMapPlace;
use super::user_memory::UserMemory;
use super::vdso::{is_vdso, note_place};
use super::{Area, Backing, ProcessMap, ProcessView, UnwinderSlot};
use crate::linux::cpu::{Task, process_name};
use crate::linux::view::KernelView;
use crate::unwind::UnwindCache;
use kvmprof_paging::{FRAME, PTI_USER};

/// Maximum number of address spaces that one vCPU remembers.
const MAX_SPACES: usize = 64;
/// Maximum number of files of one address space.
const MAX_FILES: usize = 512;
/// Maximum number of bytes of all names in one map.
const MAX_NAMES: usize = 256 << 10;
/// Time after which the areas of an address space are read again while the size of its executable memory is unchanged,
/// in ns: if other areas have changed, and if none have.
const RECHECK_CHANGED: u64 = 100_000_000;
const RECHECK_SAME: u64 = 1_000_000_000;

/// A running task: its `task_struct`, its process, and when both were started.
#[derive(Clone, Copy, Debug)]
pub struct RunningTask {
    /// Its guest virtual address.
    pub task: u64,
    /// The process's id.
    pub pid: i32,
    /// The thread's id.
    pub tid: i32,
    /// When this thread was started, in ns of the guest's CLOCK_MONOTONIC; `None` if unknown.
    pub started: Option<u64>,
    /// When its process was started, in the same ns; `None` if unknown.
    pub process_started: Option<u64>,
}

impl RunningTask {
    /// The `task`, as it is now. `last` is the one before on the same vCPU: what a thread keeps for good isn't read again.
    pub fn new<M: PhysicalMemory>(
        view: &KernelView<'_, M>,
        task: &Task,
        last: Option<Self>,
    ) -> Self {
        let instances = view.linux().instances.as_ref();
        let started = instances.and_then(|layout| layout.thread_started(view, task.address));
        let (tid, pid) = (task.thread, task.process);
        let is_same = |last: &Self| {
            started.is_some() && (last.task, last.tid, last.started) == (task.address, tid, started)
        };
        let process_started = if tid == pid {
            started
        } else if let Some(last) = last.filter(is_same) {
            last.process_started
        } else {
            instances.and_then(|layout| layout.process_started(view, task.address))
        };
        Self {
            task: task.address,
            pid,
            tid,
            started,
            process_started,
        }
    }
}

/// Values that change with the executable mappings or with labels. A new address space may have the same address as an earlier one,
/// but it has another process or other arguments. The child of vfork(2) is another process in its parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature {
    mm: u64,
    pid: i32,
    executable_pages: u64,
    code: u64,
    arguments: u64,
    labels: LabelNumbers,
}

/// Values that change with any mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    areas: i32,
    pages: u64,
}

#[derive(Debug)]
struct Space {
    signature: Signature,
    extent: Extent,
    /// When its areas were last read, and when the process was last seen running.
    walked: u64,
    seen: u64,
    areas: Vec<RawArea>,
    map: Arc<ProcessMap>,
    cache: UnwindCache,
}

impl Signature {
    /// Whether `other` is that of the same program, possibly with other mappings or labels.
    fn is_same_program(&self, other: &Self) -> bool {
        let anywhere = Self {
            executable_pages: other.executable_pages,
            labels: other.labels,
            ..*self
        };
        anywhere == *other
    }

    /// Whether `other` is that of the same program in the same memory, possibly in a child that shares it.
    fn is_same_memory(&self, other: &Self) -> bool {
        let anyone = Self {
            pid: other.pid,
            labels: other.labels,
            ..*self
        };
        anyone == *other
    }
}

/// Follows the processes on one vCPU.
#[derive(Debug, Default)]
pub struct ProcessFollower {
    spaces: Vec<Space>,
    current: Option<usize>,
    areas: Vec<RawArea>,
}

impl ProcessFollower {
    /// Checks the process of a vCPU that is stopped at `time` with `registers`. Returns the process's map if it is new
    /// or has changed. After too many maps (`MapBudget`), a later call returns it.
    pub fn follow<M: PhysicalMemory>(
        &mut self,
        view: &KernelView<'_, M>,
        registers: &Registers,
        seen: RunningTask,
        time: u64,
    ) -> Option<Arc<ProcessMap>> {
        self.current = None;
        let linux = view.linux();
        let layout = linux.processes.as_ref()?;
        let processes = ProcessView::new(view, layout);
        let UserMemory::Loaded(mm) = processes.user_memory(registers, seen.task)? else {
            return None;
        };
        // Not by CR3: its bit 12 selects the user's half under KPTI, and may be a part of the address without.
        let root = processes.page_tables(mm)?;
        let labels = Labelled::new(view, layout, seen.task).numbers();
        let (signature, extent) = processes.signature(mm, seen, labels)?;
        let known = self.spaces.iter().position(|space| space.map.root == root);
        if let Some(index) = known
            && let Some(space) = self.spaces.get_mut(index)
        {
            space.seen = time;
            let period = if space.extent == extent {
                RECHECK_SAME
            } else {
                RECHECK_CHANGED
            };
            let is_fresh = time.saturating_sub(space.walked) < period;
            if space.signature == signature && is_fresh {
                self.current = known;
                return None;
            }
        }
        if !linux.map_budget.has_room(time) {
            let index = known?;
            let serves = self.serves(&processes, index, &signature);
            self.current = known.filter(|_| serves);
            return None;
        }
        processes.executable_areas(mm, &mut self.areas)?;
        if let Some(space) = known.and_then(|index| self.spaces.get_mut(index)) {
            (space.extent, space.walked) = (extent, time);
            if space.signature == signature && space.areas == self.areas {
                self.current = known;
                return None;
            }
        }
        let areas = processes.named(&self.areas);
        note_place(view, &areas);
        let perf_map = perf_map(view, seen, &areas).unwrap_or_default();
        let (unwinder, cache) = self.shared(known, &signature, &areas);
        let map = Arc::new(ProcessMap {
            name: process_name(view, seen.task),
            perf_map,
            labels: Labelled::new(view, layout, seen.task).texts(view.space()),
            started: labels.started(),
            unwinder,
            ..ProcessMap::new(root, seen.pid, time, areas)
        });
        linux.map_budget.spend(time, &map);
        self.remember(
            known,
            Space {
                signature,
                extent,
                walked: time,
                seen: time,
                areas: self.areas.clone(),
                map: Arc::clone(&map),
                cache,
            },
        );
        Some(map)
    }

    /// Whether the old map of space `index` serves for a process with `signature`. That of the same program is mostly right, but that of another
    /// program isn't.
    fn serves<M: PhysicalMemory>(
        &mut self,
        processes: &ProcessView<'_, M>,
        index: usize,
        signature: &Signature,
    ) -> bool {
        let Some(space) = self.spaces.get(index) else {
            return false;
        };
        space.signature.is_same_program(signature)
            || space.signature.is_same_memory(signature)
                && (processes.executable_areas(signature.mm, &mut self.areas)).is_some()
                && space.areas == self.areas
    }

    /// The unwinder of space `known`, and its cache, if a process with `signature` has the same memory with the same `areas`: a parent and
    /// its child (vfork) take turns there. New ones otherwise.
    fn shared(
        &mut self,
        known: Option<usize>,
        signature: &Signature,
        areas: &[Area],
    ) -> (Arc<UnwinderSlot>, UnwindCache) {
        let space = known.and_then(|index| self.spaces.get_mut(index));
        let is_shared =
            |space: &Space| space.signature.is_same_memory(signature) && space.map.areas == areas;
        match space {
            Some(space) if is_shared(space) => (
                Arc::clone(&space.map.unwinder),
                std::mem::take(&mut space.cache),
            ),
            _ => Default::default(),
        }
    }

    fn remember(&mut self, known: Option<usize>, space: Space) {
        let oldest = || {
            let by_age = self.spaces.iter().enumerate();
            by_age
                .min_by_key(|(_, space)| space.seen)
                .map(|(index, _)| index)
        };
        let index = match known {
            None if self.spaces.len() < MAX_SPACES => self.spaces.len(),
            None => oldest().unwrap_or(0),
            Some(index) => index,
        };
        match self.spaces.get_mut(index) {
            Some(place) => *place = space,
            None => self.spaces.push(space),
        }
        self.current = Some(index);
    }

    /// Forgets the last map, which the caller couldn't pass on, so that it is returned again.
    pub fn forget_current(&mut self) {
        if let Some(index) = self.current.take()
            && index < self.spaces.len()
        {
            self.spaces.swap_remove(index);
        }
    }

    /// The running process's map, and the cache for unwinding its stacks.
    pub fn current(&mut self) -> Option<(&ProcessMap, &mut UnwindCache)> {
        let space = self.spaces.get_mut(self.current?)?;
        Some((&space.map, &mut space.cache))
    }

    /// Takes the map of process `pid` as it last was, if [`Self::follow`] hasn't found the process, which was running at `time` with `registers`: it may have ended since. Only of a
    /// process that was seen shortly before.
    pub fn recall(&mut self, registers: &Registers, pid: i32, time: u64) {
        let tables = registers.cr3 & FRAME;
        let is_it = |space: &Space| {
            space.map.pid == pid
                && [space.map.root, space.map.root | PTI_USER].contains(&tables)
                && time.abs_diff(space.seen) < RECHECK_SAME
        };
        if self.current.is_none() {
            self.current = self.spaces.iter().position(is_it);
        }
    }

    /// Notes that no known process is running.
    pub fn leave(&mut self) {
        self.current = None;
    }
}

impl<M: PhysicalMemory> ProcessView<'_, M> {
    fn signature(
        &self,
        mm: u64,
        seen: RunningTask,
        labels: LabelNumbers,
    ) -> Option<(Signature, Extent)> {
        let layout = &self.layout.address_space;
        let field = |offset| self.view.u64(mm.wrapping_add(offset));
        let signature = Signature {
            mm,
            pid: seen.pid,
            executable_pages: field(layout.exec_vm)?,
            code: field(layout.start_code)?,
            arguments: field(layout.arg_start)?,
            labels,
        };
        let extent = Extent {
            areas: self.view.i32(mm.wrapping_add(layout.map_count))?,
            pages: field(layout.total_vm)?,
        };
        Some((signature, extent))
    }

    /// The areas with their backing. Areas whose backing is unreadable are left out.
    fn named(&self, areas: &[RawArea]) -> Vec<Area> {
        // Most files have several mappings.
        let mut files: Vec<(u64, Option<Backing>)> = Vec::new();
        let mut backing = |area: &RawArea| {
            if area.file == 0 {
                let is_vdso = is_vdso(self.view, area);
                return Some(if is_vdso {
                    Backing::Vdso
                } else {
                    Backing::Anonymous
                });
            }
            if let Some((_, backing)) = files.iter().find(|(file, _)| *file == area.file) {
                return backing.clone();
            }
            if files.len() >= MAX_FILES {
                return None;
            }
            let file = self.file(area.file);
            let backing = file.map(|file| Backing::File(Arc::new(file)));
            files.push((area.file, backing.clone()));
            backing
        };
        let mut room = MAX_NAMES;
        let mut named = |area: &RawArea| {
            let area = Area {
                begin: area.begin,
                end: area.end,
                offset: area.offset,
                backing: backing(area)?,
            };
            room = room.checked_sub(area.name().len())?;
            Some(area)
        };
        areas.iter().filter_map(&mut named).collect()
    }
}

/// Where a process with `areas` writes its perf map, if it has memory for generated code, and the place is known.
fn perf_map<M: PhysicalMemory>(
    view: &KernelView<'_, M>,
    seen: RunningTask,
    areas: &[Area],
) -> Option<PerfMapPlace> {
    let linux = view.linux();
    (areas.iter()).find(|area| area.backing == Backing::Anonymous)?;
    let layout = linux.processes.as_ref()?.perf_map.as_ref().ok()?;
    layout.place(view, linux.instances.as_ref()?, seen.task, seen.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_guest::LinuxGuest;
    use kvmprof_introspection_fixtures::kernel::{Areas, HOT, task};
    use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, TASKS};
    use kvmprof_introspection_fixtures::processes::{AreaPlan, FixtureMemory, PAGE};

    const PARENT: RunningTask = RunningTask {
        task: DIRECT_MAP + TASKS + 0x1000,
        pid: 41,
        tid: 41,
        started: None,
        process_started: None,
    };
    const CHILD: RunningTask = RunningTask {
        task: DIRECT_MAP + TASKS + 0x2000,
        pid: 42,
        tid: 42,
        started: None,
        process_started: None,
    };

    fn area(begin: u64) -> AreaPlan {
        AreaPlan {
            begin,
            end: begin + PAGE,
            executable: true,
            offset: 0,
            file: 0,
        }
    }

    /// Stacks that were copied are unwound later.
    #[test]
    fn a_process_that_has_ended_since_is_as_it_last_was() {
        let guest = LinuxGuest::new(HOT);
        guest.identify(0, &guest.kernel(0));
        let linux = guest.linux();
        let (kernel, user) = (guest.kernel(0), guest.user());
        let view = linux.view(&guest.memory, &kernel).unwrap();
        let mut room = FixtureMemory::new(&guest, Areas::Tree);
        room.process(1, &[area(0x40_0000)]);
        let mut follower = ProcessFollower::default();
        assert!(follower.follow(&view, &kernel, PARENT, 7).is_some());
        room.put(PARENT.task + task::MM, 0);
        let elsewhere = Registers {
            cr3: 0x8000,
            ..user
        };
        let soon = 7 + RECHECK_SAME - 1;
        for (registers, pid, time, is_known) in [
            (&user, 41, 7, true),
            (&kernel, 41, soon, true),
            (&user, 41, soon + 1, false),
            (&user, 42, 7, false),
            (&elsewhere, 41, 7, false),
        ] {
            assert!(follower.follow(&view, registers, PARENT, time).is_none());
            assert!(follower.current().is_none());
            follower.recall(registers, pid, time);
            assert_eq!(follower.current().is_some(), is_known, "{pid} {time}");
        }
    }

    /// A child of vfork(2), which has its parent's memory, and the parent alternate.
    #[test]
    fn a_child_in_its_parents_memory_shares_the_unwinder() {
        let guest = LinuxGuest::new(HOT);
        guest.identify(0, &guest.kernel(0));
        let linux = guest.linux();
        let registers = guest.kernel(0);
        let view = linux.view(&guest.memory, &registers).unwrap();
        let mut room = FixtureMemory::new(&guest, Areas::Tree);
        let mm = room.process(1, &[area(0x40_0000)]);
        room.put(CHILD.task + task::MM, mm);
        let mut follower = ProcessFollower::default();
        let mut follow = |seen, time| {
            let map = follower.follow(&view, &registers, seen, time);
            let unwinder = follower.current().map(|(map, _)| Arc::clone(&map.unwinder));
            (map.map(|map| map.pid), unwinder)
        };
        let (pid, parents) = follow(PARENT, 0);
        let parents = parents.unwrap();
        let is_parents =
            |unwinder: Option<Arc<UnwinderSlot>>| Arc::ptr_eq(&unwinder.unwrap(), &parents);
        assert_eq!(pid, Some(41));
        for (seen, time) in [(CHILD, 1), (PARENT, 2), (CHILD, 3)] {
            // Each is a map of its own, for the names.
            let (pid, unwinder) = follow(seen, time);
            assert_eq!(pid, Some(seen.pid));
            assert!(is_parents(unwinder));
        }
        // Also while too many maps are returned.
        linux.map_budget.use_up(5);
        let (pid, unwinder) = follow(PARENT, 4);
        assert_eq!(pid, None);
        assert!(is_parents(unwinder));
        // Other mappings of the same size, as of another process in memory that was freed.
        room.map(mm, &[area(0x50_0000)]);
        assert!(follow(PARENT, 5).1.is_none());
        let later = 1_000_000_000_000;
        assert!(!is_parents(follow(PARENT, later).1));
        // Another address space with the same page tables.
        room.map(mm, &[area(0x40_0000)]);
        let (_, first) = follow(PARENT, 2 * later);
        room.process(2, &[area(0x40_0000)]);
        let (pid, second) = follow(CHILD, 2 * later + 1);
        assert_eq!(pid, Some(42));
        assert!(!Arc::ptr_eq(&first.unwrap(), &second.unwrap()));
    }
}
