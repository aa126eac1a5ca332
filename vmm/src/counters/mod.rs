//! What can be counted of a guest: by kvmprof, by KVM and by the processor.

mod hardware;
mod kvm_stats;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};

use kvmprof_recording::counters::{Counter, Counters, Event};
use kvmprof_recording::{ClockLedger, EventKind};

use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::kernel_events;
use crate::perf_event::{self, HardwareEvent};
use crate::vcpu::{GuestExit, VcpuShared};
use hardware::HardwareCounter;
use kvm_stats::KvmStats;

/// Where a counter's values come from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Processor time of the vCPU's thread.
    CpuTime,
    /// The profiling clock's ticks.
    Ticks,
    /// Exits to kvmprof that the guest has caused.
    Exits(GuestExit),
    /// Exits that kvmprof has caused.
    Interrupted,
    /// KVM's statistic of this name.
    Kvm(&'static str),
    Hardware(HardwareEvent),
}

/// A counter's name, what it counts, and its source.
type Definition = (&'static str, &'static str, Source);

/// All counters, by their numbers.
const COUNTERS: [Definition; 19] = [
    (
        "cpu-time",
        "processor time of the vCPUs' threads: the guest, and its exits",
        Source::CpuTime,
    ),
    ("ticks", "ticks of the profiling clock", Source::Ticks),
    (
        "port-reads",
        "exits to kvmprof by a read of a port",
        Source::Exits(GuestExit::PortRead),
    ),
    (
        "port-writes",
        "exits to kvmprof by a write to a port",
        Source::Exits(GuestExit::PortWrite),
    ),
    (
        "mmio-reads",
        "exits to kvmprof by a read of an address without memory",
        Source::Exits(GuestExit::MmioRead),
    ),
    (
        "mmio-writes",
        "exits to kvmprof by a write to an address without memory",
        Source::Exits(GuestExit::MmioWrite),
    ),
    (
        "interrupted",
        "exits to kvmprof that it has made itself",
        Source::Interrupted,
    ),
    ("exits", "exits to KVM", Source::Kvm("exits")),
    ("halts", "exits to KVM by HLT", Source::Kvm("halt_exits")),
    (
        "interrupts",
        "interrupts that KVM has injected",
        Source::Kvm("irq_injections"),
    ),
    (
        "tlb-flushes",
        "TLB flushes by KVM",
        Source::Kvm("tlb_flush"),
    ),
    (
        "emulated",
        "instructions that KVM has emulated",
        Source::Kvm("insn_emulation"),
    ),
    (
        "page-faults",
        "faults of guest memory that KVM has handled",
        Source::Kvm("pf_taken"),
    ),
    (
        "cycles",
        "processor cycles in the guest",
        Source::Hardware(HardwareEvent::Cycles),
    ),
    (
        "instructions",
        "instructions in the guest",
        Source::Hardware(HardwareEvent::Instructions),
    ),
    (
        "branches",
        "branches in the guest",
        Source::Hardware(HardwareEvent::Branches),
    ),
    (
        "branch-misses",
        "branches in the guest that were mispredicted",
        Source::Hardware(HardwareEvent::BranchMisses),
    ),
    (
        "cache-references",
        "cache accesses in the guest",
        Source::Hardware(HardwareEvent::CacheReferences),
    ),
    (
        "cache-misses",
        "cache misses in the guest",
        Source::Hardware(HardwareEvent::CacheMisses),
    ),
];

/// What the document says of an event.
fn event(kind: EventKind) -> Event {
    Event {
        name: kind.name().to_owned(),
        description: kind.plural().to_owned(),
        missing: kernel_events::missing(kind),
    }
}

/// KVM's statistics and the processor's counters of one vCPU.
#[derive(Debug)]
struct VcpuSources {
    shared: Arc<VcpuShared>,
    kvm: io::Result<KvmStats>,
    /// Opened when somebody asks for the first time.
    hardware: [OnceLock<io::Result<HardwareCounter>>; 6],
}

/// The counters of a machine.
#[derive(Debug)]
pub struct MachineCounters {
    vcpus: Vec<VcpuSources>,
}

impl MachineCounters {
    /// Those of the vCPUs with these descriptors and threads.
    pub fn new<'a, F: AsRawFd + 'a>(
        vcpus: impl IntoIterator<Item = (&'a F, Arc<VcpuShared>)>,
    ) -> Self {
        let sources = |(fd, shared)| VcpuSources {
            shared,
            kvm: KvmStats::open(fd),
            hardware: Default::default(),
        };
        Self {
            vcpus: vcpus.into_iter().map(sources).collect(),
        }
    }

    /// All of them now; `ledgers` are the accounts of the vCPUs' clocks.
    pub fn read(&self, ledgers: &[ClockLedger]) -> Counters {
        let counter = |(name, description, source): &Definition| {
            let values = self.vcpus.iter().zip(ledgers);
            let values = values.map(|(vcpu, ledger)| vcpu.value(*source, ledger));
            let (vcpus, missing) = match values.collect::<Result<Vec<u64>, String>>() {
                Ok(values) => (values, None),
                Err(why) => (Vec::new(), Some(why)),
            };
            let (from, unit) = match source {
                Source::CpuTime => ("kvmprof", "ns"),
                Source::Ticks | Source::Exits(_) | Source::Interrupted => ("kvmprof", ""),
                Source::Kvm(_) => ("kvm", ""),
                Source::Hardware(_) => ("processor", ""),
            };
            Counter {
                name: (*name).to_owned(),
                description: (*description).to_owned(),
                unit: unit.to_owned(),
                source: from.to_owned(),
                vcpus,
                missing,
            }
        };
        Counters {
            time: monotonic_ns(),
            counters: COUNTERS.iter().map(counter).collect(),
            events: EventKind::ALL.map(event).into(),
        }
    }
}

impl VcpuSources {
    /// The value of a counter, or why there is none.
    fn value(&self, source: Source, ledger: &ClockLedger) -> Result<u64, String> {
        match source {
            Source::CpuTime => {
                let time = self.shared.kicker.thread().and_then(thread_cpu_ns);
                // A thread that has ended has no clock any more.
                Ok(time.unwrap_or_default())
            }
            Source::Ticks => Ok(ledger.ticks),
            Source::Exits(exit) => Ok(self.shared.exits.of(exit)),
            Source::Interrupted => Ok(self.shared.exits.interrupted()),
            Source::Kvm(name) => match &self.kvm {
                Ok(stats) => {
                    (stats.value(name)).ok_or_else(|| format!("this KVM has no statistic {name}"))
                }
                Err(error) => Err(format!(
                    "KVM gives no statistics (KVM_GET_STATS_FD): {error}"
                )),
            },
            Source::Hardware(event) => self.hardware(event),
        }
    }

    fn hardware(&self, event: HardwareEvent) -> Result<u64, String> {
        let [
            cycles,
            instructions,
            references,
            misses,
            branches,
            mispredicted,
        ] = &self.hardware;
        let counter = match event {
            HardwareEvent::Cycles => cycles,
            HardwareEvent::Instructions => instructions,
            HardwareEvent::CacheReferences => references,
            HardwareEvent::CacheMisses => misses,
            HardwareEvent::Branches => branches,
            HardwareEvent::BranchMisses => mispredicted,
        };
        let Some(thread) = self.shared.kicker.thread() else {
            return Err("the vCPU doesn't run".to_owned());
        };
        match counter.get_or_init(|| HardwareCounter::open(event, thread)) {
            Ok(counter) => Ok(counter.value().unwrap_or_default()),
            Err(error) => Err(perf_event::why_not(error)),
        }
    }
}
