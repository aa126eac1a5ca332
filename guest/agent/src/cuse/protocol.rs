//! The protocol between the kernel and a server of a character device, over `/dev/cuse` (`include/uapi/linux/fuse.h`, `fs/fuse/cuse.c`).
//! Numbers are in the machine's own byte order.

use kvmprof_abi::errno::Errno;

/// The supported major version of the protocol (`FUSE_KERNEL_VERSION`).
const MAJOR: u32 = 7;
/// The newest supported minor version; every kernel from 5.10 on has at least this one.
const MINOR: u32 = 31;
/// The lowest supported minor version: older ones describe memory for ioctls in another form.
const MINOR_LOWEST: u32 = 16;

/// Maximum number of bytes of one read or write. The kernel has room for 32 pages in a request (`FUSE_DEFAULT_MAX_PAGES_PER_REQ`), and
/// splits longer calls.
pub const MAX_FRAGMENT: usize = 32 * PAGE;
/// A read or write of at most this many bytes is the last of its call, unless the caller's memory was in several pieces: an unaligned
/// buffer makes a request at most a page shorter.
pub const LAST_FRAGMENT: usize = 31 * PAGE;
const PAGE: usize = 4096;

/// Bytes of the buffer into which requests are read. The kernel refuses a buffer that is smaller than the longest possible request.
pub const REQUEST_BUFFER: usize = MAX_FRAGMENT + 2 * PAGE;

const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;

/// In the answer to open: reads and writes bypass the page cache (`FOPEN_DIRECT_IO`), and the file has no position (`FOPEN_NONSEEKABLE`).
const OPEN_FLAGS: u32 = (1 << 0) | (1 << 2);
/// In the flags of init: ioctls may access any memory of the caller (`CUSE_UNRESTRICTED_IOCTL`).
const UNRESTRICTED_IOCTL: u32 = 1 << 0;
/// In the flags of the answer to an ioctl: the kernel has to fetch this memory and ask again (`FUSE_IOCTL_RETRY`).
const IOCTL_RETRY: u32 = 1 << 2;
/// In the flags of an ioctl: its caller is a 32-bit program (`FUSE_IOCTL_COMPAT`).
const IOCTL_COMPAT: u32 = 1 << 0;
/// In the flags of poll: the caller waits and has to be woken up when the file is ready (`FUSE_POLL_SCHEDULE_NOTIFY`).
const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
/// `FUSE_NOTIFY_POLL`.
const NOTIFY_POLL: i32 = 1;

mod opcode {
    pub const FORGET: u32 = 2;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const RELEASE: u32 = 18;
    pub const INTERRUPT: u32 = 36;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const BATCH_FORGET: u32 = 42;
    pub const CUSE_INIT: u32 = 4096;
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The kernel's id of the request, for the answer.
    pub unique: u64,
    /// The thread that made the call, by its id in this process's pid namespace; 0 if it isn't in that namespace.
    pub thread: u32,
    /// The id of that thread's user.
    pub user: u32,
    /// The requested operation.
    pub operation: Operation<'a>,
}

/// A requested operation. A `file` is the number that [`opened`] gave an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// The first request on each channel: agree on a version, and name the device.
    Init {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
    /// Open the device.
    Open,
    /// Read from the device.
    Read {
        /// The open file.
        file: u64,
        /// Number of bytes of this call that have been read before: the kernel splits calls, and each call begins at 0.
        offset: u64,
        /// Maximum number of bytes.
        size: usize,
        /// The file's `O_*` flags as they are now.
        flags: u32,
    },
    /// Write to the device.
    Write {
        /// The open file.
        file: u64,
        /// Number of bytes of this call that have been written before.
        offset: u64,
        /// The bytes to write.
        data: &'a [u8],
    },
    /// Execute a command.
    Ioctl {
        /// The open file.
        file: u64,
        /// The command's number.
        command: u32,
        /// The third argument, zero-extended for 32-bit callers.
        argument: u64,
        /// The contents of the memory that [`ioctl_retry`] asked for.
        data: &'a [u8],
        /// Bytes of the memory to store to, which [`ioctl_retry`] named.
        out_size: usize,
        /// Whether the caller is a 32-bit program.
        compat: bool,
    },
    /// Get the events for which the device is ready.
    Poll {
        /// The open file.
        file: u64,
        /// The kernel's handle for waking up those who wait.
        kernel_handle: u64,
        /// Whether a caller waits.
        notify: bool,
        /// The requested events, `POLL*`.
        events: u32,
    },
    /// Release an open file, whose last descriptor has been closed.
    Release {
        /// The open file.
        file: u64,
    },
    /// Interrupt a request, whose caller has got a signal. This has no answer of its own.
    Interrupt {
        /// The kernel's id of the interrupted request.
        unique: u64,
    },
    /// A notification, which has no answer.
    Notice,
    /// An operation that character devices don't have.
    Unknown,
}

