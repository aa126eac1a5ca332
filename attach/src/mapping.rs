//! Memory that this process shares with the host's kernel or with another process.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// A shared mapping, which is there until this is dropped. Its contents may change at any time.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the whole process, and this is its only owner.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`, or new memory without one, for this `access` (PROT_* of mmap(2)).
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn shared(
        file: Option<BorrowedFd<'_>>,
        bytes: usize,
        access: libc::c_int,
    ) -> io::Result<Self> {
        let (descriptor, flags) = match file {
            Some(file) => (file.as_raw_fd(), libc::MAP_SHARED),
            None => (-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS),
        };
        let place = std::ptr::null_mut();
        // SAFETY: a new mapping at a place that the kernel chooses; nothing of this process is changed.
        let address = unsafe { libc::mmap(place, bytes, access, flags, descriptor, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast());
        let address = address.ok_or_else(|| io::Error::other("it is mapped at address 0"))?;
        Ok(Self { address, bytes })
    }

    /// Its first byte, which is valid as long as `self` lives.
    pub fn start(&self) -> *mut u8 {
        self.address.as_ptr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `shared` with this length, and isn't used any more by this process.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}
