//! Memory with missing pages that are never filled (userfaultfd(2)).

use std::io;

/// `UFFDIO_API` and `UFFDIO_REGISTER` for missing pages (`include/uapi/linux/userfaultfd.h`).
const API: libc::Ioctl = 0xc018_aa3f;
const REGISTER: libc::Ioctl = 0xc020_aa00;

/// Registers the absent pages of this memory as missing: a thread that touches one blocks until the process ends.
///
/// # Errors
/// The host has no userfaultfd, or doesn't support this kind of memory.
///
/// # Safety
/// No code that has to continue may use these pages.
pub unsafe fn never_bring(address: u64, length: u64) -> io::Result<()> {
    let mut api = [0xaa_u64, 0, 0];
    let mut range = [address, length, 1, 0];
    let check = |result: libc::c_long| match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: it takes flags; the structures are of the calls' sizes, and live as long as these. The descriptor stays open.
    unsafe {
        let faults = check(libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC))?;
        let faults = i32::try_from(faults).map_err(io::Error::other)?;
        check(libc::ioctl(faults, API, &raw mut api).into())?;
        check(libc::ioctl(faults, REGISTER, &raw mut range).into())?;
    }
    Ok(())
}
