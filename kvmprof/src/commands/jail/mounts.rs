//! The jail's file systems, in a mount namespace of its own. They vanish with its last process.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path};
use std::ptr;

use kvmprof_sandbox::user::User;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, mknodat,
    openat, openat2,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use super::contents::{Bind, Contents};
use super::error::{JailError, failed, failed_with};

/// Options of the root's file system, which has folders and nodes, but no contents.
const ROOT_OPTIONS: [(&str, &str); 3] = [("mode", "0755"), ("size", "1m"), ("nr_inodes", "4k")];
/// The flags of all mounts in the jail: set-user-ID bits have no effect, and nothing can be executed.
const PLAIN: libc::c_ulong = libc::MS_NOSUID | libc::MS_NOEXEC;

/// Makes the jail's root in this process's own mount namespace, and makes it this process's root. The host's folders are looked up once; everything
/// is made in open folders, so that an owner of a parent folder can't redirect root meanwhile.
///
/// # Errors
/// The host refuses a step.
pub fn enter(contents: &Contents, user: &User) -> Result<(), JailError> {
    let folder = contents.folder.as_path();
    // The mounts don't propagate to the host.
    let private = libc::MS_REC | libc::MS_PRIVATE;
    mount(None, OsStr::new("/"), None, private).map_err(failed(
        "cannot make private the mounts below",
        Path::new("/"),
    ))?;
    // Opened before other mounts cover them.
    let open = |bind: &Bind| Ok((bind.clone(), open_bind(&bind.path)?));
    let binds: Result<Vec<_>, JailError> = contents.binds.iter().map(open).collect();
    let own = Bind {
        path: contents.folder.clone(),
        writable: true,
    };
    let mut binds = binds?;
    let covered = own_folder(folder, user)?;
    binds.push((
        own,
        covered.try_clone().map_err(failed("cannot use", folder))?,
    ));
    let device = |name: &&str| device_number(&Path::new("/dev").join(name));
    let numbers: Result<Vec<_>, _> = contents.devices.iter().map(device).collect();
    let numbers = numbers?;

    let root = mount_root(folder, &covered).map_err(failed_with(
        "cannot mount the jail's root over",
        folder,
        "it takes Linux 5.2",
    ))?;
    for (name, number) in contents.devices.iter().zip(numbers) {
        let path = Path::new("/dev").join(name);
        make_device(&root, &path, number, user).map_err(failed("cannot make", &path))?;
    }
    for (bind, source) in &binds {
        bind_mount(&root, bind, source)?;
    }
    let path = Path::new("/proc");
    let flags = PLAIN | libc::MS_NODEV | libc::MS_RDONLY;
    let proc = folders(&root, path).and_then(|proc| {
        let target = place(&proc);
        mount(Some("proc"), OsStr::new(&target), Some("proc"), flags)
    });
    proc.map_err(failed("cannot mount the jail's processes at", path))?;
    change_root(&root).map_err(failed("cannot change the root to", folder))
}

/// A new file system in memory, mounted over `covered`. Its source has no meaning to the kernel: it shows the jail's folder to programs outside, such as
/// `kvmprof list`.
fn mount_root(folder: &Path, covered: &File) -> io::Result<OwnedFd> {
    let system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&system, "source", folder)?;
    for (key, value) in ROOT_OPTIONS {
        fsconfig_set_string(&system, key, value)?;
    }
    fsconfig_create(&system)?;
    let plain = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, plain)?;
    let by_files =
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&root, "", covered, "", by_files)?;
    Ok(root)
}

