//! The memory of the hostile VMM's guest.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

/// Memory that the guest may get.
pub struct Memory {
    pub file: File,
    pub address: u64,
    pub length: usize,
}

impl Memory {
    pub fn new(length: usize) -> Self {
        // SAFETY: the name ends with a NUL; a new descriptor is this one's alone.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"kvm-vm".as_ptr(), 0)) };
        file.set_len(length as u64).unwrap();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping at a place that the kernel chooses.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, both, libc::MAP_SHARED, fd, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Self {
            file,
            address: address as u64,
            length,
        }
    }

    /// By the file, which exists whatever has become of the mapping.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    /// Replaces a part of the mapping by the start of another file.
    pub fn replace(&self, at: u64, length: usize, other: &File) {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let (place, fd) = (self.address + at, other.as_raw_fd());
        // SAFETY: nothing in this process refers to this mapping but by system calls.
        let address = unsafe { libc::mmap(place as *mut _, length, both, flags, fd, 0) };
        assert_ne!(address, libc::MAP_FAILED);
    }

    pub fn protect(&self, protection: i32) {
        // SAFETY: nothing in this process refers to this mapping but by system calls.
        let result = unsafe { libc::mprotect(self.address as *mut _, self.length, protection) };
        assert_eq!(result, 0);
    }

    pub fn unmap(&self) {
        // SAFETY: as above.
        let result = unsafe { libc::munmap(self.address as *mut _, self.length) };
        assert_eq!(result, 0);
    }
}
