//! The framed protocol of the host socket and of the console ports.
//!
//! Frames are little-endian and length-prefixed. `WIRE.md` beside this crate is the specification, and a test compares
//! its dumps with this code. All functions are pure functions over slices: they don't allocate or panic, and check
//! lengths before a caller uses them.

mod error;
mod header;
mod reply;
mod request;

pub use error::WireError;
pub use header::{HEADER_LENGTH, Kind};
pub use reply::{HelloReply, Reply, ReplyFrame};
pub use request::{Request, RequestBegun, RequestFrame};

/// The magic of the hello, the first bytes of every connection.
pub const MAGIC: [u8; 8] = *b"kvmprof\0";

/// The only version of the protocol.
pub const VERSION: u16 = 1;

/// Maximum number of bytes of data in one read or write. A prf read must return the whole table (N addresses, N + 2
/// counters, 8 bytes each) in one piece: 4 MiB hold 262,143 addresses, about twice the text symbols of a distribution's
/// kernel with its modules.
pub const MAX_DATA: usize = 4 << 20;

/// Maximum number of bytes of data of an ioctl in either direction: the largest is a ledger for each of 64 vCPUs, some
/// 5 KiB.
pub const MAX_IOCTL_DATA: usize = 64 << 10;

/// Maximum number of bytes of the body of a hello or of its reply; receivers ignore bytes after the fields that they
/// know.
pub const MAX_HELLO: usize = 256;

/// Bytes of the longest body: a write's flags and its data.
pub const MAX_BODY: usize = 4 + MAX_DATA;

/// Bytes of the longest frame.
pub const MAX_FRAME: usize = HEADER_LENGTH + MAX_BODY;

/// Maximum number of unanswered requests of one connection.
pub const MAX_OUTSTANDING: usize = 256;

/// Maximum number of open devices of one connection.
pub const MAX_HANDLES: usize = 256;

/// Device numbers for [`Request::Open`].
pub mod device {
    /// The program counter sampling device; minor 0; exclusive.
    pub const PCS: u16 = 1;
    /// The kernel profiler; the minor is a vCPU, or 255 for all of them together.
    pub const PRF: u16 = 2;
    /// The status of `kvmprof status` as one JSON object, from the moment of the open; minor 0.
    pub const STATUS: u16 = 3;
    /// Lines `pid\ttid\tcomm\n`, one for each thread of the guest, from the moment of the open; minor 0.
    pub const PROCESSES: u16 = 4;
    /// The guest kernel's symbols at their run-time addresses in the form of `/proc/kallsyms`, lines `address type
    /// name\n`, those of modules `address type name\t[module]\n`, from the moment of the open; minor 0; ENXIO while they
    /// are unknown.
    pub const KALLSYMS: u16 = 5;
    /// A recording of every tick, a separate one for each open; minor 0.
    pub const RECORDER: u16 = 6;
    /// profil(2) and pcsample(2) for one process, a separate one for each open; minor 0.
    pub const PROFIL: u16 = 7;
    /// pmc(9): counters of the guest and of its processes; read as one JSON object; minor 0.
    pub const PMC: u16 = 8;
    /// Pause, power button, reset and end of the guest; minor 0; not through a guest's port.
    pub const CONTROL: u16 = 9;
    /// The guest's processes as one JSON object, from the moment of the open; minor 0; ENXIO while they are unknown; not through a guest's port.
    pub const PROCESS_LIST: u16 = 10;
}

/// A flag of open, read and poll: answer EAGAIN (poll: what is ready now) instead of waiting.
pub const NONBLOCKING: u32 = 1;

/// Poll event: a read would return at once.
pub const READABLE: u32 = 1;
/// Poll event: a write would return at once.
pub const WRITABLE: u32 = 2;
/// Poll event: the device has gone; always reported, also if not requested.
pub const HANG_UP: u32 = 4;
