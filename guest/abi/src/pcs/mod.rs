//! `pcs.h`: the client's view of the program counter sampling device.
//!
//! A client opens the device (which starts the profiling clock), selects data with `PROF_*` ioctls and reads buffers of
//! [`BSIZE`] bytes (or the size of [`PCS_SETBSIZE`]). Each buffer is a [`Header`], records of one fixed size, and
//! `h_unused` unused bytes. A record is never split across buffers. All numbers are little-endian, in both [`Format`]s.
//!
//! Names in capitals are those of the manual page `pcs(7)`, "pcs.h 3.1"; the names that begin
//! with `PCS_` are additions of this project, all of them optional for a client.

mod format;
mod ioctl;
mod record;
mod status;

pub(crate) use format::low_u16;
pub use format::{Format, Header};
pub use ioctl::{
    BUF_INCR, PCS_FLUSH, PCS_GETHZ, PCS_GETSTAT, PCS_SETBSIZE, PCS_SETFORMAT, PCS_SETHZ, PCS_STOP,
    PROF_ALL, PROF_GROUP, PROF_KERNEL, PROF_LIST, PROF_MASK,
};
pub use record::{Msample, Psample, Record, kind};
pub use status::{Ledger, STATUS_SIZE, Status};

/// Bytes in a buffer, its header included, unless changed by [`PCS_SETBSIZE`].
pub const BSIZE: usize = 1024;
/// The smallest buffer that [`PCS_SETBSIZE`] accepts, in bytes.
pub const MIN_BSIZE: usize = 1024;
/// The largest buffer that [`PCS_SETBSIZE`] accepts, in bytes.
pub const MAX_BSIZE: usize = 65536;
/// Buffers that the device has after an open.
pub const DEF_BUFNO: usize = 3;
/// Maximum number of buffers after [`BUF_INCR`].
pub const MAX_BUFS: usize = 10;
/// Maximum number of processes in the list of [`PROF_LIST`].
pub const MAX_LIST: usize = 5;
/// Ticks of a vCPU's clock between two outputs of merged counts.
pub const MERGE_TICKS: u64 = 100;
/// The slowest rate that [`PCS_SETHZ`] accepts, in Hz.
pub const MIN_HZ: u32 = 1;
/// The fastest rate that [`PCS_SETHZ`] accepts, in Hz.
pub const MAX_HZ: u32 = 10_000;
/// `h_unused` is smaller than this, in bytes, in every buffer except those delivered by [`PCS_FLUSH`] or
/// [`PCS_STOP`].
pub const UNUSED_BOUND: u16 = 12;
/// The path of the device's node in a guest.
pub const NODE: &str = "/dev/pcs";
