//! The jail's file systems, in a mount namespace of its own. They vanish with its last process.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::ptr;

use kvmprof_sandbox::user::User;

use super::contents::{Bind, Contents};
use super::error::{JailError, failed, failed_with};

/// Options of the root's file system, which has folders and nodes, but no contents.
const ROOT_OPTIONS: &str = "mode=0755,size=1m,nr_inodes=4k";
/// The flags of all mounts in the jail: set-user-ID bits have no effect, and nothing can be executed.
const PLAIN: libc::c_ulong = libc::MS_NOSUID | libc::MS_NOEXEC;

/// Makes the jail's root in this process's own mount namespace, and makes it this process's root.
///
/// # Errors
/// The host refuses a step.
pub fn enter(contents: &Contents, user: &User) -> Result<(), JailError> {
    let root = contents.folder.as_path();
    // The mounts don't propagate to the host.
    let private = libc::MS_REC | libc::MS_PRIVATE;
    mount(None, Path::new("/"), None, private, None).map_err(failed(
        "cannot make private the mounts below",
        Path::new("/"),
    ))?;
    // Opened before other mounts cover them.
    let open = |bind: &Bind| Ok((bind.clone(), handle(&bind.path, 0)?));
    let binds: Result<Vec<_>, JailError> = contents.binds.iter().map(open).collect();
    let own = Bind {
        path: contents.folder.clone(),
        writable: true,
    };
    let mut binds = binds?;
    binds.push((own, own_folder(root, user)?));
    let device = |name: &&str| device_number(&Path::new("/dev").join(name));
    let numbers: Result<Vec<_>, _> = contents.devices.iter().map(device).collect();
    let numbers = numbers?;

    // This file system ignores the source. It shows the jail's folder to programs outside, such as `kvmprof list`.
    mount(
        Some(root.to_str().unwrap_or("tmpfs")),
        root,
        Some("tmpfs"),
        PLAIN,
        Some(ROOT_OPTIONS),
    )
    .map_err(failed("cannot mount the jail's root over", root))?;
    for (name, number) in contents.devices.iter().zip(numbers) {
        make_device(&inside(root, &Path::new("/dev").join(name)), number, user)?;
    }
    for (bind, source) in &binds {
        bind_mount(bind, source, &inside(root, &bind.path))?;
    }
    let proc = inside(root, Path::new("/proc"));
    folders(&proc)?;
    let flags = PLAIN | libc::MS_NODEV | libc::MS_RDONLY;
    mount(Some("proc"), &proc, Some("proc"), flags, None)
        .map_err(failed("cannot mount the jail's processes at", &proc))?;
    change_root(root)
}

/// The path in the jail at `root` for the host's `path`.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn handle(path: &Path, flags: i32) -> Result<File, JailError> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | flags);
    options.open(path).map_err(failed("cannot open", path))
}

/// The folder may have been replaced since it was checked.
fn own_folder(path: &Path, user: &User) -> Result<File, JailError> {
    let folder = handle(path, libc::O_NOFOLLOW | libc::O_DIRECTORY)?;
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
fn make_device(path: &Path, number: libc::dev_t, user: &User) -> Result<(), JailError> {
    folders(path.parent().unwrap_or(path))?;
    let name = c_path(path)?;
    // SAFETY: the name ends with a zero and lives as long as the call.
    let made = unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o600, number) };
    check(made).map_err(failed("cannot make", path))?;
    chown(path, Some(user.uid()), Some(user.gid())).map_err(failed("cannot give away", path))
}

fn folders(path: &Path) -> Result<(), JailError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o755).create(path);
    made.map_err(failed("cannot make the folder", path))
}

fn bind_mount(bind: &Bind, source: &File, target: &Path) -> Result<(), JailError> {
    let kind = source
        .metadata()
        .map_err(failed("cannot look at", &bind.path))?
        .file_type();
    if !target.exists() {
        if kind.is_dir() {
            folders(target)?;
        } else {
            folders(target.parent().unwrap_or(target))?;
            File::create(target).map_err(failed("cannot make a place for", target))?;
        }
    }
    let refused = |error| failed("cannot mount", &bind.path)(error);
    let place = format!("/proc/self/fd/{}", source.as_raw_fd());
    mount(Some(&place), target, None, libc::MS_BIND, None).map_err(refused)?;
    let mut flags = PLAIN | libc::MS_BIND | libc::MS_REMOUNT;
    // A disk may be a device itself.
    if !kind.is_block_device() && !kind.is_char_device() {
        flags |= libc::MS_NODEV;
    }
    if !bind.writable {
        flags |= libc::MS_RDONLY;
    }
    mount(None, target, None, flags, None).map_err(refused)
}

/// Makes `root` the root, and unmounts the old root.
fn change_root(root: &Path) -> Result<(), JailError> {
    let refused = |error| failed("cannot change the root to", root)(error);
    std::env::set_current_dir(root).map_err(refused)?;
    let here = c".".as_ptr();
    // SAFETY: both are strings that end with a zero. With the same string for both, the old root is mounted over the
    // new one: pivot_root(2).
    let changed = check(unsafe { libc::syscall(libc::SYS_pivot_root, here, here) });
    match changed {
        // SAFETY: as above.
        Ok(()) => check(unsafe { libc::umount2(here, libc::MNT_DETACH) }),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => cover_root(),
        Err(error) => Err(error),
    }
    .map_err(refused)?;
    std::env::set_current_dir("/").map_err(refused)?;
    let flags = PLAIN | libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
    mount(None, Path::new("/"), None, flags, None).map_err(refused)
}

/// Covers the root of an initramfs with the working folder, because it can't be unmounted. Only a process that may
/// change its root (CAP_SYS_CHROOT) could reach what is covered.
fn cover_root() -> io::Result<()> {
    mount(Some("."), Path::new("/"), None, libc::MS_MOVE, None)?;
    // SAFETY: the string ends with a zero.
    check(unsafe { libc::chroot(c".".as_ptr()) })
}

fn mount(
    source: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: libc::c_ulong,
    options: Option<&str>,
) -> io::Result<()> {
    let words = |word: Option<&str>| word.map(CString::new).transpose();
    let (source, kind, options) = (words(source)?, words(kind)?, words(options)?);
    let target = CString::new(target.as_os_str().as_bytes())?;
    let pointer = |word: &Option<CString>| word.as_ref().map_or(ptr::null(), |it| it.as_ptr());
    // SAFETY: each string ends with a zero or is absent, and all live as long as the call.
    check(unsafe {
        libc::mount(
            pointer(&source),
            target.as_ptr(),
            pointer(&kind),
            flags,
            pointer(&options).cast(),
        )
    })
}

fn c_path(path: &Path) -> Result<CString, JailError> {
    CString::new(path.as_os_str().as_bytes()).map_err(failed("cannot use", path))
}

fn check(result: impl Into<i64>) -> io::Result<()> {
    match result.into() {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
