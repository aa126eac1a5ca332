//! Groups of processes that have little memory (cgroups(7)).

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
        let name = format!("kvmprof-soak-{}", std::process::id());
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

    /// Puts a process into it, if possible.
    pub fn take(&self, pid: u32) -> bool {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).is_ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes are moved back first. If that fails, the group stays.
        let inside = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines() {
            let _ = fs::write(self.parent.join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.folder);
    }
}
