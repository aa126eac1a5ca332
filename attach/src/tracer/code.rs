//! Instructions of a process's own code, which its threads execute to do system calls for the tracer.

use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use libc::pid_t;
use memchr::memmem;

use super::memory;

/// `syscall; ret`: the end of each function of a C library that can't fail, such as getpid(2).
const SYSTEM_CALL: &[u8] = b"\x0f\x05\xc3";
/// `mov $15, %rax; syscall`: rt_sigreturn(2). The C library makes signal handlers return to these instructions.
const SIGNAL_RETURN: &[u8] = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05";
/// Maximum number of bytes of a process's code that are searched.
const MAX_CODE: u64 = 512 << 20;
/// Maximum number of bytes of the list of mappings that are read.
const MAX_MAPS: u64 = 16 << 20;
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

/// The addresses of the instructions in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadCode {
    /// A `syscall` that a `ret` follows.
    pub(super) system_call: u64,
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
        let mut maps = Vec::new();
        fs::File::open(format!("/proc/{pid}/maps"))
            .and_then(|file| file.take(MAX_MAPS).read_to_end(&mut maps))
            .map_err(unreadable)?;
        let memory = fs::File::open(format!("/proc/{pid}/mem")).map_err(unreadable)?;
        let (mut system_call, mut signal_return) = (None, None);
        let mut left = MAX_CODE;
        for range in executable(&maps) {
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
            let find = |instructions| {
                let offset = memmem::find(&code, instructions)?;
                range.start.checked_add(offset as u64)
            };
            system_call = system_call.or_else(|| find(SYSTEM_CALL));
            signal_return = signal_return.or_else(|| find(SIGNAL_RETURN));
            if let (Some(system_call), Some(signal_return)) = (system_call, signal_return) {
                return Ok(Self {
                    system_call,
                    signal_return,
                });
            }
        }
        Err(CodeError::Missing { pid })
    }

    /// Whether the program that thread `tid` executes has the instructions at these addresses. This takes about 2 us.
    pub(super) fn is_there(&self, tid: pid_t) -> bool {
        let mut system_call = [0; SYSTEM_CALL.len()];
        let mut signal_return = [0; SIGNAL_RETURN.len()];
        let read = memory::read(
            tid,
            [
                (self.system_call, &mut system_call),
                (self.signal_return, &mut signal_return),
            ],
        );
        read.is_ok() && system_call == *SYSTEM_CALL && signal_return == *SIGNAL_RETURN
    }
}

/// The executable mappings in the lines of `/proc/PID/maps` (proc(5)).
fn executable(maps: &[u8]) -> impl Iterator<Item = Range<u64>> {
    maps.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = str::from_utf8(line.get(..line.len().min(80))?).ok()?;
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let is_executable = fields.next()?.as_bytes().get(2) == Some(&b'x');
        let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).ok());
        let range = start?..end?;
        (is_executable && range.start < range.end).then_some(range)
    })
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
        memory.read_exact_at(&mut bytes, code.system_call).unwrap();
        assert_eq!(bytes[..3], *SYSTEM_CALL);
        assert!(code.is_there(pid));
        for other in [
            ThreadCode {
                system_call: code.system_call + 1,
                ..code
            },
            ThreadCode {
                signal_return: code.signal_return + 1,
                ..code
            },
            // Nothing is mapped there.
            ThreadCode {
                signal_return: 8,
                ..code
            },
        ] {
            assert!(!other.is_there(pid));
        }
    }

    #[test]
    fn only_executable_mappings_are_searched() {
        let maps = b"1000-2000 r--p 0 0:0 0 /x\n2000-3000 r-xp 0 0:0 0 /x y\nzz-1 r-xp\n\n5000-4000 r-xp 0 0:0 0\n";
        let mut ranges = executable(maps);
        assert_eq!((ranges.next(), ranges.next()), (Some(0x2000..0x3000), None));
    }

    #[test]
    fn a_process_that_is_gone_is_no_panic() {
        let error = ThreadCode::find(i32::MAX).unwrap_err();
        assert!(matches!(error, CodeError::Unreadable { .. }), "{error}");
    }
}
