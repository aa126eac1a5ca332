//! The device of pmc(9): counters of a guest's processes, and of the guest as a whole.
//!
//! A client opens the device and makes a [`Call`] with [`PMC_CALL`]. The configuration that a call has made stays when the handle is
//! closed. With [`PMC_ACCOUNT`] a client gets the counts of all processes, for as long as it has the device open. `PMC.md` beside this
//! crate describes the device for programs in any language.

use crate::encoded::{Encoded, array};

const fn command(number: u32) -> u32 {
    ((b'V' as u32) << 8) | number
}

/// `PMC_CALL`: executes the [`Call`] that the argument points to, and stores it there with its value. Returns what the function returns.
pub const PMC_CALL: u32 = command(1);
/// `PMC_ACCOUNT`: the argument has a bit for each counter. These counters count for all processes from now on; reads of this handle then
/// return the processes' counts too.
pub const PMC_ACCOUNT: u32 = command(2);

/// The node in a guest.
pub const NODE: &str = "/dev/pmc";
/// Flag of `pmc_get_counter_value`: the counts of child processes that have ended, not the process's own.
pub const VALUE_FLAGS_CHILDREN: u32 = 1;
/// In place of a pid: the kernel's own use of a counter.
pub const KERNEL: i32 = -1;

/// A counter. Each counts one event, whose number is the counter's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CounterId {
    /// Processor time of the vCPUs' threads, in ns.
    CpuTime = 0,
    /// Ticks of the profiling clock.
    Ticks = 1,
    /// Exits to kvmprof by a read of a port.
    PortReads = 2,
    /// Exits to kvmprof by a write to a port.
    PortWrites = 3,
    /// Exits to kvmprof by a read of an address without memory.
    MmioReads = 4,
    /// Exits to kvmprof by a write to an address without memory.
    MmioWrites = 5,
    /// Exits to kvmprof that kvmprof has caused.
    Interrupted = 6,
    /// Exits to KVM.
    Exits = 7,
    /// Exits to KVM by HLT.
    Halts = 8,
    /// Interrupts that KVM has injected.
    Interrupts = 9,
    /// TLB flushes by KVM.
    TlbFlushes = 10,
    /// Instructions that KVM has emulated.
    Emulated = 11,
    /// Faults of guest memory that KVM has handled.
    PageFaults = 12,
    /// Processor cycles in the guest.
    Cycles = 13,
    /// Instructions in the guest.
    Instructions = 14,
    /// Branches in the guest.
    Branches = 15,
    /// Branches in the guest that were mispredicted.
    BranchMisses = 16,
    /// Cache accesses in the guest.
    CacheReferences = 17,
    /// Cache misses in the guest.
    CacheMisses = 18,
}

/// The number of counters.
pub const COUNTERS: usize = CounterId::ALL.len();
/// The bits of all counters.
pub const ALL_COUNTERS: u32 = (1 << COUNTERS) - 1;

impl CounterId {
    /// All counters, by number.
    pub const ALL: [Self; 19] = [
        Self::CpuTime,
        Self::Ticks,
        Self::PortReads,
        Self::PortWrites,
        Self::MmioReads,
        Self::MmioWrites,
        Self::Interrupted,
        Self::Exits,
        Self::Halts,
        Self::Interrupts,
        Self::TlbFlushes,
        Self::Emulated,
        Self::PageFaults,
        Self::Cycles,
        Self::Instructions,
        Self::Branches,
        Self::BranchMisses,
        Self::CacheReferences,
        Self::CacheMisses,
    ];

    /// The counter with this number.
    pub fn from_number(number: i64) -> Option<Self> {
        let index = usize::try_from(number).ok()?;
        Self::ALL.get(index).copied()
    }

    /// The counter's number.
    pub const fn number(self) -> usize {
        self as usize
    }

