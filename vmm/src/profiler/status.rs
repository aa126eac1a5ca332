//! The status document: the machine, the clock, each consumer, and every ledger.

use std::sync::Arc;

use kvmprof_devices::profiling::{ClockLedger, ConsumerLedger};
use serde_json::{Value, json};

use super::Profiler;
use crate::introspection::GuestKnowledge;
use crate::machine::MachineDevices;

/// The machine as the status shows it.
pub struct MachineFacts {
    /// The kernel's file, or what stands for it.
    pub kernel: String,
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// Counts accesses that no device answers.
    pub devices: Arc<MachineDevices>,
    /// How processes are told apart.
    pub knowledge: Arc<GuestKnowledge>,
    /// How ticks of halted vCPUs are counted.
    pub halted_ticks: &'static str,
}

impl Profiler {
    /// Everything, as one JSON object; its form is described in `guest/abi/WIRE.md`.
    pub fn status(&self) -> Value {
        let unclaimed = self.facts.devices.unclaimed_accesses();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "machine": {
                "kernel": self.facts.kernel,
                "memory_bytes": self.facts.memory_bytes,
                "vcpus": self.vcpus.len(),
                "introspection": self.facts.knowledge.describe(),
                "unclaimed_accesses": {
                    "port_reads": unclaimed.port_reads,
                    "port_writes": unclaimed.port_writes,
                    "mmio_reads": unclaimed.mmio_reads,
                    "mmio_writes": unclaimed.mmio_writes,
                },
                "held": !self.gate.is_open(),
                "ended": self.ended,
            },
            "clock": {
                "hz": if self.is_ticking() { self.hz } else { self.plan.hz },
                "running": self.is_ticking(),
                "source": self.plan.source.name(),
                "jitter": self.plan.jitter,
                "registers": self.plan.registers.name(),
                "halted_ticks": self.facts.halted_ticks,
                "ledger": clock_ledger(&self.clock_ledger()),
                "vcpus": self
                    .vcpus
                    .iter()
                    .map(|vcpu| clock_ledger(&vcpu.ledger))
                    .collect::<Vec<_>>(),
            },
            "consumers": [{
                "name": "pcs",
                "open": self.pcs.is_open(),
                "gathering": self.pcs.is_gathering(),
                "ledger": consumer_ledger(&self.pcs.ledger()),
            }],
        })
    }
}

fn clock_ledger(ledger: &ClockLedger) -> Value {
    json!({
        "ticks": ledger.ticks,
        "sampled": ledger.sampled,
        "idle": ledger.idle,
        "stolen": ledger.stolen,
        "lost": ledger.lost,
    })
}

fn consumer_ledger(ledger: &ConsumerLedger) -> Value {
    json!({
        "ticks": ledger.ticks,
        "recorded": ledger.recorded,
        "merged": ledger.merged,
        "ungathered": ledger.ungathered,
        "stolen": ledger.stolen,
        "lost": ledger.lost,
        "pending": ledger.pending,
        "discarded": ledger.discarded,
    })
}
