//! What the thread behind a request is doing: the kernel splits its call, and shows only a part.

use std::fs;
use std::io;
use std::time::Duration;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::MAX_DATA;

use crate::cuse::protocol::Piece;

/// Which way a call moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// read(2) and its kin.
    Read,
    /// write(2) and its kin.
    Write,
}

/// The whole of a call of which the kernel has shown the first piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeCall {
    /// Bytes of its buffer.
    pub total: usize,
    /// What is in the buffer, if it is a write of more than the kernel has shown, and of no more than
    /// the wire takes; EFAULT when not all of it is there.
    pub data: Option<Result<Vec<u8>, Errno>>,
}

/// How often a thread is looked at until it has gone to sleep in its call.
const ATTEMPTS_MAX: u32 = 40;
/// How long to wait before it is looked at again.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(1);

/// Pieces that one call can have (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// A call, with the registers that tell of its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// One piece: address and length.
    Single(u64, u64),
    /// An array of `struct iovec`: address, number, and bytes of each of their two words.
    Array(u64, u64, usize),
}

/// The system calls' numbers (`arch/x86/entry/syscalls`). The 32-bit numbers are of 64-bit calls that
/// don't transfer data, so none is mistaken.
struct Numbers {
    single: [u64; 4],
    array: [u64; 3],
    array_32: [u64; 3],
}

impl Direction {
    fn numbers(self) -> Numbers {
        match self {
            Self::Read => Numbers {
                single: [0, 17, 3, 180],
                array: [19, 295, 327],
                array_32: [145, 333, 378],
            },
            Self::Write => Numbers {
                single: [1, 18, 4, 181],
                array: [20, 296, 328],
                array_32: [146, 334, 379],
            },
        }
    }
}

/// The call that a thread is in, of which the kernel has shown `shown` bytes; `None` when it isn't such
/// a call, or nothing can be learnt.
///
/// It takes as long as the thread takes to go to sleep, and its memory to appear: for ever, if that is
/// what it is made for.
pub fn whole_call(thread: u32, direction: Direction, shown: usize) -> Option<WholeCall> {
    let pieces = buffer(thread, direction)?;
    let total = pieces
        .iter()
        .fold(0, |total: usize, piece| total.saturating_add(piece.length));
    let more = direction == Direction::Write && total > shown && total <= MAX_DATA;
    let data = more.then(|| memory(thread, &pieces));
    Some(WholeCall { total, data })
}

/// The buffer of the thread's call, as `/proc/THREAD/syscall` tells (proc_pid_syscall(5)).
fn buffer(thread: u32, direction: Direction) -> Option<Vec<Piece>> {
    for _ in 0..ATTEMPTS_MAX {
        let text = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        if !text.starts_with("running") {
            return match parse(&text, direction)? {
                Transfer::Single(address, length) => Some(vec![piece(address, length)?]),
                Transfer::Array(address, count, word) => pieces(thread, address, count, word),
            };
        }
        std::thread::sleep(ATTEMPT_PAUSE);
    }
    None
}

fn piece(address: u64, length: u64) -> Option<Piece> {
    let length = usize::try_from(length).ok()?;
    Some(Piece { address, length })
}

fn parse(text: &str, direction: Direction) -> Option<Transfer> {
    let mut words = text.split_ascii_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (_descriptor, address, length) = (argument()?, argument()?, argument()?);
    let numbers = direction.numbers();
    if numbers.single.contains(&number) {
        Some(Transfer::Single(address, length))
    } else if numbers.array.contains(&number) {
        Some(Transfer::Array(address, length, 8))
    } else if numbers.array_32.contains(&number) {
        Some(Transfer::Array(address, length, 4))
    } else {
        None
    }
}

