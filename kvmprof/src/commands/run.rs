//! `kvmprof run`.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, CommandFactory, ValueEnum};
use kvmprof_abi::prf::{MAX_ADDRESSES, MIN_ADDRESSES};

use super::clock::ClockOptions;
use super::config;
use super::exit::{start_error, status_of_guest};
use super::record_limit::{RecordLimit, whole_recording};
use super::root::RootOptions;
use super::sandbox::SandboxOptions;
use super::thread_panics;
use super::units::{parse_guest_memory, parse_memory, parse_stacks};
use kvmprof_client::named_socket;
use kvmprof_introspection::GuestKnowledge;
use kvmprof_recording::file::RecordingFailure;
use kvmprof_recording::{SamplingEvent, StackParts};
use kvmprof_tools::command_line::{Command, Console, ExitStatus, usage, value};
use kvmprof_vmm::clock::{DEFAULT_HZ, MAXIMUM_HZ};
use kvmprof_vmm::console::{self, ESCAPE_HELP, RawTerminal};
use kvmprof_vmm::disk::DiskOptions;
use kvmprof_vmm::machine::{KernelSource, MachineConfig, MemoryOptions};
use kvmprof_vmm::network::NetworkConfig;
use kvmprof_vmm::profiler::RecordPlan;
use kvmprof_vmm::share::ShareOptions;
use kvmprof_vmm::virtio::GuestAccess;
use kvmprof_vmm::vm::{OnReset, Vm, VmConfig, VmEnd, block_signals};
use kvmprof_vmm::vsock::VsockConfig;

/// The argument of `--on-reset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ResetChoice {
    /// The guest starts anew, with the kernel and the initial RAM disk that it was started with, and is profiled on
    #[default]
    Restart,
    /// The guest has ended
    Exit,
}

impl From<ResetChoice> for OnReset {
    fn from(choice: ResetChoice) -> Self {
        match choice {
            ResetChoice::Restart => Self::Restart,
            ResetChoice::Exit => Self::Exit,
        }
    }
}

/// Options of `kvmprof run`.
#[derive(Debug, Args)]
#[command(after_help = format!("On a terminal, {ESCAPE_HELP}.\n\n\
    Exit status: 0 when the guest powered off, was stopped, or was reset with --on-reset exit; 1 for an error; 2 for wrong \
    options, or where there is no KVM that can be used; 3 when no vCPU could go on; 4 when the guest's kernel panicked.\n\n\
    Example: kvmprof run --kernel vmlinuz --initrd initrd.img --cpus 2 --memory 1G --socket /run/guest.sock"))]
