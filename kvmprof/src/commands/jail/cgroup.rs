//! The jail's control group (kernel: Documentation/admin-guide/cgroup-v2.rst).

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use kvmprof_cli::command_line::usage;

use super::error::{JailError, failed, failed_with};

/// Memory that kvmprof may use in addition to the guest's, in bytes.
const MORE_MEMORY: u64 = 512 << 20;
/// Maximum number of processes and threads.
const TASKS: u32 = 512;
/// The period of the limit of processor time, in us.
const PERIOD: u32 = 100_000;
/// The controllers that the limits need.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Maximum number of checks whether the group's last process is gone, and the time between them.
const LOOKS: u32 = 200;
const LOOK: Duration = Duration::from_millis(5);

/// A group that was made here. Removed when dropped.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Makes the group `path` with limits for such a guest. First removes a group of that name without processes, which
    /// a killed jail has left.
    ///
    /// # Errors
    /// The host has no cgroup v2 or lacks the controllers, or the group is in use.
    pub fn make(path: &str, guest_memory: u64, vcpus: u16) -> anyhow::Result<Self> {
        let relative = Path::new(path.trim_start_matches('/'));
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if relative.as_os_str().is_empty() || !relative.components().all(is_plain) {
            return Err(usage(format_args!(
                "--cgroup {path} has to be a path below the root of the hierarchy, without .."
            )));
        }
        let top = hierarchy()?;
        let folder = top.join(relative);
        let parent = folder.parent().unwrap_or(&top).to_owned();
        fs::create_dir_all(&parent).map_err(failed("cannot make the control group", &parent))?;
        enable(&top, relative.parent().unwrap_or(Path::new("")))?;
        if folder.exists() {
            fs::remove_dir(&folder).map_err(failed_with(
                "cannot replace the control group",
                &folder,
                "if it has processes, another jail uses it: give another name",
            ))?;
        }
        fs::create_dir(&folder).map_err(failed("cannot make the control group", &folder))?;
        let group = Self { folder };
        let memory = guest_memory.saturating_add(MORE_MEMORY);
        let time = u64::from(PERIOD) * (u64::from(vcpus) + 1);
        group.write("memory.max", &memory.to_string())?;
        group.write("cpu.max", &format!("{time} {PERIOD}"))?;
        group.write("pids.max", &TASKS.to_string())?;
        Ok(group)
    }

    /// Moves the calling process into the group.
    ///
    /// # Errors
    /// The host refuses that.
    pub fn enter(&self) -> Result<(), JailError> {
        self.write("cgroup.procs", "0")
    }

    fn write(&self, name: &str, value: &str) -> Result<(), JailError> {
        let file = self.folder.join(name);
        fs::write(&file, value).map_err(failed("cannot write", &file))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process may take a moment to end.
        for _ in 0..LOOKS {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(LOOK),
                Ok(()) => return,
                Err(_) => break,
            }
        }
        let folder = self.folder.display();
        log::warn!(
            "The control group {folder} is still there; the next jail of its name removes it"
        );
    }
}

/// The mount point of cgroup v2.
fn hierarchy() -> anyhow::Result<PathBuf> {
    let file = Path::new("/proc/self/mountinfo");
    let mounts = fs::read_to_string(file).map_err(failed("cannot read", file))?;
    // proc(5): the mount point is the fifth field, and the type is the first field after the dash.
    let is_v2 = |line: &&str| line.contains(" - cgroup2 ");
    let point = |line: &str| line.split(' ').nth(4).map(PathBuf::from);
    match mounts.lines().find(is_v2).and_then(point) {
        Some(top) => Ok(top),
        None => bail!(
            "--cgroup needs cgroup v2, which isn't mounted: mount -t cgroup2 none /sys/fs/cgroup"
        ),
    }
}

/// Enables the controllers that the limits need, in all groups from `top` to `below`.
fn enable(top: &Path, below: &Path) -> anyhow::Result<()> {
    let file = top.join("cgroup.controllers");
    let has = fs::read_to_string(&file).map_err(failed("cannot read", &file))?;
    let has: Vec<&str> = has.split_whitespace().collect();
    if let Some(missing) = CONTROLLERS.iter().find(|name| !has.contains(name)) {
        bail!(
            "--cgroup needs the controller {missing} of cgroup v2, which isn't in {}: cgroup v1 may have it",
            file.display()
        );
    }
    let mut group = top.to_owned();
    let mut parts = below.components();
    loop {
        let control = group.join("cgroup.subtree_control");
        let wanted = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
        fs::write(&control, wanted).map_err(failed_with(
            "cannot hand on controllers by",
            &control,
            "a group with processes hands on none: name one elsewhere",
        ))?;
        match parts.next() {
            Some(part) => group.push(part),
            None => return Ok(()),
        }
    }
}