/// A path by which the kernel finds an open file again, wherever that is.
fn place(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Opens what is mounted into the jail. Only its own name may be a link: its folder's path had none when it was checked.
fn open_bind(path: &Path) -> Result<File, JailError> {
    let (folder, name) = (path.parent(), path.file_name());
    let (Some(folder), Some(name)) = (folder, name) else {
        return Err(failed("cannot open", path)(Errno::INVAL));
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let folder = openat2(
        CWD,
        folder,
        flags | OFlags::DIRECTORY,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    );
    let opened = folder.and_then(|folder| openat(folder, name, flags, Mode::empty()));
    opened.map(File::from).map_err(failed("cannot open", path))
}

/// The folder may have been replaced since it was checked.
fn own_folder(path: &Path, user: &User) -> Result<File, JailError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let folder = File::from(opened.map_err(failed("cannot open", path))?);
    let owner = folder.metadata().map(|found| found.uid());
    match owner.map_err(failed("cannot look at", path))? {
        owner if owner == user.uid() => Ok(folder),
        _ => Err(failed("cannot use", path)(io::Error::other(
            "it has another owner now",
        ))),
    }
}

fn device_number(path: &Path) -> Result<libc::dev_t, JailError> {
    let advice = "the host's kernel has to have it";
    let found = fs::metadata(path).map_err(failed_with("cannot find", path, advice))?;
    match found.file_type().is_char_device() {
        true => Ok(found.rdev()),
        false => Err(failed("cannot use", path)(io::Error::other(
            "it is no character device",
        ))),
    }
}

/// Makes a device node that belongs only to the user.
fn make_device(root: &OwnedFd, path: &Path, number: libc::dev_t, user: &User) -> io::Result<()> {
    let (folder, name) = folder_of(root, path)?;
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(&folder, name, FileType::CharacterDevice, mode, number)?;
    let node = openat(&folder, name, NODE, Mode::empty())?;
    let (uid, gid) = (Uid::from_raw(user.uid()), Gid::from_raw(user.gid()));
    Ok(chownat(
        &node,
        "",
        Some(uid),
        Some(gid),
        AtFlags::EMPTY_PATH,
    )?)
}

/// To open what is there, and no link.
const NODE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The folder of `path` in the jail, and the name in it.
fn folder_of<'a>(root: &OwnedFd, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((folders(root, path.parent().unwrap_or(path))?, name))
}

/// Opens the folder `path` of the jail, and makes what is missing on the way. Links aren't followed.
fn folders(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let mut folder = root.try_clone()?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            continue;
        };
        match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST | Errno::ROFS) => {}
            Err(error) => return Err(error.into()),
        }
        folder = openat(&folder, name, NODE | OFlags::DIRECTORY, Mode::empty())?;
    }
    Ok(folder)
}

/// Opens the place in the jail at which a file or folder is mounted, and makes it if it doesn't exist.
fn mount_place(root: &OwnedFd, path: &Path, is_folder: bool) -> io::Result<OwnedFd> {
    if is_folder {
        return folders(root, path);
    }
    let (folder, name) = folder_of(root, path)?;
    match openat(&folder, name, NODE, Mode::empty()) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    let new = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(openat(&folder, name, new, Mode::from_raw_mode(0o644))?)
}

fn bind_mount(root: &OwnedFd, bind: &Bind, source: &File) -> Result<(), JailError> {
    let kind = source
        .metadata()
        .map_err(failed("cannot look at", &bind.path))?
        .file_type();
    let refused = |error: io::Error| failed("cannot mount", &bind.path)(error);
    let target = mount_place(root, &bind.path, kind.is_dir())
        .map_err(failed("cannot make a place for", &bind.path))?;
    let (source, target) = (place(source), place(&target));
    mount(Some(&source), OsStr::new(&target), None, libc::MS_BIND).map_err(refused)?;
    let mut flags = PLAIN | libc::MS_BIND | libc::MS_REMOUNT;
    // A disk may be a device itself.
    if !kind.is_block_device() && !kind.is_char_device() {
        flags |= libc::MS_NODEV;
    }
    if !bind.writable {
        flags |= libc::MS_RDONLY;
    }
    // The place is covered now: the mount is found by its name.
    let mounted = mount_place(root, &bind.path, kind.is_dir()).map_err(refused)?;
    mount(None, OsStr::new(&place(&mounted)), None, flags).map_err(refused)
}

