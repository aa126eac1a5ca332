//! Notices changes of a process's executable mappings.

use std::sync::Arc;

use crate::PhysicalMemory;

use super::areas::{self, RawArea};
use super::process_layout::ProcessLayout;
use super::{Area, Backing, ProcessMap, UserMemory, files, user_memory};
use crate::Registers;
use crate::linux::LinuxKnowledge;
use crate::linux::cpu::process_name;
use crate::linux::view::KernelView;
use crate::unwind::UnwindCache;

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

/// A running task: its `task_struct`, and its process.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Its guest virtual address.
    pub task: u64,
    /// The process's id.
    pub pid: i32,
}

/// Values that change with the executable mappings. A new address space may have the same address as an earlier one,
/// but it has another process or other arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature {
    mm: u64,
    pid: i32,
    executable_pages: u64,
    code: u64,
    arguments: u64,
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
    /// Whether `other` is that of the same program, possibly with other mappings.
    fn is_same_program(&self, other: &Self) -> bool {
        let anywhere = Self {
            executable_pages: other.executable_pages,
            ..*self
        };
        anywhere == *other
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
        linux: &LinuxKnowledge,
        view: &KernelView<'_, M>,
        registers: &Registers,
        seen: Seen,
        time: u64,
    ) -> Option<Arc<ProcessMap>> {
        self.current = None;
        let layout = linux.processes.as_ref()?;
        let memory = UserMemory::from_task(view, layout, registers, seen.task)?;
        let UserMemory::Loaded(mm) = memory else {
            return None;
        };
        // Not by CR3: its bit 12 selects the user's half under KPTI, and may be a part of the address without.
        let root = user_memory::page_tables(view, layout, mm)?;
        let (signature, extent) = signature(view, layout, mm, seen.pid)?;
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
            let space = known.and_then(|index| self.spaces.get(index));
            // The old map of the same program is mostly right, but that of another program isn't.
            let is_same = space.is_some_and(|space| space.signature.is_same_program(&signature));
            self.current = known.filter(|_| is_same);
            return None;
        }
        areas::read(view, layout, mm, &mut self.areas)?;
        if let Some(space) = known.and_then(|index| self.spaces.get_mut(index)) {
            (space.extent, space.walked) = (extent, time);
            if space.signature == signature && space.areas == self.areas {
                self.current = known;
                return None;
            }
        }
        let areas = named(view, layout, mm, &self.areas);
        let map = Arc::new(ProcessMap {
            name: process_name(linux, view, seen.task),
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
                cache: UnwindCache::default(),
            },
        );
        Some(map)
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

    /// Notes that no known process is running.
    pub fn leave(&mut self) {
        self.current = None;
    }
}

fn signature<M: PhysicalMemory>(
    view: &KernelView<'_, M>,
    layout: &ProcessLayout,
    mm: u64,
    pid: i32,
) -> Option<(Signature, Extent)> {
    let layout = &layout.address_space;
    let field = |offset| view.u64(mm.wrapping_add(offset));
    let signature = Signature {
        mm,
        pid,
        executable_pages: field(layout.exec_vm)?,
        code: field(layout.start_code)?,
        arguments: field(layout.arg_start)?,
    };
    let extent = Extent {
        areas: view.i32(mm.wrapping_add(layout.map_count))?,
        pages: field(layout.total_vm)?,
    };
    Some((signature, extent))
}

/// The areas with their backing. Areas whose backing is unreadable are left out.
fn named<M: PhysicalMemory>(
    view: &KernelView<'_, M>,
    layout: &ProcessLayout,
    mm: u64,
    areas: &[RawArea],
) -> Vec<Area> {
    let vdso = layout.address_space.vdso;
    let vdso = vdso.and_then(|offset| view.u64(mm.wrapping_add(offset)));
    // Most files have several mappings.
    let mut files: Vec<(u64, Option<Backing>)> = Vec::new();
    let mut backing = |area: &RawArea| {
        if area.file == 0 && vdso == Some(area.begin) {
            return Some(Backing::Vdso);
        }
        if area.file == 0 {
            return Some(Backing::Anonymous);
        }
        if let Some((_, backing)) = files.iter().find(|(file, _)| *file == area.file) {
            return backing.clone();
        }
        if files.len() >= MAX_FILES {
            return None;
        }
        let file = files::read(view, layout, area.file);
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
