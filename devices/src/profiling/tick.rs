//! What the clock hands to its consumers.

/// Bytes of a task's name, its end padded with NULs (`TASK_COMM_LEN`, `include/linux/sched.h`).
pub const COMM_LENGTH: usize = 16;

/// What the vCPU was doing when the tick came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Running a process in user mode (CPL 3).
    User,
    /// In the kernel, on behalf of a process or of itself.
    #[default]
    Kernel,
    /// In the kernel, servicing an interrupt.
    Interrupt,
    /// Halted, or in the idle loop.
    Idle,
}

/// The interrupt priority level of a vCPU that no interrupt can reach.
pub const IPL_MASKED: u8 = 15;

/// Most frames of a [`Sample`]'s call stack.
pub const MAX_STACK_FRAMES: usize = 128;

/// How a part of a call stack ends, the kernel's or the user's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// There is no such part, or it wasn't asked for.
    #[default]
    Absent,
    /// At its outermost frame.
    Complete,
    /// There are more frames than were taken.
    Truncated,
    /// The next frame couldn't be told from what is in memory.
    Broken,
    /// No way is known to unwind such code.
    Unsupported,
    /// There was no room to hand its frames over.
    Dropped,
}

/// What is known of a call stack besides its frames, which travel beside the [`Sample`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackSummary {
    /// Frames in the kernel, the innermost ones.
    pub kernel: u8,
    /// Frames in user mode.
    pub user: u8,
    /// How the kernel's part ends.
    pub kernel_end: StackEnd,
    /// How the user's part ends.
    pub user_end: StackEnd,
}

impl StackSummary {
    /// How many frames there are.
    pub fn frames(&self) -> usize {
        usize::from(self.kernel) + usize::from(self.user)
    }

    /// The same stack with its frames gone.
    #[must_use]
    pub fn dropped(self) -> Self {
        let end = |end| match end {
            StackEnd::Absent => StackEnd::Absent,
            _ => StackEnd::Dropped,
        };
        Self {
            kernel: 0,
            user: 0,
            kernel_end: end(self.kernel_end),
            user_end: end(self.user_end),
        }
    }
}

/// One tick's capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When, in ns of the host's CLOCK_MONOTONIC.
    pub time: u64,
    /// The program counter, a guest virtual address.
    pub pc: u64,
    /// Process (thread-group) id as the guest itself would print it; -1 when unknown.
    pub pid: i32,
    /// Thread id as the guest itself would print it; -1 when unknown.
    pub tid: i32,
    /// Process group id; -1 when unknown or not asked for.
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
    /// The physical address of the page tables in force (CR3 without its low 12 bits), which tells address spaces
    /// apart. Where the kernel and the user have tables of their own (KPTI), they lie side by side and differ in
    /// bit 12.
    pub address_space: u64,
    /// The call stack, if one was asked for.
    pub stack: StackSummary,
}

/// A run of one vCPU's clock ticks: some that took no sample, then at most one that did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// The vCPU's index, from 0.
    pub vcpu: u16,
    /// Ticks reckoned idle without a sample: the vCPU was halted all along.
    pub idle: u64,
    /// Ticks on which the host didn't run the vCPU's thread.
    pub stolen: u64,
    /// Other ticks on which no sample could be taken or passed on.
    pub lost: u64,
    /// Ticks of processes that a recording leaves out. The clock itself makes none.
    pub ungathered: u64,
    /// The tick that was sampled, if there was one; it comes after all the others.
    pub sample: Option<Sample>,
}

impl Ticks {
    /// How many ticks of the clock these are.
    pub fn total(&self) -> u64 {
        self.idle + self.stolen + self.lost + self.ungathered + u64::from(self.sample.is_some())
    }
}