/// Makes `root` the root, and unmounts the old root.
fn change_root(root: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    let here = c".".as_ptr();
    // SAFETY: both are strings that end with a zero. With the same string for both, the old root is mounted over the
    // new one: pivot_root(2).
    let changed = check(unsafe { libc::syscall(libc::SYS_pivot_root, here, here) });
    match changed {
        // SAFETY: as above.
        Ok(()) => check(unsafe { libc::umount2(here, libc::MNT_DETACH) }),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => cover_root(),
        Err(error) => Err(error),
    }?;
    std::env::set_current_dir("/")?;
    let flags = PLAIN | libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
    mount(None, OsStr::new("/"), None, flags)
}

/// Covers the root of an initramfs with the working folder, because it can't be unmounted. Only a process that may
/// change its root (CAP_SYS_CHROOT) could reach what is covered.
fn cover_root() -> io::Result<()> {
    mount(Some("."), OsStr::new("/"), None, libc::MS_MOVE)?;
    // SAFETY: the string ends with a zero.
    check(unsafe { libc::chroot(c".".as_ptr()) })
}

fn mount(
    source: Option<&str>,
    target: &OsStr,
    kind: Option<&str>,
    flags: libc::c_ulong,
) -> io::Result<()> {
    let words = |word: Option<&str>| word.map(CString::new).transpose();
    let (source, kind) = (words(source)?, words(kind)?);
    let target = CString::new(target.as_bytes())?;
    let pointer = |word: &Option<CString>| word.as_ref().map_or(ptr::null(), |it| it.as_ptr());
    // SAFETY: each string ends with a zero or is absent, and all live as long as the call.
    check(unsafe {
        libc::mount(
            pointer(&source),
            target.as_ptr(),
            pointer(&kind),
            flags,
            ptr::null(),
        )
    })
}

fn check(result: impl Into<i64>) -> io::Result<()> {
    match result.into() {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Whatever has changed in a folder of the jail meanwhile, nothing is made or mounted outside of it.
    #[test]
    fn links_are_not_resolved() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::create_dir_all(path("root/there")).unwrap();
        fs::create_dir(path("outside")).unwrap();
        symlink(path("outside"), path("root/there/link")).unwrap();
        let root = OwnedFd::from(File::open(path("root")).unwrap());
        folders(&root, Path::new("/new/folder")).unwrap();
        mount_place(&root, Path::new("/new/file"), false).unwrap();
        // It is there already.
        mount_place(&root, Path::new("/new/file"), false).unwrap();
        assert!(path("root/new/folder").is_dir() && path("root/new/file").is_file());
        for name in ["/there/link", "/there/link/folder"] {
            assert!(folders(&root, Path::new(name)).is_err(), "{name}");
            assert!(mount_place(&root, Path::new(name), true).is_err(), "{name}");
        }
        assert!(mount_place(&root, Path::new("/there/link/file"), false).is_err());
        assert!(fs::read_dir(path("outside")).unwrap().next().is_none());
        let file = path("outside/file");
        fs::write(&file, "").unwrap();
        symlink(&file, path("root/new/link")).unwrap();
        let link = mount_place(&root, Path::new("/new/link"), false).unwrap();
        assert!(File::from(link).metadata().unwrap().is_symlink());
    }

    #[test]
    fn only_the_name_of_what_is_mounted_may_be_a_link() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().canonicalize().unwrap();
        fs::create_dir(folder.join("real")).unwrap();
        fs::write(folder.join("real/file"), "words").unwrap();
        symlink("real", folder.join("link")).unwrap();
        symlink("file", folder.join("real/name")).unwrap();
        let opened = open_bind(&folder.join("real/name")).unwrap();
        assert_eq!(opened.metadata().unwrap().len(), 5);
        assert!(open_bind(&folder.join("link/file")).is_err());
    }
}
