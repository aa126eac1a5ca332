//! The recorder: a recording of every tick, read as a file.
//!
//! A client opens the device, starts it with [`REC_START`] and reads; what it reads, one read after the other, is
//! the file of a recording from its first byte on. [`REC_STOP`] ends the recording: what is left can be read, then
//! comes the end of file. Each open device is a recording of its own.

const fn command(number: u32) -> u32 {
    ((b'R' as u32) << 8) | number
}

/// `REC_START`: records from now on, with the parts of call stacks that the argument has, [`STACK_KERNEL`] and
/// [`STACK_USER`]. EINVAL for other bits, and where there is no clock; EBUSY when it was started already.
pub const REC_START: u32 = command(1);
/// `REC_STOP`: ends the recording; has no effect on one that has ended. EINVAL before [`REC_START`].
pub const REC_STOP: u32 = command(2);

/// `REC_PIDS`: only these processes are recorded; the data are their pids, an i32 each. No data: all, as at first.
/// EBUSY after [`REC_START`]; EINVAL when the data are no whole pids, or more than [`MAX_PIDS`].
pub const REC_PIDS: u32 = command(3);

/// Most pids of [`REC_PIDS`].
pub const MAX_PIDS: usize = 1024;

/// In [`REC_START`]: the kernel's frames.
pub const STACK_KERNEL: i64 = 1;
/// In [`REC_START`]: the user's frames.
pub const STACK_USER: i64 = 2;
