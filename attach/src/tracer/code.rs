//! The instructions of a process's own code with which its threads enter system calls for the tracer.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use libc::pid_t;
use memchr::memmem;

use super::memory;
use crate::process_mappings::{MAX_BYTES, ProcessMapping, list};

/// `mov $15, %rax; syscall`: rt_sigreturn(2). The C library makes signal handlers return to these instructions.
const SIGNAL_RETURN: &[u8] = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05";
/// Maximum number of bytes of a process's code that are searched.
const MAX_CODE: u64 = 512 << 20;
/// The longest mapping that is read at once, in bytes.
const MAX_MAPPING: u64 = 128 << 20;

/// Why a process can't be made to do system calls.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// Its memory can't be read.
    #[error("The memory of process {pid} can't be read: {source}")]
    Unreadable {
        /// The process.
        pid: i32,
        /// The system's answer.
        source: io::Error,
    },
    /// It has no such instructions.
    #[error(
        "The code of process {pid} has no instructions by which its vCPUs' threads could be asked for their registers: is \
         its C library neither glibc nor musl?"
    )]
    Missing {
        /// The process.
        pid: i32,
    },
}

/// The address of the instructions in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadCode {
    /// The instructions that do rt_sigreturn(2).
    pub(super) signal_return: u64,
}

impl ThreadCode {
    /// Looks for the instructions in the code of process `pid`.
    ///
    /// # Errors
    /// The process's memory can't be read, or they aren't there.
    pub fn find(pid: i32) -> Result<Self, CodeError> {
        let unreadable = |source| CodeError::Unreadable { pid, source };
        let mappings = list(pid, MAX_BYTES).map_err(unreadable)?;
        let memory = fs::File::open(format!("/proc/{pid}/mem")).map_err(unreadable)?;
        let mut left = MAX_CODE;
        for ProcessMapping { range, .. } in ProcessMapping::executable(&mappings) {
            let length = range.end - range.start;
            if length > left.min(MAX_MAPPING) {
                continue;
            }
            left -= length;
            let mut code = vec![0; usize::try_from(length).unwrap_or_default()];
            // Some mappings can't be read, such as vsyscall's.
            if memory.read_exact_at(&mut code, range.start).is_err() {
                continue;
            }
            let offset = memmem::find(&code, SIGNAL_RETURN);
            if let Some(signal_return) =
                offset.and_then(|offset| range.start.checked_add(offset as u64))
            {
                return Ok(Self { signal_return });
            }
        }
        Err(CodeError::Missing { pid })
    }

    /// The address behind their `syscall`.
    pub(super) fn behind(&self) -> u64 {
        self.signal_return.wrapping_add(SIGNAL_RETURN.len() as u64)
    }

    /// Whether a thread that executes these instructions can be at this address.
    pub(super) fn has(&self, address: u64) -> bool {
        (self.signal_return..=self.behind()).contains(&address)
    }

    /// Whether the program that thread `tid` executes has the instructions at this address. This takes about 2 us.
    pub(super) fn is_there(&self, tid: pid_t) -> bool {
        let mut signal_return = [0; SIGNAL_RETURN.len()];
        let read = memory::read(tid, [(self.signal_return, &mut signal_return)]);
        read.is_ok() && signal_return == *SIGNAL_RETURN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_the_instructions() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let code = ThreadCode::find(pid).unwrap();
        let memory = fs::File::open("/proc/self/mem").unwrap();
        let mut bytes = [0; 9];
        memory
            .read_exact_at(&mut bytes, code.signal_return)
            .unwrap();
        assert_eq!(bytes, SIGNAL_RETURN);
        assert!(code.is_there(pid));
        // Nothing is mapped at 8.
        for signal_return in [code.signal_return + 1, 8] {
            assert!(!ThreadCode { signal_return }.is_there(pid));
        }
    }

    #[test]
    fn an_ended_process_causes_no_panic() {
        let error = ThreadCode::find(i32::MAX).unwrap_err();
        assert!(matches!(error, CodeError::Unreadable { .. }), "{error}");
    }
}
