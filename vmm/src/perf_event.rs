//! Events of the host's kernel that count for one thread (perf_event_open(2)).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

/// `PERF_TYPE_HARDWARE` and `PERF_TYPE_SOFTWARE` (`include/uapi/linux/perf_event.h`).
pub const HARDWARE: u32 = 0;
pub const SOFTWARE: u32 = 1;
/// Members of the attributes' bit field, by their order there.
pub const DISABLED: u64 = 1;
pub const EXCLUDE_HOST: u64 = 1 << 19;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// The first published form of `struct perf_event_attr` (`include/uapi/linux/perf_event.h`, PERF_ATTR_SIZE_VER0):
/// later fields have no part in what is counted here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// [`HARDWARE`] or [`SOFTWARE`].
    pub kind: u32,
    size: u32,
    /// Which one of that kind.
    pub config: u64,
    /// Overflows after so much; 0: never.
    pub sample_period: u64,
    sample_type: u64,
    read_format: u64,
    /// [`DISABLED`], [`EXCLUDE_HOST`].
    pub flags: u64,
    /// Wakes its reader up after so many overflows.
    pub wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

impl Attributes {
    /// Those of an event that counts from the start, and never overflows.
    pub fn new(kind: u32, config: u64) -> Self {
        Self {
            kind,
            size: u32::try_from(size_of::<Self>()).unwrap_or_default(),
            config,
            ..Self::default()
        }
    }

    /// Opens the event for thread `tid` of this process, on any processor; 0 is the calling thread.
    ///
    /// # Errors
    /// What perf_event_open(2) says: EACCES or EPERM where the host forbids it, ENOENT where it hasn't got it.
    pub fn open(&self, tid: libc::pid_t) -> io::Result<File> {
        // SAFETY: the attributes are valid for the size they state; the first -1 means any processor, the second one no
        // group.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                std::ptr::from_ref(self),
                tid,
                -1,
                -1,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        let descriptor = i32::try_from(descriptor).unwrap_or(-1);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        Ok(unsafe { File::from_raw_fd(descriptor) })
    }
}

/// What `event` has counted; `None` if the kernel won't say.
pub fn count(mut event: &File) -> Option<u64> {
    let mut count = [0; 8];
    event.read_exact(&mut count).ok()?;
    Some(u64::from_ne_bytes(count))
}
