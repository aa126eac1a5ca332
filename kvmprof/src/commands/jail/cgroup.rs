//! The jail's control group (kernel: Documentation/admin-guide/cgroup-v2.rst). Its files are opened below its descriptor:
//! who owns a group above may put another one in its place, which then gets neither limits nor processes.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use kvmprof_cli::command_line::usage;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

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
    group: Group,
    parent: Group,
    name: OsString,
}

impl Cgroup {
    /// Makes the group `path` with limits for such a guest. First removes a group of that name without processes, which
    /// a killed jail has left.
    ///
    /// # Errors
    /// The host has no cgroup v2 or lacks the controllers, or the group is in use.
    pub fn make(path: &str, guest_memory: u64, vcpus: u16) -> anyhow::Result<Self> {
        let names = Path::new(path.trim_start_matches('/')).components();
        let names = names.map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let names: Option<Vec<&OsStr>> = names.collect();
        let Some((name, above)) = names.as_deref().and_then(<[_]>::split_last) else {
            return Err(usage(format_args!(
                "--cgroup {path} has to be a path below the root of the hierarchy, without .."
            )));
        };
        let parent = parent(above)?;
        match parent.remove(name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => Err(failed_with(
                "cannot replace the control group",
                &parent.path.join(name),
                "if it has processes, another jail uses it: give another name",
            )(error))?,
        }
        let made = parent.make(name);
        made.map_err(not_made(&parent.path.join(name)))?;
        let made = Self {
            group: parent.child(name)?,
            parent,
            name: (*name).to_owned(),
        };
        let memory = guest_memory.saturating_add(MORE_MEMORY);
        let time = u64::from(PERIOD) * (u64::from(vcpus) + 1);
        made.group.write("memory.max", &memory.to_string())?;
        made.group.write("cpu.max", &format!("{time} {PERIOD}"))?;
        made.group.write("pids.max", &TASKS.to_string())?;
        Ok(made)
    }

    /// Moves the calling process into the group.
    ///
    /// # Errors
    /// The host refuses that.
    pub fn enter(&self) -> Result<(), JailError> {
        self.group.write("cgroup.procs", "0")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process may take a moment to end.
        for _ in 0..LOOKS {
            match self.parent.remove(&self.name) {
                Err(Errno::BUSY) => thread::sleep(LOOK),
                Ok(()) => return,
                Err(_) => break,
            }
        }
        let path = self.group.path.display();
        log::warn!("The control group {path} is still there; the next jail of its name removes it");
    }
}

/// An open group.
#[derive(Debug)]
struct Group {
    folder: OwnedFd,
    /// For messages.
    path: PathBuf,
}

impl Group {
    fn open(above: impl AsFd, name: &OsStr, path: PathBuf) -> Result<Self, JailError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(above, name, flags, Mode::empty());
        let folder = opened.map_err(failed("cannot open the control group", &path))?;
        Ok(Self { folder, path })
    }

    fn child(&self, name: &OsStr) -> Result<Self, JailError> {
        Self::open(&self.folder, name, self.path.join(name))
    }

    fn make(&self, name: &OsStr) -> Result<(), Errno> {
        mkdirat(&self.folder, name, Mode::from_raw_mode(0o755))
    }

    fn remove(&self, name: &OsStr) -> Result<(), Errno> {
        unlinkat(&self.folder, name, AtFlags::REMOVEDIR)
    }

    fn file(&self, name: &str, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.folder, name, flags, Mode::empty())?.into())
    }

    fn write(&self, name: &str, value: &str) -> Result<(), JailError> {
        self.write_with(name, value, "")
    }

    /// Writes `value` to the file `name`; an error has this advice.
    fn write_with(&self, name: &str, value: &str, advice: &'static str) -> Result<(), JailError> {
        let file = self.file(name, OFlags::WRONLY);
        let written = file.and_then(|mut file| file.write_all(value.as_bytes()));
        written.map_err(failed_with("cannot write", &self.path.join(name), advice))
    }

    /// Lets the groups below have limits of the controllers.
    fn enable_controllers(&self) -> Result<(), JailError> {
        let wanted = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
        let advice = "a group with processes hands on no controllers: name one elsewhere";
        self.write_with("cgroup.subtree_control", &wanted, advice)
    }
}

fn not_made(path: &Path) -> impl FnOnce(Errno) -> JailError + '_ {
    failed("cannot make the control group", path)
}

/// Opens the group at the end of these names, in which the jail's is made. Makes what is missing on the way, and enables
/// the controllers.
fn parent(names: &[&OsStr]) -> anyhow::Result<Group> {
    let top = hierarchy()?;
    let mut group = Group::open(CWD, top.as_os_str(), top.clone())?;
    let file = top.join("cgroup.controllers");
    let mut has = String::new();
    let controllers = group.file("cgroup.controllers", OFlags::RDONLY);
    let read = controllers.and_then(|mut file| file.read_to_string(&mut has));
    read.map_err(failed("cannot read", &file))?;
    let lacks = |name: &&&str| !has.split_whitespace().any(|has| has == **name);
    if let Some(missing) = CONTROLLERS.iter().find(lacks) {
        bail!(
            "--cgroup needs the controller {missing} of cgroup v2, which isn't in {}: cgroup v1 may have it",
            file.display()
        );
    }
    group.enable_controllers()?;
    for name in names {
        match group.make(name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => Err(not_made(&group.path.join(name))(error))?,
        }
        group = group.child(name)?;
        group.enable_controllers()?;
    }
    Ok(group)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_takes_its_place_is_not_written_to() {
        let top = tempfile::tempdir().unwrap();
        let parent = Group::open(CWD, top.path().as_os_str(), top.path().into()).unwrap();
        let name = OsStr::new("guest");
        let (place, elsewhere) = (top.path().join(name), top.path().join("elsewhere"));
        for folder in [&elsewhere, &place] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("memory.max"), "max").unwrap();
        }
        let group = parent.child(name).unwrap();
        fs::rename(&place, top.path().join("away")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &place).unwrap();
        group.write("memory.max", "123").unwrap();
        let limit = |folder: &str| fs::read_to_string(top.path().join(folder).join("memory.max"));
        assert_eq!(limit("away").unwrap(), "123");
        assert_eq!(limit("elsewhere").unwrap(), "max");
        parent.child(name).unwrap_err();
    }
}
