//! Groups of processes that have little memory (cgroups(7)). Crates below `kvmprof-tests` have this file as a module of their tests.

use std::fs;
use std::path::{Path, PathBuf};

/// A group of processes with little memory.
pub struct Cgroup {
    folder: PathBuf,
    parent: PathBuf,
}

impl Cgroup {
    /// `None` if groups can't be made.
    pub fn new(bytes: u64) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let thread = rustix::thread::gettid();
        let name = format!("kvmprof-test-{}", thread.as_raw_nonzero());
        for (parent, limit) in [
            (root.to_owned(), "memory.max"),
            (root.join("memory"), "memory.limit_in_bytes"),
        ] {
            if !parent.join("cgroup.procs").exists() {
                continue;
            }
            let folder = parent.join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self { folder, parent };
            if fs::write(group.folder.join(limit), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }

    /// The file by which a process comes into it, whose id is written there; 0 is the one that writes.
    pub fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes are moved back first. If that fails, the group stays.
        let inside = fs::read_to_string(self.processes()).unwrap_or_default();
        for pid in inside.lines() {
            let _ = fs::write(self.parent.join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.folder);
    }
}
