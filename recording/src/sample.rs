//! Samples and ticks, which the clock hands to its consumers.

use serde::{Deserialize, Serialize};

use crate::MemoryFault;

/// Length of a task's name in bytes, padded with NULs (`TASK_COMM_LEN`, `include/linux/sched.h`).
pub const COMM_LENGTH: usize = 16;

/// The pid and the tid of the idle tasks.
pub const IDLE_PID: i32 = 0;

/// What the vCPU did at the tick. The numbers are those of the recording's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Running a process in user mode (CPL 3).
    User = 0,
    /// In the kernel, for a process or for the kernel itself.
    #[default]
    Kernel = 1,
    /// In the kernel, servicing an interrupt.
    Interrupt = 2,
    /// Halted, or in the idle loop.
    Idle = 3,
}

impl Mode {
    /// All modes, by their numbers.
    pub const ALL: [Self; 4] = [Self::User, Self::Kernel, Self::Interrupt, Self::Idle];

    /// Its number, which is its index in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
            Self::Interrupt => "interrupt",
            Self::Idle => "idle",
        }
    }

    /// The mode with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// The interrupt priority level of a vCPU that no interrupt can reach.
pub const IPL_MASKED: u8 = 15;

/// Whether the guest's scheduler may switch to another task. The numbers are those of the recording's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Preemption {
    /// Unknown: the guest's kernel has no preempt count, or nothing is known of the guest.
    #[default]
    Unknown = 0,
    /// It may: in user mode, and if `preempt_count` is 0.
    On = 1,
    /// It may not: a spin lock is held, an interrupt is serviced, or the kernel has disabled preemption.
    Off = 2,
}

impl Preemption {
    /// All values, by their numbers.
    pub const ALL: [Self; 3] = [Self::Unknown, Self::On, Self::Off];
}

/// The thread that owns a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockOwner {
    /// Process (thread-group) id as the guest itself would print it.
    pub pid: i32,
    /// Thread id as the guest itself would print it.
    pub tid: i32,
    /// The thread's name, padded with NULs.
    pub comm: [u8; COMM_LENGTH],
    /// The vCPU that it is on; `None` if it is on none.
    pub vcpu: Option<u16>,
}

/// A lock that a vCPU waits for in a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockWait {
    /// Its guest virtual address.
    pub address: u64,
    /// Its owner; `None` when unknown.
    pub owner: Option<LockOwner>,
}

/// Maximum number of frames of a [`Sample`]'s call stack that can be requested.
pub const MAX_STACK_FRAMES: usize = 1024;

/// Maximum number of frames of a call stack by default.
pub const DEFAULT_STACK_FRAMES: usize = 128;

/// The first address of the host's functions in call stacks. Each function has one. No guest has code there, because the addresses aren't
/// canonical (SDM volume 1, section 3.3.7.1).
pub const HOST_FRAMES: u64 = 0xfe00_0000_0000_0000;

/// How a part of a call stack ends, the kernel's or the user's. The numbers are those of the recording's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// There is no such part, or it wasn't requested.
    #[default]
    Absent = 0,
    /// At its outermost frame.
    Complete = 1,
    /// There are more frames than were taken.
    Truncated = 2,
    /// The next frame couldn't be found in memory.
    Broken = 3,
    /// Such code can't be unwound.
    Unsupported = 4,
    /// Its frames didn't fit into a buffer.
    Dropped = 5,
}

impl StackEnd {
    /// All ends, by their numbers.
    pub const ALL: [Self; 6] = [
        Self::Absent,
        Self::Complete,
        Self::Truncated,
        Self::Broken,
        Self::Unsupported,
        Self::Dropped,
    ];
}

/// The properties of a call stack. Its frames are passed beside the [`Sample`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackSummary {
    /// Frames in the kernel, the innermost ones.
    pub kernel: u16,
    /// Frames in user mode.
    pub user: u16,
    /// Frames of the host below the guest's, the outermost ones: what its kernel and the VMM did for the vCPU. Their addresses are
    /// numbers from [`HOST_FRAMES`] on.
    pub host: u16,
    /// How the kernel's part ends.
    pub kernel_end: StackEnd,
    /// How the user's part ends.
    pub user_end: StackEnd,
}

impl StackSummary {
    /// The number of frames.
    pub fn frames(&self) -> usize {
        usize::from(self.kernel) + usize::from(self.user) + usize::from(self.host)
    }

    /// The same stack without its frames.
    #[must_use]
    pub fn dropped(self) -> Self {
        let end = |end| match end {
            StackEnd::Absent => StackEnd::Absent,
            _ => StackEnd::Dropped,
        };
        Self {
            kernel: 0,
            user: 0,
            host: 0,
            kernel_end: end(self.kernel_end),
            user_end: end(self.user_end),
        }
    }
}

/// Parts of call stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackParts {
    /// The kernel's.
    pub kernel: bool,
    /// The user's.
    pub user: bool,
}

impl StackParts {
    /// Whole call stacks.
    pub const BOTH: Self = Self {
        kernel: true,
        user: true,
    };
}

