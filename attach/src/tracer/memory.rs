//! The memory of a thread of another process, by the thread's id, whatever program it executes.

use std::io;

use libc::{c_void, iovec, pid_t};

/// Fills the buffer of each of `parts` from its address.
///
/// # Errors
/// process_vm_readv(2) fails; with EFAULT if a part of the memory can't be read.
pub fn read<const PARTS: usize>(tid: pid_t, parts: [(u64, &mut [u8]); PARTS]) -> io::Result<()> {
    let remote = parts
        .each_ref()
        .map(|(address, buffer)| remote(*address, buffer.len()));
    let local = parts.map(|(_, buffer)| iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    });
    let length = local.iter().map(|part| part.iov_len).sum();
    let parts = PARTS as libc::c_ulong;
    // SAFETY: `local` are buffers that are valid to write to; the kernel checks the other process's addresses.
    let read =
        unsafe { libc::process_vm_readv(tid, local.as_ptr(), parts, remote.as_ptr(), parts, 0) };
    whole(read, length)
}

/// Writes `bytes` below the stack of a stopped thread.
///
/// # Errors
/// process_vm_writev(2) fails; with EFAULT if a part of the memory can't be written.
pub fn write(tid: pid_t, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = remote(address, bytes.len());
    let (local, remote) = (&raw const local, &raw const remote);
    // SAFETY: `local` is a buffer that is valid to read; the kernel checks the other process's address, which is memory
    // below the stack of a stopped thread, where nobody keeps anything.
    let written = unsafe { libc::process_vm_writev(tid, local, 1, remote, 1, 0) };
    whole(written, bytes.len())
}

fn remote(address: u64, length: usize) -> iovec {
    iovec {
        iov_base: address as *mut c_void,
        iov_len: length,
    }
}

fn whole(done: isize, length: usize) -> io::Result<()> {
    match usize::try_from(done) {
        Ok(done) if done == length => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_reads_and_writes_work() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let target = [1_u8, 2, 3, 4];
        let address = std::hint::black_box(&target).as_ptr() as u64;
        let (mut first, mut last) = ([0; 1], [0; 2]);
        read(own, [(address, &mut first), (address + 2, &mut last)]).unwrap();
        assert_eq!((first, last), ([1], [3, 4]));
        let mut place = [0_u8; 4];
        write(own, place.as_mut_ptr() as u64, &target).unwrap();
        assert_eq!(std::hint::black_box(place), target);
        // Nothing is mapped there.
        let error = read(own, [(address, &mut first), (8, &mut last)]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
