//! The sources of the values of one vCPU's counters.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kvmprof_abi::pmc::CounterId;

use super::hardware::{HardwareCounter, HardwareProbes};
use super::kvm_stats::KvmStats;
use crate::clock::thread_cpu_ns;
use crate::perf_event::{self, HardwareEvent};
use crate::sampling::{GuestExit, VcpuShared};

/// The statistics that are counters here, by KVM's names.
const STATISTICS: [&str; 6] = [
    "exits",
    "halt_exits",
    "irq_injections",
    "tlb_flush",
    "insn_emulation",
    "pf_taken",
];

/// The source of a counter's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Processor time of the vCPU's thread.
    CpuTime,
    /// The profiling clock's ticks.
    Ticks,
    /// Exits to kvmprof that the guest has caused.
    Exits(GuestExit),
    /// Exits that kvmprof has caused.
    Interrupted,
    /// This one of KVM's statistics.
    Kvm(usize),
    /// The processor's counter.
    Hardware(HardwareEvent),
}

impl Source {
    /// The source of `counter`.
    pub fn of(counter: CounterId) -> Self {
        match counter {
            CounterId::CpuTime => Self::CpuTime,
            CounterId::Ticks => Self::Ticks,
            CounterId::PortReads => Self::Exits(GuestExit::PortRead),
            CounterId::PortWrites => Self::Exits(GuestExit::PortWrite),
            CounterId::MmioReads => Self::Exits(GuestExit::MmioRead),
            CounterId::MmioWrites => Self::Exits(GuestExit::MmioWrite),
            CounterId::Interrupted => Self::Interrupted,
            CounterId::Exits => Self::Kvm(0),
            CounterId::Halts => Self::Kvm(1),
            CounterId::Interrupts => Self::Kvm(2),
            CounterId::TlbFlushes => Self::Kvm(3),
            CounterId::Emulated => Self::Kvm(4),
            CounterId::PageFaults => Self::Kvm(5),
            CounterId::Cycles => Self::Hardware(HardwareEvent::Cycles),
            CounterId::Instructions => Self::Hardware(HardwareEvent::Instructions),
            CounterId::Branches => Self::Hardware(HardwareEvent::Branches),
            CounterId::BranchMisses => Self::Hardware(HardwareEvent::BranchMisses),
            CounterId::CacheReferences => Self::Hardware(HardwareEvent::CacheReferences),
            CounterId::CacheMisses => Self::Hardware(HardwareEvent::CacheMisses),
        }
    }
}

/// KVM's statistics and the processor's counters of one vCPU, and what kvmprof counts of it.
#[derive(Debug)]
pub struct VcpuSources {
    shared: Arc<VcpuShared>,
    kvm: io::Result<KvmStats>,
    /// The processor's counters. The vCPU's thread opens them on request: no thread may count another thread's events (`kvmprof_sandbox`).
    hardware: [OnceLock<io::Result<HardwareCounter>>; HardwareEvent::COUNT],
    /// Which of the processor's counters exist, before they are opened.
    probes: Arc<HardwareProbes>,
    /// The bits of the counters that the vCPU's thread is to open.
    asked_for: AtomicU32,
}

impl VcpuSources {
    /// The sources of the vCPU with this descriptor. `probes` are the same for all vCPUs.
    pub fn new(
        descriptor: &impl AsRawFd,
        shared: Arc<VcpuShared>,
        probes: Arc<HardwareProbes>,
    ) -> Self {
        Self {
            shared,
            kvm: KvmStats::open(descriptor, &STATISTICS),
            hardware: Default::default(),
            probes,
            asked_for: AtomicU32::new(0),
        }
    }

    /// The value of `counter`, or why there is none. A counter of the processor is 0 until the vCPU's thread has opened it. `ticks` is the number of ticks
    /// that the vCPU's clock has made.
    pub fn value(&self, counter: CounterId, ticks: u64) -> Result<u64, String> {
        match Source::of(counter) {
            Source::CpuTime => {
                let time = self.shared.kicker.thread().and_then(thread_cpu_ns);
                // A thread that has ended has no clock any more.
                Ok(time.unwrap_or_default())
            }
            Source::Ticks => Ok(ticks),
            Source::Exits(exit) => Ok(self.shared.exits.of(exit)),
            Source::Interrupted => Ok(self.shared.exits.interrupted()),
            Source::Kvm(index) => match &self.kvm {
                Ok(stats) => stats.value(index).ok_or_else(|| {
                    let name = STATISTICS.get(index).copied().unwrap_or_default();
                    format!("this KVM has no statistic {name}")
                }),
                Err(error) => Err(format!(
                    "KVM gives no statistics (KVM_GET_STATS_FD): {error}"
                )),
            },
            Source::Hardware(event) => self.hardware(event),
        }
    }

