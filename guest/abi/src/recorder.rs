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

/// `REC_EVENT`: has an event of the guest make the ticks, instead of the clock. The data are its number, a u32, one of
/// `EVENT_*`, and of every so many as the argument says, 1 to [`MAX_PERIOD`], one makes a tick on its vCPU. Without data the clock
/// makes them, which is the default. EBUSY after [`REC_START`]; ENODEV for an event that there isn't; EINVAL for another
/// length of the data, and for another argument. [`REC_START`] is EBUSY while ticks are made by something else.
pub const REC_EVENT: u32 = command(4);

/// In [`REC_EVENT`]: all exits of the guest to the VMM.
pub const EVENT_EXITS: u32 = 1;
/// In [`REC_EVENT`]: reads and writes of I/O ports.
pub const EVENT_PORT: u32 = 2;
/// In [`REC_EVENT`]: reads of I/O ports.
pub const EVENT_PORT_READ: u32 = 3;
/// In [`REC_EVENT`]: writes of I/O ports.
pub const EVENT_PORT_WRITE: u32 = 4;
/// In [`REC_EVENT`]: reads and writes of addresses without memory.
pub const EVENT_MMIO: u32 = 5;
/// In [`REC_EVENT`]: reads of addresses without memory.
pub const EVENT_MMIO_READ: u32 = 6;
/// In [`REC_EVENT`]: writes to addresses without memory.
pub const EVENT_MMIO_WRITE: u32 = 7;

/// Maximum argument of [`REC_EVENT`].
pub const MAX_PERIOD: u32 = 10_000_000;

/// In [`REC_START`]: the kernel's frames.
pub const STACK_KERNEL: i64 = 1;
/// In [`REC_START`]: the user's frames.
pub const STACK_USER: i64 = 2;
