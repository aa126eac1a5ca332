//! Another process's memory.

use std::io;

use kvmprof_abi::errno::Errno;

/// A part of another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryRange {
    pub address: usize,
    pub length: usize,
}

/// The contents of parts of the thread's memory, concatenated, `total` bytes together (process_vm_readv(2)).
///
/// # Errors
/// EFAULT if a part isn't mapped, other errors if the memory may not be read.
pub(super) fn memory(thread: u32, parts: &[MemoryRange], total: usize) -> Result<Vec<u8>, Errno> {
    let thread = i32::try_from(thread).map_err(|_| Errno::EINVAL)?;
    let mut bytes = vec![0_u8; total];
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let remote: Vec<libc::iovec> = parts
        .iter()
        .map(|part| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(part.address),
            iov_len: part.length,
        })
        .collect();
    let count = libc::c_ulong::try_from(remote.len()).map_err(|_| Errno::EINVAL)?;
    let (local, remote) = (&raw const local, remote.as_ptr());
    // SAFETY: `local` is `bytes`, which nobody else uses meanwhile, and `remote` has `count` elements. The latter are addresses in another
    // process, which the kernel checks.
    let read = unsafe { libc::process_vm_readv(thread, local, 1, remote, count, 0) };
    match usize::try_from(read) {
        Ok(read) if read == total => Ok(bytes),
        Ok(_) => Err(Errno::EFAULT),
        Err(_) => {
            let error = io::Error::last_os_error();
            Err(error.raw_os_error().map_or(Errno::EIO, Errno))
        }
    }
}