/// The pieces in the thread's array of `count` times two words.
fn pieces(thread: u32, address: u64, count: u64, word: usize) -> Option<Vec<Piece>> {
    let count = usize::try_from(count).ok()?;
    if count > PIECES_MAX {
        return None;
    }
    let array = Piece {
        address,
        length: count * 2 * word,
    };
    let bytes = memory(thread, &[array]).ok()?;
    let number = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide.get_mut(..word)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(wide))
    };
    let pairs = bytes.chunks_exact(2 * word).map(|pair| {
        let (address, length) = pair.split_at(word);
        piece(number(address)?, number(length)?)
    });
    pairs.collect()
}

/// The contents of pieces of the thread's memory, one after the other.
///
/// # Errors
/// EFAULT when not all of it is there, another when it may not be looked into.
fn memory(thread: u32, pieces: &[Piece]) -> Result<Vec<u8>, Errno> {
    let total = pieces.iter().map(|piece| piece.length).sum();
    let mut bytes = vec![0; total];
    let mut done = 0;
    for piece in pieces {
        let end = done + piece.length;
        let part = bytes.get_mut(done..end).ok_or(Errno::EFAULT)?;
        if !part.is_empty() && read_memory(thread, piece.address, part)? != piece.length {
            return Err(Errno::EFAULT);
        }
        done = end;
    }
    Ok(bytes)
}

/// Reads the thread's memory at `address` and returns how many bytes there were
/// (process_vm_readv(2)).
fn read_memory(thread: u32, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let thread = i32::try_from(thread).map_err(|_| Errno::EINVAL)?;
    let address = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: buffer.len(),
    };
    // SAFETY: `local` is `buffer`, which nobody else uses meanwhile; `remote` is an address of another
    // process, which the kernel checks.
    let count =
        unsafe { libc::process_vm_readv(thread, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(count).map_err(|_| {
        let error = io::Error::last_os_error();
        error.raw_os_error().map_or(Errno::EIO, Errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_recognised() {
        let text = "1 0x3 0x7f0000001000 0x80000 0x0 0x0 0x0 0x7ffd5 0x7f12\n";
        let call = Some(Transfer::Single(0x7f00_0000_1000, 0x8_0000));
        assert_eq!(parse(text, Direction::Write), call);
        assert_eq!(parse(text, Direction::Read), None);
        let number = |number| text.replacen('1', number, 1);
        assert_eq!(parse(&number("4"), Direction::Write), call);
        let array = |word| Some(Transfer::Array(0x7f00_0000_1000, 0x8_0000, word));
        assert_eq!(parse(&number("20"), Direction::Write), array(8));
        assert_eq!(parse(&number("145"), Direction::Read), array(4));
    }

    #[test]
    fn other_texts_are_unknown() {
        for text in [
            "",
            "running",
            "-1 0x7ffd5 0x7f12",
            "39 0x3 0x1000 0x2",
            "0",
            "0 3 4 5",
        ] {
            assert_eq!(parse(text, Direction::Read), None, "{text:?}");
        }
        assert_eq!(whole_call(u32::MAX, Direction::Read, 1), None);
    }

    fn piece_of<T>(values: &[T]) -> Piece {
        Piece {
            address: values.as_ptr().addr() as u64,
            length: size_of_val(values),
        }
    }

    #[test]
    fn memory_is_put_together_from_its_pieces() {
        let us = std::process::id();
        let (first, second) = ([1_u8; 100], [2_u8; 50]);
        let found = [piece_of(&first), piece_of(&second)];
        let bytes = memory(us, &found).unwrap();
        assert_eq!(bytes, [&first[..], &second[..]].concat());
        let nowhere = Piece {
            address: 0,
            length: 1,
        };
        assert_eq!(memory(us, &[nowhere]), Err(Errno::EFAULT));

        let array: Vec<u64> = found
            .iter()
            .flat_map(|piece| [piece.address, piece.length as u64])
            .collect();
        let at = piece_of(&array).address;
        assert_eq!(pieces(us, at, 2, 8).unwrap(), found);
        assert_eq!(pieces(us, at, 1025, 8), None);
        assert_eq!(pieces(us, 0, 2, 8), None);
    }
}