    /// The counter's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CpuTime => "cpu-time",
            Self::Ticks => "ticks",
            Self::PortReads => "port-reads",
            Self::PortWrites => "port-writes",
            Self::MmioReads => "mmio-reads",
            Self::MmioWrites => "mmio-writes",
            Self::Interrupted => "interrupted",
            Self::Exits => "exits",
            Self::Halts => "halts",
            Self::Interrupts => "interrupts",
            Self::TlbFlushes => "tlb-flushes",
            Self::Emulated => "emulated",
            Self::PageFaults => "page-faults",
            Self::Cycles => "cycles",
            Self::Instructions => "instructions",
            Self::Branches => "branches",
            Self::BranchMisses => "branch-misses",
            Self::CacheReferences => "cache-references",
            Self::CacheMisses => "cache-misses",
        }
    }

    /// A description of what it counts.
    pub const fn description(self) -> &'static str {
        match self {
            Self::CpuTime => {
                "processor time of the vCPUs' threads, in ns: the guest, and its exits"
            }
            Self::Ticks => "ticks of the profiling clock",
            Self::PortReads => "exits to kvmprof by a read of a port",
            Self::PortWrites => "exits to kvmprof by a write to a port",
            Self::MmioReads => "exits to kvmprof by a read of an address without memory",
            Self::MmioWrites => "exits to kvmprof by a write to an address without memory",
            Self::Interrupted => "exits to kvmprof that it has made itself",
            Self::Exits => "exits to KVM",
            Self::Halts => "exits to KVM by HLT",
            Self::Interrupts => "interrupts that KVM has injected",
            Self::TlbFlushes => "TLB flushes by KVM",
            Self::Emulated => "instructions that KVM has emulated",
            Self::PageFaults => "faults of guest memory that KVM has handled",
            Self::Cycles => "processor cycles in the guest",
            Self::Instructions => "instructions in the guest",
            Self::Branches => "branches in the guest",
            Self::BranchMisses => "branches in the guest that were mispredicted",
            Self::CacheReferences => "cache accesses in the guest",
            Self::CacheMisses => "cache misses in the guest",
        }
    }

    /// The counter's bit in the argument of [`PMC_ACCOUNT`].
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The source of the counts.
    pub const fn source(self) -> CounterSource {
        // Their numbers are in the order of their sources.
        if self.number() <= Self::Interrupted.number() {
            CounterSource::Kvmprof
        } else if self.number() <= Self::PageFaults.number() {
            CounterSource::Kvm
        } else {
            CounterSource::Processor
        }
    }
}

/// The source of a counter's counts. The numbers are those of `pmc_get_counter_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterSource {
    /// The virtual machine monitor.
    Kvmprof = 1,
    /// The host's kernel.
    Kvm = 2,
    /// The host's processor.
    Processor = 3,
}

impl CounterSource {
    /// Its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kvmprof => "kvmprof",
            Self::Kvm => "kvm",
            Self::Processor => "processor",
        }
    }

    /// Its bit in the type of the whole (`pmc_get_counter_type(-1)`).
    pub const fn bit(self) -> u32 {
        1 << (self as u32 - 1)
    }
}

/// A function of the manual page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `pmc_get_num_counters`.
    NumCounters = 1,
    /// `pmc_get_counter_type`.
    CounterType = 2,
    /// `pmc_save_context`.
    SaveContext = 3,
    /// `pmc_restore_context`.
    RestoreContext = 4,
    /// `pmc_enable_counter`.
    Enable = 5,
    /// `pmc_disable_counter`.
    Disable = 6,
    /// `pmc_counter_isrunning`.
    IsRunning = 7,
    /// `pmc_counter_isconfigured`.
    IsConfigured = 8,
    /// `pmc_configure_counter`.
    Configure = 9,
    /// `pmc_get_counter_value`.
    Value = 10,
    /// `pmc_accumulate`.
    Accumulate = 11,
    /// `pmc_alloc_kernel_counter`.
    AllocKernel = 12,
    /// `pmc_free_kernel_counter`.
    FreeKernel = 13,
    /// `pmc_start_profiling`.
    StartProfiling = 14,
    /// `pmc_stop_profiling`.
    StopProfiling = 15,
    /// `PMC_ENABLED`.
    Enabled = 16,
}

impl Function {
    /// All functions, by number, which begins with 1.
    pub const ALL: [Self; 16] = [
        Self::NumCounters,
        Self::CounterType,
        Self::SaveContext,
        Self::RestoreContext,
        Self::Enable,
        Self::Disable,
        Self::IsRunning,
        Self::IsConfigured,
        Self::Configure,
        Self::Value,
        Self::Accumulate,
        Self::AllocKernel,
        Self::FreeKernel,
        Self::StartProfiling,
        Self::StopProfiling,
        Self::Enabled,
    ];

