//! The whole of a write(2) of which the kernel passes a piece at a time.
//!
//! A table of prf is one write(2), and its errors are those of the whole table. CUSE passes it on in pieces of at most 32 pages, and only
//! the first piece can make the call fail: once a piece has been taken, the program gets a short count instead of an errno. Tables of real
//! kernels are larger than a piece, so a program would get a short count for each of ENOSPC, E2BIG, EBUSY and EINVAL, and a table that ends
//! with a full piece would be loaded late. So the caller's memory is read with the first piece. Reads need nothing like it.

use std::fs;
use std::time::Duration;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::MAX_DATA;

use super::InspectionResult;
use super::memory::{MemoryRange, memory};

/// Maximum number of attempts with a thread that doesn't sleep in its call yet.
const ATTEMPTS_MAX: u32 = 40;
/// Time between two of these attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(1);

/// Maximum number of buffers of one call (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// The numbers of write and pwrite64 (`arch/x86/entry/syscalls`) of 64-bit and of 32-bit programs. The 32-bit numbers are those of calls
/// that don't write in 64-bit programs, so no call is mistaken for a write.
const WRITE: [u64; 4] = [1, 18, 4, 181];
/// The numbers of writev, pwritev and pwritev2 of 64-bit programs.
const WRITEV: [u64; 3] = [20, 296, 328];
/// Bytes of each of the two words of a `struct iovec`.
const WORD: usize = 8;

/// The buffer of a write, from its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffer {
    Single(MemoryRange),
    /// An array of `struct iovec`.
    Array(MemoryRange),
}

/// The bytes that the thread's current write(2) writes.
///
/// This waits until the thread sleeps and its memory can be read, which a hostile caller can delay forever.
pub fn whole_write(thread: u32) -> InspectionResult {
    let parts = parts(thread, buffer(thread)?)?;
    let lengths = parts.iter().map(|part| part.length);
    let total = lengths.fold(0, usize::saturating_add);
    if total > MAX_DATA {
        // More bytes than any table has.
        return Some(Err(Errno::ENOSPC));
    }
    match memory(thread, &parts, total) {
        // The memory may not be read.
        Err(errno) if errno != Errno::EFAULT => None,
        known => Some(known),
    }
}

/// The buffer of the thread's system call, from `/proc/THREAD/syscall` (proc_pid_syscall(5)).
fn buffer(thread: u32) -> Option<Buffer> {
    for _ in 0..ATTEMPTS_MAX {
        let text = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        if !text.starts_with("running") {
            return parse(&text);
        }
        std::thread::sleep(ATTEMPT_PAUSE);
    }
    None
}

fn parse(text: &str) -> Option<Buffer> {
    let mut words = text.split_ascii_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let mut argument = || usize::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (_descriptor, address, length) = (argument()?, argument()?, argument()?);
    if WRITE.contains(&number) {
        Some(Buffer::Single(MemoryRange { address, length }))
    } else if WRITEV.contains(&number) && length <= PIECES_MAX {
        let length = length * 2 * WORD;
        Some(Buffer::Array(MemoryRange { address, length }))
    } else {
        None
    }
}

/// The parts of the thread's buffer.
fn parts(thread: u32, buffer: Buffer) -> Option<Vec<MemoryRange>> {
    let array = match buffer {
        Buffer::Single(part) => return Some(vec![part]),
        Buffer::Array(array) => array,
    };
    let bytes = memory(thread, &[array], array.length).ok()?;
    let pairs = bytes.chunks_exact(2 * WORD).map(|pair| {
        let (address, length) = pair.split_first_chunk::<WORD>()?;
        Some(MemoryRange {
            address: usize::from_ne_bytes(*address),
            length: usize::from_ne_bytes(*length.first_chunk()?),
        })
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_recognised() {
        let text = "1 0x3 0x7f0000001000 0x200 0x0 0x0 0x0 0x7ffd5 0x7f12\n";
        let part = |length| MemoryRange {
            address: 0x7f00_0000_1000,
            length,
        };
        assert_eq!(parse(text), Some(Buffer::Single(part(0x200))));
        let number = |number| text.replacen('1', number, 1);
        assert_eq!(parse(&number("4")), Some(Buffer::Single(part(0x200))));
        assert_eq!(parse(&number("20")), Some(Buffer::Array(part(0x2000))));
        assert_eq!(parse(&number("20").replace("0x200 ", "0x401 ")), None);
    }

    #[test]
    fn other_system_calls_are_unknown() {
        let others = ["0 0x3 0x1000 0x2", "39 0x3 0x1000 0x2"];
        let short = ["", "running", "-1 0x7ffd5 0x7f12", "1", "1 3 4 5"];
        for text in others.into_iter().chain(short) {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(whole_write(u32::MAX), None);
    }

    fn part_of<T>(values: &[T]) -> MemoryRange {
        MemoryRange {
            address: values.as_ptr().addr(),
            length: size_of_val(values),
        }
    }

    #[test]
    fn parts_of_memory_are_joined() {
        let us = std::process::id();
        let (first, second) = ([1_u8; 100], [2_u8; 50]);
        let found = [part_of(&first), part_of(&second)];
        let bytes = memory(us, &found, 150).unwrap();
        assert_eq!(bytes, [&first[..], &second[..]].concat());
        let nowhere = MemoryRange {
            address: 0,
            length: 1,
        };
        assert_eq!(memory(us, &[nowhere], 1), Err(Errno::EFAULT));
        assert_eq!(memory(us, &[found[0], nowhere], 101), Err(Errno::EFAULT));

        let array = found.map(|part| [part.address, part.length]).concat();
        let at = part_of(&array);
        assert_eq!(parts(us, Buffer::Array(at)).unwrap(), found);
        let nowhere = MemoryRange { address: 0, ..at };
        assert_eq!(parts(us, Buffer::Array(nowhere)), None);
    }
}
