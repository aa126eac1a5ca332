//! The ioctl commands, their arguments, and their errors.
//!
//! "Argument" is the third argument of ioctl(2): an integer, or a pointer to the described bytes. Commands return 0
//! unless their text says otherwise. Other commands fail with EINVAL.

const fn command(number: u32) -> u32 {
    ((b'P' as u32) << 8) | number
}

/// `BUF_INCR`: gives the device `incr` (an integer) more buffers. EINVAL if `incr` isn't positive or the total would
/// exceed [`super::MAX_BUFS`]; nothing has changed then.
pub const BUF_INCR: u32 = command(0o01);
/// `PROF_KERNEL`: selects KERNEL and KERNELI records. The argument is unused.
pub const PROF_KERNEL: u32 = command(0o02);
/// `PROF_ALL`: selects records of all ticks but idle ones. The argument is unused.
pub const PROF_ALL: u32 = command(0o04);
/// `PROF_GROUP`: selects USER records of the process group `groupid` (an integer), and replaces an earlier group.
/// EINVAL if it isn't a 32-bit integer.
pub const PROF_GROUP: u32 = command(0o10);
/// `PROF_LIST`: selects USER records of the processes in a list, and replaces an earlier list. The argument points to
/// 32-bit integers: a count, then that many process ids. EINVAL if the count is below 1 or above [`super::MAX_LIST`],
/// or a process id below 1; EFAULT if the list can't be read.
pub const PROF_LIST: u32 = command(0o20);
/// The bits of a page's command without its high byte.
pub const PROF_MASK: u32 = 0o177;

/// `PCS_FLUSH`: delivers the partly filled buffer now; its `h_unused` is the number of unused bytes. Merged counts
/// still wait for their time. The argument is unused.
pub const PCS_FLUSH: u32 = command(0x81);
/// `PCS_SETFORMAT`: sets the record format, an integer (see [`super::Format::number`]). EINVAL for another number,
/// EBUSY after the first `PROF_*`.
pub const PCS_SETFORMAT: u32 = command(0x82);
/// `PCS_SETBSIZE`: sets the size of a buffer in bytes, an integer. EINVAL unless it is a power
/// of two from [`super::MIN_BSIZE`] to [`super::MAX_BSIZE`], EBUSY after the first `PROF_*`.
pub const PCS_SETBSIZE: u32 = command(0x83);
/// `PCS_GETHZ`: returns the clock's rate, in Hz. The argument is unused.
pub const PCS_GETHZ: u32 = command(0x84);
/// `PCS_SETHZ`: sets the clock's rate in Hz, an integer. EINVAL outside [`super::MIN_HZ`] to [`super::MAX_HZ`], EBUSY
/// while another consumer uses the clock, EPERM for a guest that asks for more than `kvmprof run --hz`.
pub const PCS_SETHZ: u32 = command(0x85);
/// `PCS_STOP`: ends the sampling without discarding anything. Nothing more is gathered; merged counts and the partly
/// filled buffer are delivered as the reader makes room; the end of file follows. After it `BUF_INCR`, `PROF_*` and
/// `PCS_SET*` fail with EINVAL. A second `PCS_STOP` does nothing. The end of the VM acts as `PCS_STOP`. The argument is
/// unused.
pub const PCS_STOP: u32 = command(0x86);
/// `PCS_GETSTAT`: stores a [`super::Status`] of [`super::STATUS_SIZE`] bytes at the argument. Its `ticks` are final
/// after [`PCS_STOP`].
pub const PCS_GETSTAT: u32 = command(0x87);