    /// The function with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    /// Whether the function changes how the whole guest is counted or sampled. In a guest, only the superuser may call it.
    pub const fn is_privileged(self) -> bool {
        matches!(
            self,
            Self::AllocKernel | Self::FreeKernel | Self::StartProfiling | Self::StopProfiling
        )
    }
}

/// A call of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The called function.
    pub function: Function,
    /// Flags of the value: [`VALUE_FLAGS_CHILDREN`].
    pub flags: u32,
    /// The process, by its id in the guest's initial pid namespace; [`KERNEL`] stands for the kernel. For `pmc_accumulate`, this is the
    /// process that exits.
    pub pid: i32,
    /// The counter's number; may be out of range.
    pub counter: i32,
    /// For `pmc_accumulate`: the process that gets the counts.
    pub parent: i32,
    /// The event of the configuration: the counter's number.
    pub event: u32,
    /// The reset value of the configuration; for `pmc_start_profiling`, the number of events per sample.
    pub reset_value: u64,
    /// The flags of the configuration, which have no meaning.
    pub configuration_flags: u32,
    /// The time of the call, in ns of the guest's CLOCK_MONOTONIC. The call is about the process with this pid that was started before this
    /// time, and processes that it forks later inherit its counters. With `u64::MAX` it is about the first process that is met, and nothing
    /// is inherited.
    pub time: u64,
    /// The value of the counter, in the result.
    pub value: u64,
}

impl Call {
    /// Bytes of an encoded call.
    pub const SIZE: usize = 56;

    /// A call of `function` for `pid` and `counter`.
    pub const fn new(function: Function, pid: i32, counter: i32) -> Self {
        Self {
            function,
            flags: 0,
            pid,
            counter,
            parent: 0,
            event: 0,
            reset_value: 0,
            configuration_flags: 0,
            time: u64::MAX,
            value: 0,
        }
    }

    /// The encoded form, as in `PMC.md`.
    pub fn encode(&self) -> Encoded<{ Self::SIZE }> {
        let mut bytes = Encoded::new();
        bytes.push(&(self.function as u32).to_le_bytes());
        bytes.push(&self.flags.to_le_bytes());
        for number in [self.pid, self.counter, self.parent] {
            bytes.push(&number.to_le_bytes());
        }
        bytes.push(&self.event.to_le_bytes());
        bytes.push(&self.reset_value.to_le_bytes());
        bytes.push(&self.configuration_flags.to_le_bytes());
        bytes.push(&[0; 4]);
        bytes.push(&self.time.to_le_bytes());
        bytes.push(&self.value.to_le_bytes());
        bytes
    }

    /// The call in the first [`Call::SIZE`] of `bytes`. `None` if they are fewer, or name an unknown function.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at| Some(u32::from_le_bytes(array(bytes, at)?));
        let word = |at| Some(u64::from_le_bytes(array(bytes, at)?));
        Some(Self {
            function: Function::from_number(number(0)?)?,
            flags: number(4)?,
            pid: number(8)?.cast_signed(),
            counter: number(12)?.cast_signed(),
            parent: number(16)?.cast_signed(),
            event: number(20)?,
            reset_value: word(24)?,
            configuration_flags: number(32)?,
            time: word(40)?,
            value: word(48)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_convert_back() {
        for (number, counter) in (0..).zip(CounterId::ALL) {
            assert_eq!(CounterId::from_number(number), Some(counter));
            assert_eq!(counter.bit(), 1 << number);
        }
        for (number, function) in (1..).zip(Function::ALL) {
            assert_eq!(function as u32, number);
            assert_eq!(Function::from_number(number), Some(function));
        }
        for number in [0, 17, u32::MAX] {
            assert_eq!(Function::from_number(number), None);
        }
        for number in [-1, 19, i64::MAX] {
            assert_eq!(CounterId::from_number(number), None);
        }
        assert_eq!(CounterSource::Processor.bit(), 4);
    }
}