/// Reads fields off the front of a slice.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }
}

impl<'a> Request<'a> {
    /// The request in `bytes`, which one read of the channel returned; `None` if it is malformed.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut header = Fields(bytes);
        let length = header.size()?;
        let code = header.u32()?;
        let unique = header.u64()?;
        let _node = header.u64()?;
        let user = header.u32()?;
        let _group = header.u32()?;
        let thread = header.u32()?;
        let body = bytes.get(IN_HEADER..length)?;
        Some(Self {
            unique,
            thread,
            user,
            operation: decode_operation(code, Fields(body))?,
        })
    }
}

fn decode_operation(code: u32, mut body: Fields<'_>) -> Option<Operation<'_>> {
    Some(match code {
        opcode::CUSE_INIT => Operation::Init {
            major: body.u32()?,
            minor: body.u32()?,
        },
        opcode::OPEN => Operation::Open,
        opcode::READ => {
            let (file, offset, size) = (body.u64()?, body.u64()?, body.size()?);
            let _read_flags = body.u32()?;
            let _lock_owner = body.u64()?;
            let flags = body.u32()?;
            Operation::Read {
                file,
                offset,
                size,
                flags,
            }
        }
        opcode::WRITE => {
            let (file, offset, size) = (body.u64()?, body.u64()?, body.size()?);
            let _rest = body.take::<20>()?;
            Operation::Write {
                file,
                offset,
                data: body.0.get(..size)?,
            }
        }
        opcode::IOCTL => {
            let file = body.u64()?;
            let flags = body.u32()?;
            let command = body.u32()?;
            let argument = body.u64()?;
            let (in_size, out_size) = (body.size()?, body.size()?);
            Operation::Ioctl {
                file,
                command,
                argument,
                data: body.0.get(..in_size)?,
                out_size,
                compat: flags & IOCTL_COMPAT != 0,
            }
        }
        opcode::POLL => {
            let (file, kernel_handle) = (body.u64()?, body.u64()?);
            Operation::Poll {
                file,
                kernel_handle,
                notify: body.u32()? & POLL_SCHEDULE_NOTIFY != 0,
                events: body.u32()?,
            }
        }
        opcode::RELEASE => Operation::Release { file: body.u64()? },
        opcode::INTERRUPT => Operation::Interrupt {
            unique: body.u64()?,
        },
        opcode::FORGET | opcode::BATCH_FORGET => Operation::Notice,
        _ => Operation::Unknown,
    })
}

/// An answer to the request `unique`; with `unique` 0, the notification whose number is `error`.
fn answer(unique: u64, error: i32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(OUT_HEADER + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(OUT_HEADER + body.len());
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&error.to_ne_bytes());
    bytes.extend_from_slice(&unique.to_ne_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// The answer to init; `None` if the kernel's version isn't supported. A `major` of 0 lets the kernel choose one.
pub fn initialized(request: &Request<'_>, name: &str, major: u32, minor: u32) -> Option<Vec<u8>> {
    let Operation::Init {
        major: their_major,
        minor: their_minor,
    } = request.operation
    else {
        return None;
    };
    if their_major != MAJOR || their_minor < MINOR_LOWEST {
        return None;
    }
    let fragment = u32::try_from(MAX_FRAGMENT).ok()?;
    let mut body = words([
        MAJOR,
        MINOR.min(their_minor),
        0,
        UNRESTRICTED_IOCTL,
        fragment,
        fragment,
        major,
        minor,
    ]);
    body.extend_from_slice(&words([0; 10]));
    body.extend_from_slice(format!("DEVNAME={name}\0").as_bytes());
    Some(answer(request.unique, 0, &body))
}

/// The answer to a request that failed.
pub fn failed(unique: u64, errno: Errno) -> Vec<u8> {
    let known = (1..=ERRNO_MAX).contains(&errno.0);
    answer(unique, -if known { errno } else { Errno::EIO }.0, &[])
}

/// The highest errno that the kernel accepts from a server.
const ERRNO_MAX: i32 = 511;

/// The answer to open: the kernel uses the number `file` for the open file from now on.
pub fn opened(unique: u64, file: u64) -> Vec<u8> {
    let mut body = file.to_ne_bytes().to_vec();
    body.extend_from_slice(&words([OPEN_FLAGS, 0]));
    answer(unique, 0, &body)
}

/// The answer to read.
pub fn read(unique: u64, data: &[u8]) -> Vec<u8> {
    answer(unique, 0, data)
}

/// The answer to write; `count` is the number of bytes that were written.
pub fn written(unique: u64, count: usize) -> Vec<u8> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    answer(unique, 0, &words([count, 0]))
}

/// The answer to an ioctl: the return value of ioctl(2), and the data to store in the memory named before.
pub fn ioctl_done(unique: u64, result: i32, data: &[u8]) -> Vec<u8> {
    let mut body = result.to_ne_bytes().to_vec();
    body.extend_from_slice(&words([0; 3]));
    body.extend_from_slice(data);
    answer(unique, 0, &body)
}

/// A piece of the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first address.
    pub address: u64,
    /// Its length, in bytes.
    pub length: usize,
}

/// An answer to an ioctl, with which the kernel sends the ioctl again, with the contents of `reads` and with room for `stores`.
pub fn ioctl_retry(unique: u64, reads: Option<Piece>, stores: Option<Piece>) -> Vec<u8> {
    let count = |piece: Option<Piece>| u32::from(piece.is_some());
    let mut body = words([0, IOCTL_RETRY, count(reads), count(stores)]);
    for piece in reads.into_iter().chain(stores) {
        body.extend_from_slice(&piece.address.to_ne_bytes());
        body.extend_from_slice(&(piece.length as u64).to_ne_bytes());
    }
    answer(unique, 0, &body)
}

/// The answer to poll: the `POLL*` events that are ready.
pub fn polled(unique: u64, events: u32) -> Vec<u8> {
    answer(unique, 0, &words([events, 0]))
}

/// The answer to release.
pub fn released(unique: u64) -> Vec<u8> {
    answer(unique, 0, &[])
}

/// Wakes up those who poll the file with this kernel handle.
pub fn wake_up(kernel_handle: u64) -> Vec<u8> {
    answer(0, NOTIFY_POLL, &kernel_handle.to_ne_bytes())
}

#[cfg(test)]
pub(crate) mod testing {
    //! Requests in the form of a kernel's.

    use super::{IN_HEADER, opcode, words};

    /// A request with a header around `body`.
    pub fn request(code: u32, unique: u64, thread: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(IN_HEADER + body.len()).unwrap();
        let mut bytes = words([length, code]);
        bytes.extend_from_slice(&unique.to_ne_bytes());
        bytes.extend_from_slice(&1_u64.to_ne_bytes());
        bytes.extend_from_slice(&words([1000, 0, thread, 0]));
        bytes.extend_from_slice(body);
        bytes
    }

    /// `CUSE_INIT` of a kernel of this version.
    pub fn init(major: u32, minor: u32) -> Vec<u8> {
        request(opcode::CUSE_INIT, 2, 0, &words([major, minor, 0, 1]))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{init, request};
    use super::*;

    fn decoded(bytes: &[u8]) -> Operation<'_> {
        Request::decode(bytes).unwrap().operation
    }

    #[test]
    fn init_is_answered_by_a_name_and_numbers() {
        let bytes = init(7, 38);
        let reply = initialized(&Request::decode(&bytes).unwrap(), "prf", 240, 255).unwrap();
        assert_eq!(reply.len(), OUT_HEADER + 72 + b"DEVNAME=prf\0".len());
        let word = |at: usize| u32::from_ne_bytes(*reply[at..].first_chunk().unwrap());
        assert_eq!(word(0) as usize, reply.len());
        assert_eq!([word(16), word(20), word(28)], [7, 31, 1]);
        assert_eq!([word(40), word(44)], [240, 255]);
        assert!(reply.ends_with(b"DEVNAME=prf\0"));
        for other in [init(8, 0), init(7, 11)] {
            assert!(initialized(&Request::decode(&other).unwrap(), "prf", 0, 0).is_none());
        }
    }

    #[test]
    fn reads_and_writes_are_decoded() {
        let mut body = 5_u64.to_ne_bytes().to_vec();
        body.extend_from_slice(&131_072_u64.to_ne_bytes());
        body.extend_from_slice(&words([3, 0, 0, 0, 0o4000, 0]));
        let read = request(opcode::READ, 4, 77, &body);
        let caller = Request::decode(&read).map(|read| (read.thread, read.user));
        assert_eq!(caller, Some((77, 1000)));
        let expected = Operation::Read {
            file: 5,
            offset: 131_072,
            size: 3,
            flags: 0o4000,
        };
        assert_eq!(decoded(&read), expected);

        body.extend_from_slice(b"abc");
        let expected = Operation::Write {
            file: 5,
            offset: 131_072,
            data: b"abc",
        };
        assert_eq!(decoded(&request(opcode::WRITE, 4, 77, &body)), expected);
        body.pop();
        assert!(Request::decode(&request(opcode::WRITE, 4, 77, &body)).is_none());
    }

    #[test]
    fn ioctls_are_decoded() {
        let mut body = 5_u64.to_ne_bytes().to_vec();
        body.extend_from_slice(&words([2, 0x5010]));
        body.extend_from_slice(&0xffff_ffff_u64.to_ne_bytes());
        body.extend_from_slice(&words([4, 88, 9]));
        let bytes = request(opcode::IOCTL, 6, 1, &body);
        let data = &9_u32.to_ne_bytes();
        let expected = Operation::Ioctl {
            file: 5,
            command: 0x5010,
            argument: 0xffff_ffff,
            data,
            out_size: 88,
            // Unrestricted only.
            compat: false,
        };
        assert_eq!(decoded(&bytes), expected);

        let piece = Piece {
            address: 0x1000,
            length: 4,
        };
        let retry = ioctl_retry(6, Some(piece), None);
        assert_eq!(retry.len(), OUT_HEADER + 16 + 16);
        assert_eq!(retry[20..28], words([IOCTL_RETRY, 1])[..]);
    }

    #[test]
    fn short_requests_are_refused() {
        let whole = request(opcode::RELEASE, 8, 1, &3_u64.to_ne_bytes());
        assert_eq!(decoded(&whole), Operation::Release { file: 3 });
        for length in 0..whole.len() {
            assert!(Request::decode(&whole[..length]).is_none(), "{length}");
        }
        let empty = request(opcode::POLL, 8, 1, &[]);
        assert!(Request::decode(&empty).is_none());
    }

    #[test]
    fn an_answer_has_only_errnos_that_the_kernel_accepts() {
        let error = |errno: i32| {
            let bytes = failed(1, Errno(errno));
            i32::from_ne_bytes(*bytes[4..].first_chunk().unwrap())
        };
        assert_eq!(error(16), -16);
        for errno in [0, -5, i32::MIN, 512] {
            assert_eq!(error(errno), -5);
        }
    }
}
