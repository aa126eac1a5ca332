//! The status document: the machine, the clock, each consumer, and every ledger.

use std::sync::Arc;

use kvmprof_attach::HostStacks;
use kvmprof_introspection::GuestKnowledge;
use kvmprof_recording::EventKind;
use kvmprof_recording::status::{
    ClockStatus, LimitsStatus, LinuxStatus, MachineStatus, Status, UnclaimedAccesses,
};

use super::Profiler;
use super::consumers::Consumer;
use super::restarts::RestartTimes;
use crate::clock::{HaltedTicks, TickSource};
use crate::counters::MachineCounters;
use kvmprof_machine::virtio::DeviceMonitor;
use kvmprof_machine::{GuestMemory, MachineDevices};

/// Information on the machine for the status.
pub struct MachineInfo {
    /// The kernel's file, or another name of the kernel.
    pub kernel: String,
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// The devices, which count accesses that no device answers; `None` if another program runs the guest.
    pub devices: Option<Arc<MachineDevices>>,
    /// The monitors of devices that are served by threads of their own.
    pub monitors: DeviceMonitors,
    /// The machine's counters.
    pub counters: MachineCounters,
    /// The knowledge of the guest, which identifies its processes.
    pub knowledge: Arc<GuestKnowledge>,
    /// Guest memory; `None` if another program runs the guest.
    pub memory: Option<GuestMemory>,
    /// The host's functions, if samples have its stacks, and the names of exits, if they have these.
    pub host_stacks: Option<Arc<HostStacks>>,
    /// The events at which the host's kernel samples a guest that another program runs.
    pub events: Vec<EventKind>,
    /// The way in which ticks of halted vCPUs are counted; `None` until the host has been checked.
    pub halted_ticks: Option<HaltedTicks>,
    /// When the guest was restarted.
    pub restarts: Arc<RestartTimes>,
}

/// The monitors of devices that are served by threads of their own, in the order in which the status has them.
pub type DeviceMonitors = Vec<Arc<dyn DeviceMonitor>>;

impl Profiler {
    /// Says how the ticks of halted vCPUs are counted on this host.
    pub fn halted_ticks_are(&mut self, halted_ticks: HaltedTicks) {
        self.info.halted_ticks = Some(halted_ticks);
    }

    /// The whole status at this moment; `guest/abi/WIRE.md` describes its JSON form.
    pub fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: self.machine_status(),
            sandbox: kvmprof_sandbox::state::state()
                .into_iter()
                .map(|(part, how)| (part.name().to_owned(), how))
                .collect(),
            clock: self.clock_status(),
            limits: self.limits_status(),
            consumers: self.consumers.iter().flat_map(Consumer::status).collect(),
        }
    }

    fn machine_status(&self) -> MachineStatus {
        let devices = self.info.devices.as_ref();
        let unclaimed = devices.map(|devices| devices.unclaimed_accesses());
        let unclaimed = unclaimed.unwrap_or_default();
        let mut machine = MachineStatus {
            kernel: self.info.kernel.clone(),
            memory_bytes: self.info.memory_bytes,
            vcpus: self.clocks.ledgers().len(),
            introspection: self.info.knowledge.describe(),
            linux: self.info.knowledge.linux().map(|linux| LinuxStatus {
                release: linux.release().to_owned(),
                slide: linux.slide(),
                gaps: linux.gaps().to_vec(),
            }),
            unclaimed_accesses: UnclaimedAccesses {
                port_reads: unclaimed.port_reads,
                port_writes: unclaimed.port_writes,
                mmio_reads: unclaimed.mmio_reads,
                mmio_writes: unclaimed.mmio_writes,
            },
            virtio: devices
                .and_then(|devices| devices.virtio_console())
                .map(|device| device.status()),
            held: !self.gate.is_open(),
            paused: self.wants_pause && !self.has_ended,
            power_button: !self.has_ended
                && (self.control.as_ref()).is_some_and(|control| control.hears_power_button()),
            resets: self.resets,
            ended: self.has_ended,
            ..MachineStatus::default()
        };
        for device in &self.info.monitors {
            device.enter(&mut machine);
        }
        machine
    }

    fn limits_status(&self) -> LimitsStatus {
        let linux = self.info.knowledge.linux();
        let modules = linux.map(|linux| linux.modules().omissions());
        let modules = modules.unwrap_or_default();
        let mut limits = LimitsStatus {
            forgotten_modules: modules.forgotten,
            refused_modules: modules.refused,
            forgotten_names: self.names.forgotten(),
            ..LimitsStatus::default()
        };
        self.processes.enter_omissions(&mut limits);
        limits
    }

    fn clock_status(&self) -> ClockStatus {
        let plan = self.clocks.plan();
        let source = self.clocks.setting().source;
        ClockStatus {
            hz: match source {
                Some(TickSource::Clock(hz)) => hz,
                Some(TickSource::Event(_)) | None => plan.profiling.hz,
            },
            running: matches!(source, Some(TickSource::Clock(_))),
            event: source
                .and_then(TickSource::event)
                .map(|event| event.to_string()),
            source: self.clocks.source().name().to_owned(),
            jitter: plan.profiling.jitter,
            registers: plan.registers.name().to_owned(),
            halted_ticks: (self.info.halted_ticks)
                .map_or_else(String::new, |ticks| ticks.name().to_owned()),
            ledger: self.clock_ledger(),
            vcpus: self.clocks.ledgers().collect(),
            unread_processes: self.clocks.unread_processes(),
        }
    }
}