/// One tick's capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The time of the tick, in ns of the host's CLOCK_MONOTONIC.
    pub time: u64,
    /// The program counter, a guest virtual address.
    pub pc: u64,
    /// Process (thread-group) id as the guest itself would print it; -1 when unknown.
    pub pid: i32,
    /// Thread id as the guest itself would print it; -1 when unknown.
    pub tid: i32,
    /// Process group id; -1 when unknown or not requested.
    pub process_group: i32,
    /// The vCPU's index, from 0.
    pub vcpu: u16,
    /// Current privilege level, 0 to 3.
    pub cpl: u8,
    /// Interrupt priority level, 0 to 15: [`IPL_MASKED`] with RFLAGS.IF clear, else CR8.
    pub ipl: u8,
    /// What the vCPU was doing.
    pub mode: Mode,
    /// The thread's name, padded with NULs; all NUL when unknown.
    pub comm: [u8; COMM_LENGTH],
    /// The physical address of the active page tables (CR3 without its low 12 bits), which identifies the address space. If the kernel and user
    /// mode have separate tables (KPTI), these are adjacent and differ in bit 12.
    pub address_space: u64,
    /// The call stack, if one was requested.
    pub stack: StackSummary,
    /// Whether the guest's scheduler could have switched to another task.
    pub preemption: Preemption,
    /// The lock that it waits for in a loop, if known.
    pub lock: Option<LockWait>,
    /// The fault of guest memory that it is a sample of, if known.
    pub fault: Option<MemoryFault>,
    /// The thread's id in its innermost pid namespace; `None` if that is the guest's first one, or unknown.
    pub inner_tid: Option<i32>,
    /// When the process was started, in ns of the guest's CLOCK_MONOTONIC; 0 if unknown, and in recordings, where it is a label of the process.
    pub started: u64,
}

impl Sample {
    /// Whether no interrupt could reach the vCPU. It is false for a halted one, which waits for interrupts, and always false in recordings that
    /// don't [know it](crate::file::RecordingInfo::knows_interrupts).
    pub fn has_interrupts_off(&self) -> bool {
        self.ipl == IPL_MASKED && self.mode != Mode::Idle
    }
}

/// Consecutive ticks of one vCPU: some without a sample, then at most one with a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// The vCPU's index, from 0.
    pub vcpu: u16,
    /// Ticks counted as idle without a sample: the vCPU was halted.
    pub idle: u64,
    /// Ticks at which the host didn't run the vCPU's thread.
    pub stolen: u64,
    /// Other ticks at which no sample could be taken or passed on.
    pub lost: u64,
    /// Ticks of processes that a recording leaves out. The clock itself makes no such ticks.
    pub ungathered: u64,
    /// The sample of the last tick, if it has one.
    pub sample: Option<Sample>,
}

impl Ticks {
    /// The number of all ticks.
    pub fn total(&self) -> u64 {
        self.idle + self.stolen + self.lost + self.ungathered + u64::from(self.sample.is_some())
    }
}

impl From<Sample> for Ticks {
    /// The one tick of `sample`.
    fn from(sample: Sample) -> Self {
        Self {
            vcpu: sample.vcpu,
            sample: Some(sample),
            ..Self::default()
        }
    }
}

/// A task's name as the kernel has it, cut to the length of a comm at the end of a character.
pub fn comm_of(name: &str) -> [u8; COMM_LENGTH] {
    let mut comm = [0; COMM_LENGTH];
    let mut ends = (0..COMM_LENGTH.min(name.len() + 1)).rev();
    let end = ends.find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    comm[..end].copy_from_slice(&name.as_bytes()[..end]);
    comm
}

/// Parses the pid of a process of the guest; -1 is an unknown process, 0 the idle one.
///
/// # Errors
/// `text` is invalid; the message says what is valid.
pub fn parse_pid(text: &str) -> Result<i32, &'static str> {
    (text.parse()).map_err(|_| "a process id has to be a number, such as ps in the guest prints it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_index_the_lists() {
        assert_eq!(Mode::ALL.map(Mode::index), [0, 1, 2, 3]);
        assert_eq!(StackEnd::ALL.map(|end| end as usize), [0, 1, 2, 3, 4, 5]);
        assert_eq!(Preemption::ALL.map(|one| one as usize), [0, 1, 2]);
    }

    #[test]
    fn interrupts_are_off_by_the_priority_level() {
        let is_off = |ipl, mode| {
            let sample = Sample {
                ipl,
                mode,
                ..Sample::default()
            };
            sample.has_interrupts_off()
        };
        assert!(is_off(IPL_MASKED, Mode::Kernel) && is_off(IPL_MASKED, Mode::Interrupt));
        assert!(!is_off(IPL_MASKED, Mode::Idle) && !is_off(14, Mode::Kernel));
    }

    #[test]
    fn a_name_is_not_a_pid() {
        assert_eq!(parse_pid("-1"), Ok(-1));
        assert_eq!(parse_pid("130"), Ok(130));
        for wrong in ["dd", "", "1.5", "99999999999"] {
            assert!(parse_pid(wrong).unwrap_err().contains("number"), "{wrong}");
        }
    }
}