    /// The value of `counter` now, on the vCPU's own thread; `None` for one that has to be counted by each event, or isn't there. A counter of the
    /// processor is there after the first request for its [`VcpuSources::value`].
    pub fn value_on_thread(&self, counter: CounterId) -> Option<u64> {
        match Source::of(counter) {
            // The calling thread's.
            Source::CpuTime => thread_cpu_ns(0),
            Source::Kvm(index) => self.kvm.as_ref().ok()?.value(index),
            Source::Hardware(event) => {
                let counter = self.hardware[event as usize].get()?;
                counter.as_ref().ok()?.value()
            }
            Source::Ticks | Source::Exits(_) | Source::Interrupted => None,
        }
    }

    fn hardware(&self, event: HardwareEvent) -> Result<u64, String> {
        if !self.shared.kicker.is_attached() {
            return Err("the vCPU doesn't run".to_owned());
        }
        match self.hardware[event as usize].get() {
            Some(Ok(counter)) => Ok(counter.value().unwrap_or_default()),
            Some(Err(error)) => Err(perf_event::why_not(error)),
            None => {
                // The vCPU's thread may open the counter much later, because the guest may be paused.
                let try_it = || HardwareCounter::open(event).map(drop);
                self.probes.check(event, Instant::now(), try_it)?;
                self.asked_for.fetch_or(event.bit(), Ordering::Release);
                self.shared.kicker.kick();
                Ok(0)
            }
        }
    }

    /// Opens the requested counters of the processor. Call this on the vCPU's thread when it was kicked.
    pub fn open_asked_for(&self) {
        if self.asked_for.load(Ordering::Relaxed) == 0 {
            return;
        }
        let asked_for = self.asked_for.swap(0, Ordering::Acquire);
        for event in HardwareEvent::ALL {
            if asked_for & event.bit() != 0 {
                self.hardware[event as usize].get_or_init(|| HardwareCounter::open(event));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::not_run::not_run;
    use crate::signals;

    fn sources(shared: &Arc<VcpuShared>, probes: &Arc<HardwareProbes>) -> VcpuSources {
        let descriptor = File::open("/dev/null").unwrap();
        VcpuSources::new(&descriptor, Arc::clone(shared), Arc::clone(probes))
    }

    /// At least one counter's result differs from this host's, so that they don't come from it.
    #[test]
    fn a_result_of_the_host_applies_to_all_vcpus() {
        signals::block().unwrap();
        let probes = Arc::<HardwareProbes>::default();
        let now = Instant::now();
        let missing = || Err(io::Error::from_raw_os_error(libc::ENOENT));
        let said = probes.check(HardwareEvent::Cycles, now, missing);
        let has_said = probes.check(HardwareEvent::Instructions, now, || Ok(()));
        assert_eq!(has_said, Ok(()));
        for _ in 0..2 {
            let shared = Arc::<VcpuShared>::default();
            shared.kicker.attach();
            let sources = sources(&shared, &probes);
            for _ in 0..2 {
                let cycles = sources.value(CounterId::Cycles, 0);
                assert_eq!(cycles.map(drop), said);
                assert_eq!(sources.value(CounterId::Instructions, 0), Ok(0));
            }
            assert_eq!(signals::take_pending(), Some(signals::kick()));
        }
    }

    /// The caller only kicks the vCPU's thread, which is this one.
    #[test]
    fn a_counter_of_the_processor_is_opened_by_the_vcpus_thread() {
        if let Err(error) = HardwareCounter::open(HardwareEvent::Cycles) {
            return not_run(&perf_event::why_not(&error));
        }
        signals::block().unwrap();
        let shared = Arc::<VcpuShared>::default();
        let sources = sources(&shared, &Arc::default());
        let value = || sources.value(CounterId::Cycles, 0);
        let own_value = || sources.value_on_thread(CounterId::Cycles);
        assert!(value().unwrap_err().contains("doesn't run"));
        shared.kicker.attach();
        assert_eq!((value(), own_value()), (Ok(0), None));
        assert_eq!(signals::take_pending(), Some(signals::kick()));
        sources.open_asked_for();
        assert!(own_value().is_some() && value().is_ok());
        shared.kicker.seen();
        // No other thread is kicked for it.
        assert_eq!(signals::take_pending(), None);
    }
}
