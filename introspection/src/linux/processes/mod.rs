//! The processes of a Linux guest: which files are mapped where into their address spaces, and what is in
//! those files.
//!
//! vCPU threads find the mappings ([`ProcessFollower`]), while their vCPU stands still; the contents of files are
//! read elsewhere, while the guest goes on. All of it is the guest's memory, and none of it is believed: walks are
//! bounded, and what makes no sense means fewer mappings.

mod areas;
mod files;
mod follower;
mod maple;
mod page_cache;
mod process_layout;
#[cfg(test)]
mod tests;
mod user_memory;
mod vdso;

use std::sync::{Arc, OnceLock};

use crate::unwind::UserUnwinder;

pub use follower::{ProcessFollower, Seen};
pub use process_layout::ProcessLayout;
pub use user_memory::UserMemory;

/// The executable mappings of one address space, as they were at one moment.
#[derive(Debug)]
pub struct ProcessMap {
    /// The physical address of its page tables, with bit 12 cleared: those that KPTI gives the kernel lie side by
    /// side with the user's.
    pub root: u64,
    /// The process that was running.
    pub pid: i32,
    /// When, in ns of CLOCK_MONOTONIC.
    pub time: u64,
    /// By address; they don't overlap.
    pub areas: Vec<Area>,
    /// The way back of what unwinds its stacks.
    pub unwinder: Arc<UnwinderSlot>,
}

/// The way of an unwinder from the thread that reads the files of a process to the vCPU's thread that has met it.
///
/// The map of a process goes to the other thread by way of the profiler, with this slot; the unwinder comes back in it,
/// once, and the vCPU's thread finds it there at one of the next ticks. Neither side ever waits.
#[derive(Debug, Default)]
pub struct UnwinderSlot(OnceLock<UserUnwinder>);

impl UnwinderSlot {
    /// Hands `unwinder` over. Of several calls the first counts.
    pub fn put(&self, unwinder: UserUnwinder) {
        // One that is there already may be in use.
        let _already = self.0.set(unwinder);
    }

    /// What unwinds the stacks of the process, once its files have been read.
    pub fn get(&self) -> Option<&UserUnwinder> {
        self.0.get()
    }
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its first address.
    pub begin: u64,
    /// The first address after it.
    pub end: u64,
    /// Where its first byte lies in what is mapped, in bytes.
    pub offset: u64,
    /// What is mapped.
    pub backing: Backing,
}

/// What a mapping shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A file.
    File(Arc<MappedFile>),
    /// The code that the kernel gives to each process (vdso(7)).
    Vdso,
    /// Memory of the process's own: code that was made at run time.
    Anonymous,
}

/// A file that is mapped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedFile {
    /// Its path in the guest.
    pub path: String,
    /// Which file that was then.
    pub identity: FileIdentity,
}

/// What tells a file from others, and from itself with other contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The guest virtual address of its inode.
    pub inode: u64,
    /// The inode's number.
    pub number: u64,
    /// Its file system's device number, as the kernel has it.
    pub device: u32,
    /// Its length in bytes.
    pub length: u64,
    /// When it was last changed, by the guest's clock, in whatever form the kernel keeps that.
    pub modified: u64,
}

impl ProcessMap {
    /// What process `pid` had in its address space at `root` at `time`: `areas`, by address.
    pub fn new(root: u64, pid: i32, time: u64, areas: Vec<Area>) -> Self {
        Self {
            root,
            pid,
            time,
            areas,
            unwinder: Arc::default(),
        }
    }

    /// About how many bytes it takes.
    pub fn bytes(&self) -> usize {
        let area = |area: &Area| size_of::<Area>() + area.name().len();
        self.areas.iter().map(area).sum()
    }
}

impl Area {
    /// The name of what is mapped: a path, or a word in brackets.
    pub fn name(&self) -> &str {
        match &self.backing {
            Backing::File(file) => &file.path,
            Backing::Vdso => "[vdso]",
            Backing::Anonymous => "[anon]",
        }
    }
}
