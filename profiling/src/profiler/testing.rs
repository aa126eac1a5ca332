//! A profiler of vCPUs without threads, for tests and fuzz targets.
//!
//! Only compiled for this crate's own tests and with the feature `testing`, which the product doesn't use.
#![expect(
    clippy::unwrap_used,
    reason = "a profiler that can't be put together is a failed test"
)]

use std::sync::Arc;

use kvmprof_introspection::GuestKnowledge;
use vm_memory::GuestAddress;

use super::{ClockPlan, DeviceMonitors, MachineInfo, OnVcpus, Profiler};
use crate::binaries::BinarySources;
use crate::clock::ClockSource;
use crate::config::ProfilingConfig;
use crate::counters::MachineCounters;
use crate::sampling::{Doorbell, RegisterSource, TickSender, VcpuShared, tick_ring};
use kvmprof_machine::{GuestMemory, MachineDevices};

/// Size of the guest's memory in bytes.
const MEMORY: usize = 0x1000;
/// Maximum number of addresses in a table of prf.
const PRF_ADDRESSES: usize = 64;

/// A vCPU's thread's end.
pub struct VcpuEnd {
    /// The state that it shares with the profiler.
    pub shared: Arc<VcpuShared>,
    /// Its ring of ticks.
    pub ticks: TickSender,
}

/// A profiler of `vcpus` vCPUs without threads, whose clock makes `hz` ticks a second when it runs, with the vCPUs' ends. Without
/// `devices`, another program runs the guest.
///
/// # Panics
/// The host has no file descriptors or memory left.
pub fn profiler_without_threads(
    vcpus: u16,
    hz: u32,
    devices: Option<Arc<MachineDevices>>,
) -> (Profiler, Vec<VcpuEnd>) {
    let doorbell = Arc::new(Doorbell::new().unwrap());
    let (mut ends, mut links) = (Vec::new(), Vec::new());
    for vcpu in 0..vcpus {
        let shared = Arc::<VcpuShared>::default();
        let (ticks, receiver) = tick_ring(vcpu, Arc::clone(&doorbell));
        links.push((Arc::clone(&shared), receiver));
        ends.push(VcpuEnd { shared, ticks });
    }
    let knowledge = Arc::new(GuestKnowledge::unknown());
    let memory = GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let info = MachineInfo {
        kernel: "none".to_owned(),
        memory_bytes: MEMORY as u64,
        devices,
        monitors: DeviceMonitors::default(),
        counters: MachineCounters::default(),
        knowledge: Arc::clone(&knowledge),
        memory: Some(memory.clone()),
        host_stacks: None,
        events: Vec::new(),
        halted_ticks: None,
        restarts: Arc::default(),
    };
    let profiling = ProfilingConfig {
        hz,
        prf_addresses: PRF_ADDRESSES,
        ..ProfilingConfig::default()
    };
    let plan = ClockPlan {
        profiling: Arc::new(profiling),
        fallback: ClockSource::Thread,
        of_recordings: ClockSource::Thread,
        registers: RegisterSource::RunPage,
    };
    let profiler = Profiler::new(
        links,
        plan,
        Arc::default(),
        info,
        Some(OnVcpus::new(vcpus.into())),
        BinarySources::new(Arc::new(memory), knowledge, None, None),
    );
    (profiler, ends)
}
