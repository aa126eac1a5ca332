//! A guest to be run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvmprof_introspection::GuestKnowledge;
use kvmprof_recording::DEFAULT_STACK_FRAMES;
use vmm_sys_util::eventfd::EventFd;

use crate::clock::{ClockSource, DEFAULT_HZ};
use crate::connector::SocketConnector;
use crate::console::Console;
use crate::disk::DiskOptions;
use crate::machine::MachineConfig;
use crate::network::{NetworkConfig, TapOpener};
use crate::profiler::RecordPlan;
use crate::share::{ShareHelper, ShareOptions};
use crate::vcpu::OnReset;
use crate::virtio::GuestAccess;
use crate::vsock::VsockConfig;

/// A guest to be run, and how it is profiled.
#[derive(Debug)]
pub struct VmConfig {
    /// The machine.
    pub machine: MachineConfig,
    /// Its disks, at most [`crate::disk::DISKS_MAX`].
    pub disks: Vec<DiskOptions>,
    /// Where its console is.
    pub console: Console,
    /// Bytes of the console's output that are written at most.
    pub console_limit: Option<u64>,
    /// What it may do with the profiling devices through its ports.
    pub guest_access: GuestAccess,
    /// Its network devices.
    pub networks: Vec<NetworkConfig>,
    /// Folders of the host that it has, at most [`crate::share::SHARES_MAX`]. Its memory is shareable if there are any.
    pub shares: Vec<ShareOptions>,
    /// The program that serves them, if it isn't to be searched for.
    pub virtiofsd: Option<PathBuf>,
    /// Who starts it in this process's place, if this process may execute no program.
    pub share_helper: Option<Arc<ShareHelper>>,
    /// Who connects to programs that serve folders already, and to the other ends of networks, in this process's place, if this process may not.
    pub socket_connector: Option<Arc<SocketConnector>>,
    /// The same for the sockets that the guest's socket device leads to.
    pub port_connector: Option<Arc<SocketConnector>>,
    /// Who opens taps again in this process's place, if this process may not.
    pub tap_opener: Option<Arc<TapOpener>>,
    /// Whether it has a memory balloon.
    pub balloon: bool,
    /// Its socket device, if it is to have one.
    pub vsock: Option<VsockConfig>,
    /// Ticks a second on each vCPU; 0: no clock.
    pub hz: u32,
    /// What drives the clocks.
    pub clock_source: ClockSource,
    /// Whether the stacks of the host's kernel and of this process are taken below the guest's, which only [`ClockSource::Kernel`] can.
    pub host_stacks: bool,
    /// Whether ticks have a random phase.
    pub jitter: bool,
    /// Whether the vCPUs wait until somebody gathers samples.
    pub hold: bool,
    /// Where clients connect.
    pub socket: Option<PathBuf>,
    /// Addresses that a table of prf may have; 3 to [`kvmprof_abi::prf::MAX_ADDRESSES`].
    pub prf_addresses: usize,
    /// Where every tick is recorded, if anywhere.
    pub record: Option<RecordPlan>,
    /// A folder on the host with the guest's files, where programs are looked for that recordings have stacks of.
    pub sysroot: Option<PathBuf>,
    /// Most frames of a call stack, half of them the kernel's; [`MAX_STACK_FRAMES`](kvmprof_recording::MAX_STACK_FRAMES) at most.
    pub max_stack: usize,
    /// How long the guest runs at most, from its start.
    pub time_limit: Option<Duration>,
    /// The guest ends when its console has this text.
    pub until: Option<String>,
    /// Is written to when the console has that text.
    pub said: Option<Arc<EventFd>>,
    /// What a reset of the guest does.
    pub on_reset: OnReset,
    /// Whether files, from when the guest's are open on, are only those that it can need (`kvmprof_sandbox::paths`).
    pub restrict_paths: bool,
    /// What is known of the guest, if it isn't to be learned from its image.
    pub knowledge: Option<GuestKnowledge>,
}

impl VmConfig {
    /// `machine` without further devices and without a console, whose reset ends it. It has no ports, nobody can connect to it, and its clock
    /// runs at the default rate.
    #[must_use]
    pub fn new(machine: MachineConfig) -> Self {
        Self {
            machine,
            disks: Vec::new(),
            console: Console::None,
            console_limit: None,
            guest_access: GuestAccess::None,
            networks: Vec::new(),
            shares: Vec::new(),
            virtiofsd: None,
            share_helper: None,
            socket_connector: None,
            port_connector: None,
            tap_opener: None,
            balloon: false,
            vsock: None,
            hz: DEFAULT_HZ,
            clock_source: ClockSource::Thread,
            host_stacks: false,
            jitter: false,
            hold: false,
            socket: None,
            prf_addresses: kvmprof_abi::prf::MAX_ADDRESSES,
            record: None,
            sysroot: None,
            max_stack: DEFAULT_STACK_FRAMES,
            time_limit: None,
            until: None,
            said: None,
            on_reset: OnReset::Exit,
            restrict_paths: false,
            knowledge: None,
        }
    }
}
