//! The recorder: a recording of every tick, read as a file.
//!
//! A client opens the device, starts it with [`REC_START`] and reads the file of a recording, from its first byte on.
//! [`REC_STOP`] ends the recording: the rest can be read, and the end of file follows. Each open device has a recording
//! of its own.

const fn command(number: u32) -> u32 {
    ((b'R' as u32) << 8) | number
}

/// `REC_START`: starts recording, with the parts of call stacks in the argument, [`STACK_KERNEL`] and [`STACK_USER`].
/// EINVAL for other bits, and without a clock; EBUSY if it was already started; ENOSPC if there are
/// [`MAX_RECORDINGS`] already.
pub const REC_START: u32 = command(1);
/// `REC_STOP`: ends the recording; has no effect after its end. EINVAL before [`REC_START`].
pub const REC_STOP: u32 = command(2);

/// `REC_PIDS`: selects processes; the data are their pids, an i32 each. Without data all are selected, which is the
/// default. EBUSY after [`REC_START`]; EINVAL if the data are no whole pids, or more than [`MAX_PIDS`].
pub const REC_PIDS: u32 = command(3);

/// Maximum number of recordings of all clients together. A recording counts from its start until it is closed.
pub const MAX_RECORDINGS: usize = 16;

/// Maximum number of pids of [`REC_PIDS`].
pub const MAX_PIDS: usize = 1024;

/// `REC_EVENT`: makes the ticks come from an event of the guest, instead of the clock. The data are the event's number, a u32, one of
/// `EVENT_*`. The argument N, 1 to [`MAX_PERIOD`], makes every Nth event a tick on its vCPU; for [`EVENT_GUEST_TIME`] it is a time in ns,
/// at least [`MIN_GUEST_TIME`], and for [`EVENT_CYCLES`] it is at least [`MIN_CYCLES`]. Without data the ticks are the clock's, or those of
/// the event that makes them already; this is the default. EBUSY after [`REC_START`]; ENODEV for an unknown event, or one that this host
/// doesn't count; EINVAL for another length of the data, and for another argument. [`REC_START`] is EBUSY while something else makes the
/// ticks.
pub const REC_EVENT: u32 = command(4);

/// `REC_TASKS`: records a look at all tasks of a Linux guest every N ticks of the clock. N is the argument, up to [`MAX_LOOK_TICKS`]; 0,
/// the default, records none. EBUSY after [`REC_START`]; EINVAL for another argument; ENODEV if the guest's tasks can't be looked at. With
/// looks, [`REC_START`] is EINVAL if an event makes the ticks.
pub const REC_TASKS: u32 = command(5);
/// Maximum argument of [`REC_TASKS`].
pub const MAX_LOOK_TICKS: u32 = 1_000_000;

/// `REC_HZ`: makes the ticks come from the clock, at the rate in the argument, in Hz, [`super::pcs::MIN_HZ`] to [`super::pcs::MAX_HZ`],
/// instead of what [`REC_EVENT`] chose. With 0, the default, they come from what makes them already, or else from the clock at the rate of
/// the guest's start. EBUSY after [`REC_START`]; EINVAL for another argument, and for a guest without a clock. [`REC_START`] is EBUSY while
/// something else makes the ticks, or the clock has another rate.
pub const REC_HZ: u32 = command(6);

/// `REC_YIELD`: with 1, the recording yields to other consumers, as if they weren't to notice it: they get the ticks that they ask for, and
/// [`REC_START`] takes theirs instead of being EBUSY. The recording ends as soon as the ticks are others than its own, so also when the
/// consumers whose ticks it took have gone. With 0, the default, it doesn't yield. EBUSY after [`REC_START`]; EINVAL for another argument.
pub const REC_YIELD: u32 = command(7);

/// `REC_INTERVAL`: makes blocks of samples come a second after each multiple of the time in the argument, in s of CLOCK_REALTIME, up to
/// [`MAX_INTERVAL`], and when they are full. With 0, the default, they come once a second. EBUSY after [`REC_START`]; EINVAL for another
/// argument.
pub const REC_INTERVAL: u32 = command(8);
/// Maximum argument of [`REC_INTERVAL`].
pub const MAX_INTERVAL: u32 = 60;

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

/// In [`REC_EVENT`]: processor time of the vCPU's thread, in ns.
pub const EVENT_GUEST_TIME: u32 = 8;
/// In [`REC_EVENT`]: halts that an interrupt has ended.
pub const EVENT_HALT: u32 = 9;
/// In [`REC_EVENT`]: faults of guest memory that KVM has handled.
pub const EVENT_PAGE_FAULTS: u32 = 10;
/// In [`REC_EVENT`]: all exits of the guest to KVM.
pub const EVENT_KVM_EXITS: u32 = 11;
/// In [`REC_EVENT`]: processor cycles in the guest.
pub const EVENT_CYCLES: u32 = 12;
/// In [`REC_EVENT`]: instructions in the guest.
pub const EVENT_INSTRUCTIONS: u32 = 13;
/// In [`REC_EVENT`]: branches in the guest.
pub const EVENT_BRANCHES: u32 = 14;
/// In [`REC_EVENT`]: branches in the guest that were mispredicted.
pub const EVENT_BRANCH_MISSES: u32 = 15;
/// In [`REC_EVENT`]: cache accesses in the guest.
pub const EVENT_CACHE_REFERENCES: u32 = 16;
/// In [`REC_EVENT`]: cache misses in the guest.
pub const EVENT_CACHE_MISSES: u32 = 17;

/// Maximum argument of [`REC_EVENT`].
pub const MAX_PERIOD: u64 = 10_000_000_000;
/// Minimum argument of [`REC_EVENT`] for [`EVENT_GUEST_TIME`], in ns: with less between two samples, a guest on a slow KVM
/// would do nothing else.
pub const MIN_GUEST_TIME: u64 = 100_000;
/// Minimum argument of [`REC_EVENT`] for [`EVENT_CYCLES`]: with less a guest could be interrupted again before its next
/// instruction.
pub const MIN_CYCLES: u64 = 10_000;

/// In [`REC_START`]: the kernel's frames.
pub const STACK_KERNEL: i64 = 1;
/// In [`REC_START`]: the user's frames.
pub const STACK_USER: i64 = 2;
