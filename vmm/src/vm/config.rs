//! The configuration of a guest.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;

use crate::vcpu::OnReset;
use kvmprof_machine::connector::{PortConnector, SocketConnector};
use kvmprof_machine::console::Console;
use kvmprof_machine::disk::DiskOptions;
use kvmprof_machine::network::NetworkConfig;
use kvmprof_machine::output_names::OutputNames;
use kvmprof_machine::share::{ShareHelper, ShareOptions};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_machine::vsock::VsockConfig;
use kvmprof_machine::{KernelSource, MachineConfig};
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::kernel_capture::CaptureHelper;

/// The guest to run, and how to profile it.
#[derive(Debug)]
pub struct VmConfig {
    /// The guest's kernel.
    pub kernel: KernelSource,
    /// The machine.
    pub machine: MachineConfig,
    /// Its disks, at most [`kvmprof_machine::disk::DISKS_MAX`].
    pub disks: Vec<DiskOptions>,
    /// The connection of its console.
    pub console: Console,
    /// Maximum number of bytes of the console's output that are written; `None` for no limit.
    pub console_limit: Option<u64>,
    /// Its access to the profiling devices through its ports.
    pub guest_access: GuestAccess,
    /// Its network devices.
    pub networks: Vec<NetworkConfig>,
    /// Folders of the host that are shared with it, at most [`kvmprof_machine::share::SHARES_MAX`]. Its memory is shareable if there are any.
    pub shares: Vec<ShareOptions>,
    /// The program that serves the folders; `None` to search for it.
    pub virtiofsd: Option<PathBuf>,
    /// The process that starts that program on behalf of this process, which may not be allowed to execute programs.
    pub share_helper: Option<Arc<ShareHelper>>,
    /// The process that connects to programs that serve folders already, and to the other ends of networks, on behalf of this process,
    /// which may not be allowed to connect.
    pub socket_connector: Option<Arc<SocketConnector>>,
    /// The process that connects to the sockets of the guest's socket device.
    pub port_connector: Option<Arc<PortConnector>>,
    /// The process that has the host's kernel take samples of vCPUs' threads, which may not be allowed to.
    pub capture_helper: Option<Arc<CaptureHelper>>,
    /// The process that makes the guest's sockets and the file of its recording, and renames and removes them.
    pub output_names: Option<Arc<OutputNames>>,
    /// Its socket device, if it has one.
    pub vsock: Option<VsockConfig>,
    /// How it is profiled.
    pub profiling: ProfilingConfig,
    /// Whether the vCPUs wait until there is a consumer of samples.
    pub hold: bool,
    /// Maximum run time of the guest, from its start.
    pub time_limit: Option<Duration>,
    /// The text on the console that ends the guest.
    pub until: Option<String>,
    /// The event that is written to when the console has that text.
    pub said: Option<Arc<EventFd>>,
    /// The effect of a reset of the guest.
    pub on_reset: OnReset,
    /// Whether the process may only use the files that it can need, once the guest's files are open (`kvmprof_sandbox::paths`).
    pub restrict_paths: bool,
}

impl VmConfig {
    /// A configuration of `machine` with this kernel, without further devices and without a console. A reset ends the guest. The guest has no ports, clients
    /// can't connect to it, and its clock runs at the default rate.
    #[must_use]
    pub fn new(kernel: KernelSource, machine: MachineConfig) -> Self {
        Self {
            kernel,
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
            capture_helper: None,
            output_names: None,
            vsock: None,
            profiling: ProfilingConfig::default(),
            hold: false,
            time_limit: None,
            until: None,
            said: None,
            on_reset: OnReset::Exit,
            restrict_paths: false,
        }
    }
}
