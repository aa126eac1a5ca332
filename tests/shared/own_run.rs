//! A separate folder `/run` for a test, so that no other kvmprof of this host is found.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Has the command find sockets with names in `folder/kvmprof`, for any user: root's are in `/run/kvmprof`, so the command has a mount namespace in
/// which `folder` is `/run`.
pub fn with_own_run(command: &mut Command, folder: &Path) {
    command.env("XDG_RUNTIME_DIR", folder);
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let folder = CString::new(folder.as_os_str().as_bytes()).expect("a path");
    let enter = move || {
        let none = std::ptr::null();
        let private = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: plain system calls; the texts end with a null byte, and the kernel ignores what is null.
        let done = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
                && libc::mount(
                    folder.as_ptr(),
                    c"/run".as_ptr(),
                    none,
                    libc::MS_BIND,
                    none.cast(),
                ) == 0
        };
        if done {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: the closure makes system calls alone, and allocates nothing.
    unsafe { command.pre_exec(enter) };
}