pub struct RunArguments {
    /// The guest's kernel: a Linux bzImage, or an ELF file
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// The initial RAM disk
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    #[command(flatten)]
    root: RootOptions,
    /// The kernel's command line, if not console=ttyS0 (with --console hvc: console=hvc0)
    #[arg(long, value_name = "WORDS")]
    cmdline: Option<String>,
    /// The guest's memory, such as 512M or 4G, and after a comma what it is made of on the host, if not of kvmprof's own
    /// memory: shared (a memfd), hugepages or hugepages=1G, or file=PATH
    #[arg(long, value_name = "SIZE[,KIND]", default_value = "512M", value_parser = parse_guest_memory)]
    memory: MemoryOptions,
    /// How many vCPUs the guest has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: u16,
    /// A disk of the guest, up to 16 of them: an image's path, and after commas readonly, format=raw or format=qcow2,
    /// serial=S, backing=anywhere
    #[arg(long = "disk", value_name = "PATH[,OPTION...]")]
    disks: Vec<DiskOptions>,
    /// Where the guest's console is: stdio (its serial port), hvc (its virtio console, on standard
    /// input and output), none or file:PATH, which is emptied when the guest starts
    #[arg(long, value_name = "WHERE", default_value = "stdio")]
    console: console::Console,
    /// How many bytes of output --console file:PATH gets at most, such as 64M; what the guest says after that is thrown away
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    console_limit: Option<u64>,
    /// What the guest may do with the profiling devices through its own ports: none, pcs, prf,
    /// profil, pmc or all
    #[arg(long, value_name = "DEVICES", default_value = "all")]
    guest_access: GuestAccess,
    /// A network device of the guest: tap=NAME, an existing tap interface of the host, or socket=PATH, where a program
    /// such as passt listens; with ,mac=ADDRESS to give it an address. Several are possible
    #[arg(long = "net", value_name = "END[,mac=ADDRESS]")]
    networks: Vec<NetworkConfig>,
    /// A folder of the host that the guest can mount, up to 16 of them: DIR=TAG, where TAG is its name in the guest (mount -t
    /// virtiofs TAG /mnt), with ,readonly if nothing in it may be changed; or socket=PATH,tag=TAG, where a vhost-user
    /// program listens already
    #[arg(long = "share", value_name = "DIR=TAG[,readonly]")]
    shares: Vec<ShareOptions>,
    /// The program virtiofsd, which serves shared folders, if not the one in PATH or where distributions put it
    #[arg(long, value_name = "PATH")]
    virtiofsd: Option<PathBuf>,
    /// Give the guest a memory balloon: memory that it doesn't need goes back to the host, and the status has what it says of
    /// its memory
    #[arg(long)]
    balloon: bool,
    /// A socket device (vsock) for connections between the guest, whose address is CID (3 or more), and Unix sockets of the
    /// host: PATH for connections to the guest, PATH_PORT for the guest's own
    #[arg(long, value_name = "CID,socket=PATH")]
    vsock: Option<VsockConfig>,
    /// Listen at this path for clients, such as getpc, record and status
    #[arg(long, short, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen for clients at a socket of this name in /run/kvmprof, or for other users than root in $XDG_RUNTIME_DIR/kvmprof.
    /// Clients find it without --socket if it is the only one
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    name: Option<String>,
    /// Ticks of the profiling clock a second on each vCPU; 0: no clock
    #[arg(long, value_name = "HZ", default_value_t = DEFAULT_HZ, value_parser = value::rate_or_none)]
    hz: u32,
    #[command(flatten)]
    clock: ClockOptions,
    /// Hold the vCPUs until a client starts to gather samples or turns prf on
    #[arg(long)]
    wait: bool,
    /// How many addresses a table of prf may have
    #[arg(long, value_name = "N", default_value_t = MAX_ADDRESSES, value_parser = parse_addresses)]
    prf_addresses: usize,
    /// Record every tick to this file, from the guest's first instruction to its end; see kvmprof report. An older file
    /// is replaced when the first samples come
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    limit: RecordLimit,
    /// The parts of call stacks that are recorded: kernel, user, both with a comma between them, or none
    #[arg(long, value_name = "PARTS", default_value = "kernel,user", value_parser = parse_stacks, requires = "record")]
    stacks: StackParts,
    /// Have --record sample one of every N events of a vCPU instead of by the clock, as kvmprof record does
    #[arg(long, value_name = "EVENT:N", requires = "record")]
    event: Option<SamplingEvent>,
    /// A folder with the guest's files, or some of them: programs in recordings are looked for there first. Files are
    /// used whose build id, or else whose length, is that of the file in the guest
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// Where the guest keeps the pid of the running process, if its image doesn't say:
    /// absolute:ADDRESS[,OFFSET...]:BYTES, gs:OFFSET[,OFFSET...]:BYTES, or none
    #[arg(long, value_name = "PLACE")]
    pid_at: Option<String>,
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// What a reset of the guest does
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    on_reset: ResetChoice,
    /// Take options from this TOML file, by their names without the dashes (cpus = 2). Those that are given on the command
    /// line too take their places
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print all options, with those of --config, in the form of such a file, and run nothing
    #[arg(long)]
    print_config: bool,
}

impl Command for RunArguments {
    /// Runs a guest until it ends.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let failure = RecordingFailure::default();
        let mut config = self.config(&failure)?;
        if self.print_config {
            return print_config(console);
        }
        if let Some(name) = &self.name {
            config.socket = Some(named_socket(name)?);
        }
        config.share_helper = self.sandbox.start(&config.shares)?;
        let disk = self.root.make_disk(&self.kernel, &self.console)?;
        if let Some(disk) = &disk {
            config.machine.initrd = Some(disk.path());
        }
        block_signals().context("Cannot block signals")?;
        thread_panics::end_program();
        let on_terminal = self.console.has_input();
        let vm = Vm::start(config).map_err(start_error)?;
        let terminal = if on_terminal {
            RawTerminal::enter().context("Cannot set up the terminal")?
        } else {
            None
        };
        let devices = Arc::clone(vm.devices());
        kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Main);
        let end = vm.join();
        drop(terminal);
        let end = end?;
        let status = match self.root.folder() {
            Some(_) if matches!(end, VmEnd::PowerOff) => self.root.status(&devices),
            _ => status_of_guest(end),
        };
        // What went wrong with the guest counts for more.
        let status = status?;
        whole_recording(&failure)?;
        Ok(status)
    }
}

