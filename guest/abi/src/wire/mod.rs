//! The framed protocol of the host socket and of the console ports.
//!
//! Little-endian, length-prefixed frames; `WIRE.md` beside this crate is the specification, and
//! a test holds its dumps against this code. Everything here is a pure function over slices:
//! nothing allocates, nothing panics, and a length is checked before a caller could act on it.

mod error;
mod header;
mod reply;
mod request;

pub use error::WireError;
pub use header::{HEADER_LENGTH, Kind};
pub use reply::{HelloReply, Reply, ReplyFrame};
pub use request::{Request, RequestFrame};

/// First bytes of every connection: the magic of the hello.
pub const MAGIC: [u8; 8] = *b"kvmprof\0";

/// The one version of the protocol that there is.
pub const VERSION: u16 = 1;

/// Bytes of data in one read or write, at most. A prf read has to return the whole table (N
/// addresses, N + 2 counters, 8 bytes each) in one piece: 4 MiB hold 262,143 addresses, about
/// twice the text symbols of a distribution's kernel with its modules.
pub const MAX_DATA: usize = 4 << 20;

/// Bytes of data that an ioctl takes or gives back, at most: the largest is a ledger for each
/// of 64 vCPUs, some 5 KiB.
pub const MAX_IOCTL_DATA: usize = 64 << 10;

/// Bytes of the body of a hello or of its reply, at most; what is beyond the fields that the
/// receiver knows is ignored.
pub const MAX_HELLO: usize = 256;

/// Bytes of the longest body: a write's flags and its data.
pub const MAX_BODY: usize = 4 + MAX_DATA;

/// Bytes of the longest frame.
pub const MAX_FRAME: usize = HEADER_LENGTH + MAX_BODY;

/// Requests of one connection that wait for an answer, at most.
pub const MAX_OUTSTANDING: usize = 256;

/// Devices that one connection has open, at most.
pub const MAX_HANDLES: usize = 256;

/// Device numbers for [`Request::Open`].
pub mod device {
    /// The program counter sampling device; minor 0; exclusive.
    pub const PCS: u16 = 1;
    /// The kernel profiler; the minor is a vCPU, or 255 for all of them together.
    pub const PRF: u16 = 2;
    /// What `kvmprof status` prints, as one JSON object: a snapshot taken at open; minor 0.
    pub const STATUS: u16 = 3;
    /// Lines `pid\ttid\tcomm\n`, one for each thread of the guest: a snapshot taken at open; minor 0.
    pub const PROCESSES: u16 = 4;
    /// The guest kernel's symbols at their real addresses, lines `address type name\n`, those of its
    /// modules `address type name\t[module]\n`, as `/proc/kallsyms` has them: a snapshot taken at open; minor 0; ENXIO while they aren't known.
    pub const KALLSYMS: u16 = 5;
    /// A recording of every tick, of its own for each open; minor 0.
    pub const RECORDER: u16 = 6;
}

/// In the flags of open, read and poll: answer EAGAIN (poll: what is ready now) instead of waiting.
pub const NONBLOCKING: u32 = 1;

/// Poll event: a read would return at once.
pub const READABLE: u32 = 1;
/// Poll event: a write would return at once.
pub const WRITABLE: u32 = 2;
/// Poll event: the device has gone; always reported, asked for or not.
pub const HANG_UP: u32 = 4;
