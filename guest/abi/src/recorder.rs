//! The recorder: a recording of every tick, read as a file.
//!
//! A client opens the device, starts it with [`REC_START`] and reads the file of a recording, from its first byte on.
//! [`REC_STOP`] ends the recording: the rest can be read, and the end of file follows. Each open device has a recording
//! of its own.

const fn command(number: u32) -> u32 {
    ((b'R' as u32) << 8) | number
}

/// `REC_START`: starts recording, with the parts of call stacks in the argument, [`STACK_KERNEL`] and [`STACK_USER`].
/// EINVAL for other bits, and without a clock; EBUSY if it was already started.
pub const REC_START: u32 = command(1);
/// `REC_STOP`: ends the recording; has no effect after its end. EINVAL before [`REC_START`].
pub const REC_STOP: u32 = command(2);

/// `REC_PIDS`: selects processes; the data are their pids, an i32 each. Without data all are selected, which is the
/// default. EBUSY after [`REC_START`]; EINVAL if the data are no whole pids, or more than [`MAX_PIDS`].
pub const REC_PIDS: u32 = command(3);

/// Maximum number of pids of [`REC_PIDS`].
pub const MAX_PIDS: usize = 1024;

/// In [`REC_START`]: the kernel's frames.
pub const STACK_KERNEL: i64 = 1;
/// In [`REC_START`]: the user's frames.
pub const STACK_USER: i64 = 2;
