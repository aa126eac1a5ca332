//! The counters of a guest: those of kvmprof, of KVM and of the processor, for the whole guest and for its processes.

mod hardware;
mod kvm_stats;
mod processes;
mod sources;
mod vcpu_counting;

use std::os::fd::AsRawFd;
use std::sync::Arc;

use kvmprof_abi::pmc::CounterId;
use kvmprof_recording::EventKind;
use kvmprof_recording::counters::{Counter, Counters, Event};

use crate::clock::monotonic_ns;
use crate::kernel_events;
use crate::sampling::VcpuShared;
use hardware::HardwareProbes;
use sources::VcpuSources;

pub use processes::{CountedProcess, KnownProcess, ProcessCounts};
pub use vcpu_counting::{VcpuCounting, process_key};

/// The description of an event in the document.
fn event(kind: EventKind) -> Event {
    Event {
        name: kind.name().to_owned(),
        description: kind.plural().to_owned(),
        missing: kernel_events::unavailable(kind),
    }
}

/// The counters of a machine. By default it has none: those of another program's guest.
#[derive(Debug, Default)]
pub struct MachineCounters {
    vcpus: Vec<Arc<VcpuSources>>,
}

impl MachineCounters {
    /// The counters of the vCPUs with these descriptors and threads.
    pub fn new<'a, F: AsRawFd + 'a>(
        vcpus: impl IntoIterator<Item = (&'a F, Arc<VcpuShared>)>,
    ) -> Self {
        let probes = Arc::<HardwareProbes>::default();
        let sources = |(fd, shared)| Arc::new(VcpuSources::new(fd, shared, Arc::clone(&probes)));
        Self {
            vcpus: vcpus.into_iter().map(sources).collect(),
        }
    }

    /// The counting for the processes on the vCPUs, into `counts`: one for each vCPU, for its thread.
    pub fn of_processes(&self, counts: &Arc<ProcessCounts>) -> Vec<VcpuCounting> {
        let vcpus = self.vcpus.iter().enumerate();
        vcpus
            .map(|(vcpu, sources)| VcpuCounting::new(vcpu, Arc::clone(sources), Arc::clone(counts)))
            .collect()
    }

    /// Reads all counters. `ticks` are the numbers of ticks that the vCPUs' clocks have made.
    pub fn read(&self, ticks: &[u64]) -> Counters {
        let counter = |id: CounterId| {
            let (vcpus, missing) = match self.values(id, ticks) {
                Ok(values) => (values, None),
                Err(why) => (Vec::new(), Some(why)),
            };
            let unit = if id == CounterId::CpuTime { "ns" } else { "" };
            Counter {
                name: id.name().to_owned(),
                description: id.description().to_owned(),
                unit: unit.to_owned(),
                source: id.source().name().to_owned(),
                vcpus,
                missing,
            }
        };
        Counters {
            time: monotonic_ns(),
            counters: CounterId::ALL.into_iter().map(counter).collect(),
            events: EventKind::ALL.map(event).into(),
            processes: None,
        }
    }

    /// The value of `counter` on each vCPU, or why it is unknown.
    ///
    /// # Errors
    /// The reason why this host doesn't have the counter, in words.
    pub fn values(&self, counter: CounterId, ticks: &[u64]) -> Result<Vec<u64>, String> {
        let vcpus = self.vcpus.iter().zip(ticks);
        vcpus
            .map(|(vcpu, ticks)| vcpu.value(counter, *ticks))
            .collect()
    }
}