impl RunArguments {
    /// Checks that the options go together. `failure` learns that the recording isn't whole.
    fn config(&self, failure: &RecordingFailure) -> anyhow::Result<VmConfig> {
        self.clock.check()?;
        if self.console_limit.is_some() && !matches!(self.console, console::Console::File(_)) {
            return Err(usage("--console-limit is for --console file:PATH"));
        }
        if self.wait && self.socket.is_none() && self.name.is_none() && self.record.is_none() {
            return Err(usage(
                "--wait without --socket or --name would wait for ever: no client could start the guest",
            ));
        }
        check_networks(&self.networks)?;
        if self.record.is_some() && self.event.is_none() && self.hz == 0 {
            return Err(usage(format_args!(
                "--record needs a clock or an --event: give --hz a number from 1 to {MAXIMUM_HZ}"
            )));
        }
        let knowledge = self.pid_at.as_deref().map(pid_at).transpose();
        Ok(VmConfig {
            machine: MachineConfig {
                kernel: KernelSource::Path(self.kernel.clone()),
                initrd: self.initrd.clone(),
                command_line: (self.cmdline.clone())
                    .unwrap_or_else(|| default_command_line(&self.console)),
                memory: self.memory.clone(),
                cpus: self.cpus,
            },
            disks: self.disks.clone(),
            console: self.console.clone(),
            console_limit: self.console_limit,
            guest_access: self.guest_access,
            networks: self.networks.clone(),
            shares: self
                .shares
                .iter()
                .cloned()
                .chain(self.root.share())
                .collect(),
            virtiofsd: self.virtiofsd.clone(),
            share_helper: None,
            balloon: self.balloon,
            vsock: self.vsock.clone(),
            hz: self.hz,
            clock_source: self.clock.source,
            jitter: self.clock.jitter,
            hold: self.wait,
            socket: self.socket.clone(),
            prf_addresses: self.prf_addresses,
            record: self.record.clone().map(|path| RecordPlan {
                path,
                stacks: self.stacks,
                event: self.event,
                file: self.limit.file(failure),
            }),
            // What the guest runs is there, unless it comes from elsewhere; then it is seen to be another file.
            sysroot: (self.sysroot.clone()).or_else(|| self.root.folder().map(Path::to_owned)),
            on_reset: self.on_reset.into(),
            restrict_paths: self.sandbox.restricts_paths(),
            knowledge: knowledge.map_err(usage)?,
        })
    }
}

/// Prints the options of this process's command line.
fn print_config(console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    let program = super::Arguments::command();
    let arguments = config::expand(&program, env::args_os().collect())?;
    let text = config::print(&program, &arguments)?;
    let written = console.output.write_all(text.as_bytes());
    written.context("Cannot write the options")?;
    Ok(ExitStatus::SUCCESS)
}

/// Checks that no two devices have the same end or the same address.
fn check_networks(networks: &[NetworkConfig]) -> anyhow::Result<()> {
    for (index, network) in networks.iter().enumerate() {
        let others = || networks.iter().take(index);
        if others().any(|other| other.peer == network.peer) {
            let peer = &network.peer;
            return Err(usage(format_args!("--net {peer} is there twice")));
        }
        if let Some(mac) = network.mac
            && others().any(|other| other.mac == Some(mac))
        {
            return Err(usage(format_args!(
                "Two networks have the address {mac}: each needs its own"
            )));
        }
    }
    Ok(())
}

/// Linux, told where its console is.
fn default_command_line(console: &console::Console) -> String {
    match console {
        console::Console::Hvc => "console=hvc0".to_owned(),
        _ => "console=ttyS0".to_owned(),
    }
}

/// What `--pid-at` says of the guest.
pub(super) fn pid_at(place: &str) -> Result<GuestKnowledge, String> {
    if place == "none" {
        return Ok(GuestKnowledge::unknown());
    }
    GuestKnowledge::from_pid_at(place).map_err(|error| format!("Invalid --pid-at: {error}"))
}

/// How many addresses `--prf-addresses` allows.
fn parse_addresses(word: &str) -> Result<usize, String> {
    word.parse()
        .ok()
        .filter(|addresses| (MIN_ADDRESSES..=MAX_ADDRESSES).contains(addresses))
        .ok_or_else(|| format!("'{word}' isn't a number from {MIN_ADDRESSES} to {MAX_ADDRESSES}"))
}
