//! The status document: the machine, the clock, each consumer, and every ledger.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Profiler, RecordPlan, RecordWish};
use crate::introspection::GuestKnowledge;
use crate::machine::MachineDevices;
use crate::virtio::ConsoleRecord;

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
                "virtio": self.facts.devices.virtio().map(|device| virtio(&device.record())),
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
                "ledger": object(self.clock_ledger().fields()),
                "vcpus": self
                    .vcpus
                    .iter()
                    .map(|vcpu| object(vcpu.ledger.fields()))
                    .collect::<Vec<_>>(),
            },
            "consumers": self.consumers(),
        })
    }

    fn consumers(&self) -> Vec<Value> {
        let pcs = json!({
            "name": "pcs",
            "open": self.pcs.is_open(),
            "gathering": self.pcs.is_gathering(),
            "ledger": object(self.pcs.ledger().fields()),
        });
        let prf = self.prf.reports().map(|minor| {
            json!({
                "name": format!("prf {}", minor.minor),
                "minor": minor.minor,
                "on": minor.on,
                "loaded": true,
                "addresses": minor.addresses,
                "ledger": object(minor.ledger.fields()),
            })
        });
        let recorder = self.recorder.iter().map(|recorder| {
            let RecordPlan { path, stacks } = recorder.plan();
            json!({
                "name": "recorder",
                "path": path.to_string_lossy(),
                "recording": recorder.is_writing(),
                "stacks": { "kernel": stacks.kernel, "user": stacks.user },
                "pids": [],
                "ledger": object(recorder.ledger().fields()),
            })
        });
        let streams = self.streams.values().map(|stream| {
            let RecordWish { stacks, pids } = stream.wish();
            json!({
                "name": "recorder",
                "path": null,
                "recording": stream.wants_ticks(),
                "stacks": { "kernel": stacks.kernel, "user": stacks.user },
                "pids": pids,
                "ledger": object(stream.ledger().fields()),
            })
        });
        let recorder = recorder.chain(streams);
        std::iter::once(pcs).chain(prf).chain(recorder).collect()
    }
}

/// What the guest's driver of the console device has done wrong, for the most part.
fn virtio(record: &ConsoleRecord) -> Value {
    let ports = record.console.ports.iter().map(|(name, faults)| {
        json!({
            "name": name,
            "queue_faults": faults.queue,
            "protocol_faults": faults.protocol,
        })
    });
    json!({
        "resets": record.transport.resets,
        "refused_queues": record.transport.refused_queues,
        "control_faults": record.console.control,
        "ports": ports.collect::<Vec<_>>(),
    })
}

fn object<const N: usize>(fields: [(&str, u64); N]) -> Value {
    fields
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Value::from(value)))
        .collect::<Map<_, _>>()
        .into()
}
