//! The processes of a Linux guest: their mappings, and the contents of the mapped files.
//!
//! vCPUs' threads find the mappings ([`ProcessFollower`]) while their vCPU is stopped. Other threads read the contents
//! of files while the guest runs. Guest memory is untrusted: walks are bounded, and invalid data leads to fewer
//! mappings.

mod areas;
mod budget;
mod cgroup;
mod container;
mod directories;
mod files;
mod follower;
mod inner_ids;
mod instance;
#[cfg(test)]
mod instance_tests;
mod labels;
mod maple;
mod page_cache;
mod perf_map;
mod process_layout;
#[cfg(test)]
mod tests;
mod user_memory;
mod vdso;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use kvmprof_recording::COMM_LENGTH;

use super::runtimes::ProcessRuntime;
use crate::unwind::UserUnwinder;

pub use budget::MapBudget;
pub use container::labels as labels_of_group;
pub use follower::{ProcessFollower, RunningTask};
pub use inner_ids::InnerIds;
pub use instance::{
    GuestProcesses, InstanceLayout, ListedProcess, ProcessFate, ProcessInstance, ProcessOrigin,
};
pub use labels::Labelled;
pub use perf_map::PerfMapPlace;
pub use process_layout::{ProcessLayout, ProcessView};
pub use vdso::VdsoPlace;

/// The executable mappings of one address space at one moment.
#[derive(Debug)]
pub struct ProcessMap {
    /// The physical address of its page tables; under KPTI, of the kernel's half.
    pub root: u64,
    /// The process that was running.
    pub pid: i32,
    /// The name (`comm`) of its main thread, padded with NULs; all zeros if unknown.
    pub name: [u8; COMM_LENGTH],
    /// Where it writes the names of the code that it generates; nowhere if it has no memory for such code, or the place is unknown.
    pub perf_map: PerfMapPlace,
    /// The labels of the process.
    pub labels: BTreeMap<String, String>,
    /// When it was started, in ns of the guest's CLOCK_MONOTONIC; 0 if unknown.
    pub started: u64,
    /// When the mappings were read, in ns of CLOCK_MONOTONIC.
    pub time: u64,
    /// Sorted by address, without overlaps.
    pub areas: Vec<Area>,
    /// Receives the unwinder of the process's stacks.
    pub unwinder: Arc<UnwinderSlot>,
}

/// Passes an unwinder, and the runtime of a language, from the thread that reads a process's files to the vCPU's thread that found the process.
///
/// The profiler takes a process's map with this slot to the other thread. That thread stores the unwinder in the slot,
/// once, and the vCPU's thread finds it there at a later tick. Neither side ever waits.
#[derive(Debug, Default)]
pub struct UnwinderSlot {
    unwinder: OnceLock<UserUnwinder>,
    runtime: OnceLock<Arc<ProcessRuntime>>,
}

impl UnwinderSlot {
    /// Stores `unwinder`. Only the first call has an effect.
    pub fn put(&self, unwinder: UserUnwinder) {
        // An existing unwinder isn't replaced, because it may be in use.
        let _already = self.unwinder.set(unwinder);
    }

    /// The unwinder of the process's stacks, once its files have been read.
    pub fn get(&self) -> Option<&UserUnwinder> {
        self.unwinder.get()
    }

    /// Stores the runtime of the process's language. Only the first call has an effect.
    pub fn put_runtime(&self, runtime: Arc<ProcessRuntime>) {
        let _already = self.runtime.set(runtime);
    }

    /// The runtime of the process's language, if it has one that is known.
    pub fn runtime(&self) -> Option<&ProcessRuntime> {
        self.runtime.get().map(Arc::as_ref)
    }
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its first address.
    pub begin: u64,
    /// The first address after it.
    pub end: u64,
    /// The file offset of its first byte, in bytes.
    pub offset: u64,
    /// The content.
    pub backing: Backing,
}

/// The content of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A file.
    File(Arc<MappedFile>),
    /// The kernel's code for user mode (vdso(7)).
    Vdso,
    /// Anonymous memory, for code that was generated at run time.
    Anonymous,
}

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedFile {
    /// Its path in the guest.
    pub path: String,
    /// The file's identity when it was mapped.
    pub identity: FileIdentity,
}

/// Distinguishes a file from other files, and from itself with other contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The guest virtual address of its inode.
    pub inode: u64,
    /// The inode's number.
    pub number: u64,
    /// Its file system's device number, in the kernel's encoding.
    pub device: u32,
    /// Its length in bytes.
    pub length: u64,
    /// The time of its last change by the guest's clock, in the kernel's own format.
    pub modified: u64,
}

impl FileIdentity {
    /// Whether `other` is the same file, possibly with other contents.
    pub fn is_same_file(&self, other: &Self) -> bool {
        let as_other = Self {
            length: other.length,
            modified: other.modified,
            ..*self
        };
        as_other == *other
    }
}

impl ProcessMap {
    /// The mappings `areas`, sorted by address, of process `pid` with the page tables at `root` at `time`.
    pub fn new(root: u64, pid: i32, time: u64, areas: Vec<Area>) -> Self {
        Self {
            root,
            pid,
            name: [0; COMM_LENGTH],
            perf_map: PerfMapPlace::default(),
            labels: BTreeMap::new(),
            started: 0,
            time,
            areas,
            unwinder: Arc::default(),
        }
    }

    /// Its approximate memory use, in bytes.
    pub fn bytes(&self) -> usize {
        let area = |area: &Area| size_of::<Area>() + area.name().len();
        let areas = self.areas.iter().map(area).sum::<usize>();
        areas + self.perf_map.path.len() + self.label_bytes()
    }

    /// The number of bytes of its labels.
    fn label_bytes(&self) -> usize {
        let labels = self.labels.iter();
        labels.map(|(key, value)| key.len() + value.len()).sum()
    }
}

impl Area {
    /// The name of the mapped content: a path, or a word in brackets.
    pub fn name(&self) -> &str {
        match &self.backing {
            Backing::File(file) => &file.path,
            Backing::Vdso => "[vdso]",
            Backing::Anonymous => "[anon]",
        }
    }
}
