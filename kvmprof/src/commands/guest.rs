//! A guest that a command starts itself: its machine, its devices, its clock.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::{Arg, Args, ValueEnum};
use kvmprof_abi::prf::{MAX_ADDRESSES, MIN_ADDRESSES};

use super::exit::{start_error, status_of_guest};
use super::profiling::{ClockOptions, ProfilingOptions};
use super::root::RootOptions;
use super::sandbox::SandboxOptions;
use super::thread_panics;
use super::units::{parse_guest_memory, parse_memory};
use crate::commands::jail::{Bind, Needs};
use kvmprof_cli::command_line::{ExitStatus, usage, value};
use kvmprof_machine::console::{self, Interrupt, RawTerminal};
use kvmprof_machine::disk::DiskOptions;
use kvmprof_machine::network::{NetworkConfig, PeerAddress};
use kvmprof_machine::share::{ShareOptions, ShareSource};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_machine::vsock::VsockConfig;
use kvmprof_machine::{
    Image, KernelFile, KernelPart, KernelSource, MachineConfig, MemoryBacking, MemoryOptions,
};
use kvmprof_profiling::clock::{DEFAULT_HZ, MAXIMUM_HZ};
use kvmprof_profiling::{ProfilingConfig, RecordPlan};
use kvmprof_sandbox::user::User;
use kvmprof_vmm::vm::{OnReset, Vm, VmConfig, VmError, block_signals, catch_signals, read_kernel};

/// Maximum length of a text to find on a console, in bytes.
const CONSOLE_TEXT_MAX: usize = 1024;

/// The argument of `--on-reset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ResetChoice {
    /// The guest starts anew, with the kernel and the initial RAM disk that it was started with, and profiling continues
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

/// All options of a guest except its kernel.
#[derive(Clone, Debug, Args)]
pub struct GuestOptions {
    /// The initial RAM disk
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    #[command(flatten)]
    root: RootOptions,
    /// The kernel's command line, if not console=ttyS0 (on the virtio console: console=hvc0)
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
    /// input and output), none or file:PATH, which is emptied when the guest starts [default: stdio, or hvc for a kernel that
    /// has no driver for the serial port]
    #[arg(long, value_name = "WHERE")]
    console: Option<console::Console>,
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
    /// A socket device (vsock) for connections between the guest, whose address is CID (3 or more), and Unix sockets of the
    /// host: PATH for connections to the guest, PATH_PORT for the guest's own
    #[arg(long, value_name = "CID,socket=PATH")]
    vsock: Option<VsockConfig>,
    /// Ticks of the profiling clock a second on each vCPU; 0: no clock
    #[arg(long, value_name = "HZ", default_value = DEFAULT_HZ.to_string(), value_parser = value::rate_or_none)]
    hz: Option<u32>,
    #[command(flatten)]
    clock: ClockOptions,
    #[command(flatten)]
    profiling: ProfilingOptions,
    /// How many addresses a table of prf may have
    #[arg(long, value_name = "N", default_value_t = MAX_ADDRESSES, value_parser = parse_addresses)]
    prf_addresses: usize,
    /// Leave the command lines of processes out of recordings and of kvmprof processes: they may have secrets
    #[arg(long)]
    no_arguments: bool,
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// Give up root for another user once all is open: a name, UID or UID:GID. The socket and what is written belong to that user
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    user: Option<User>,
    /// What a reset of the guest does
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    on_reset: ResetChoice,
}

impl GuestOptions {
    /// The configuration to boot `kernel`, recorded if `record` is given. Checks that the options are compatible.
    ///
    /// # Errors
    /// [`UsageError`](kvmprof_cli::command_line::UsageError).
    pub fn config(&self, kernel: &Path, record: Option<RecordPlan>) -> anyhow::Result<VmConfig> {
        let hz = self.hz.unwrap_or(DEFAULT_HZ);
        let profiling = self.profiling.config(self.clock.source, hz)?;
        if self.console_limit.is_some() && !matches!(self.console, Some(console::Console::File(_)))
        {
            return Err(usage("--console-limit is for --console file:PATH"));
        }
        check_networks(&self.networks)?;
        if record.as_ref().is_some_and(|plan| plan.event.is_none()) && hz == 0 {
            return Err(usage(format_args!(
                "A recording needs a clock or an --event: give --hz a number from 1 to {MAXIMUM_HZ}"
            )));
        }
        let machine = MachineConfig {
            initrd: self.initrd.clone(),
            command_line: self.cmdline.clone().unwrap_or_default(),
            memory: self.memory.clone(),
            cpus: self.cpus,
        };
        let shares = self.shares.iter().cloned();
        Ok(VmConfig {
            disks: self.disks.clone(),
            console: self.console.clone().unwrap_or_default(),
            console_limit: self.console_limit,
            guest_access: self.guest_access,
            networks: self.networks.clone(),
            shares: shares.chain(self.root.share()).collect(),
            virtiofsd: self.virtiofsd.clone(),
            vsock: self.vsock.clone(),
            profiling: ProfilingConfig {
                prf_addresses: self.prf_addresses,
                arguments: !self.no_arguments,
                record,
                sysroot: self.sysroot().map(Path::to_owned),
                ..profiling
            },
            on_reset: self.on_reset.into(),
            restrict_paths: self.sandbox.restricts_paths(),
            ..VmConfig::new(KernelSource::Path(kernel.to_owned()), machine)
        })
    }

    /// The folder of the host with the guest's files. Programs of a guest are usually files in its root; a file from
    /// elsewhere is recognized as another one.
    pub fn sysroot(&self) -> Option<&Path> {
        let named = self.profiling.sysroot.as_deref();
        named.or_else(|| self.root.folder())
    }

    /// The requested number of ticks a second; `None` for the default.
    pub fn rate(&self) -> Option<u32> {
        self.hz
    }

    /// The files and devices that a jail needs for these options.
    ///
    /// # Errors
    /// An option can't be used in a jail.
    pub fn needs(&self) -> anyhow::Result<Needs> {
        if self.user.is_some() {
            return Err(usage(
                "A jail has its user already, by --uid and --gid: leave --user out",
            ));
        }
        let mut needs = Needs::default();
        let profiling = &self.profiling;
        let read = self.initrd.iter().chain(&profiling.sysroot);
        let read = read.chain(&profiling.btf).chain(&profiling.symbols);
        needs.inputs.extend(read.map(|path| Bind::new(path, false)));
        let disks = self.disks.iter();
        let disks = disks.map(|disk| Bind::new(&disk.path, !disk.readonly));
        needs.inputs.extend(disks);
        for network in &self.networks {
            match &network.peer {
                PeerAddress::Tap(_) => needs.taps = true,
                PeerAddress::Socket(path) => needs.inputs.push(Bind::new(path, true)),
            }
        }
        if self.root.folder().is_some() {
            return Err(usage(
                "For --root kvmprof itself reads the folder, all of which the jail would have to have: give an --initrd, and --share DIR=TAG",
            ));
        }
        for share in &self.shares {
            if let ShareSource::Socket(path) = &share.source {
                needs.inputs.push(Bind::new(path, true));
            }
        }
        needs.shares.clone_from(&self.shares);
        needs.virtiofsd.clone_from(&self.virtiofsd);
        needs.output("--vsock", self.vsock.as_ref().map(|vsock| &vsock.path));
        if let Some(console::Console::File(path)) = &self.console {
            needs.output("--console", Some(path));
        }
        if let MemoryBacking::File(path) = &self.memory.backing {
            needs.output("--memory", Some(path));
        }
        Ok(needs)
    }

    /// The guest's memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// The number of vCPUs.
    pub fn cpus(&self) -> u16 {
        self.cpus
    }

    /// Runs the guest in the sandbox until it ends. No thread may have been started yet. On a terminal, `interrupt` says whom Ctrl-C is for. The status
    /// says how the guest has ended.
    ///
    /// # Errors
    /// The guest can't be started, or can't continue.
    pub fn run(&self, mut config: VmConfig, interrupt: Interrupt) -> anyhow::Result<ExitStatus> {
        let user = self.user.as_ref();
        let helpers = self.sandbox.start(&mut config, user)?;
        let unpacked = self.unpacked_kernel(&config).map_err(start_error)?;
        self.choose_console(&mut config, unpacked.as_deref());
        let disk = self.root.make_disk(&config, unpacked.as_deref())?;
        if let Some(image) = unpacked {
            config.kernel = KernelSource::Image(image);
        }
        if let Some(disk) = &disk {
            disk.give_to(&mut config);
        }
        let has_input = config.console.has_input();
        block_signals().context("Cannot block signals")?;
        catch_signals().context("Cannot catch signals")?;
        thread_panics::end_program();
        let vm = Vm::start(config).map_err(start_error)?;
        let terminal = if has_input {
            RawTerminal::enter(interrupt).context("Cannot set up the terminal")?
        } else {
            None
        };
        let devices = Arc::clone(vm.devices());
        kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Main);
        let end = vm.join();
        drop(terminal);
        drop(helpers);
        match (end?, disk) {
            (end, Some(disk)) if disk.is_orderly(&end) => self.root.status(&devices, &disk),
            (end, _) => status_of_guest(end),
        }
    }

    /// The kernel of `config`, if it isn't packed and something depends on the parts that it has.
    fn unpacked_kernel(&self, config: &VmConfig) -> Result<Option<Arc<Image>>, VmError> {
        if self.console.is_some() && self.root.folder().is_none() {
            return Ok(None);
        }
        let file = KernelFile::open(&config.kernel)?;
        file.is_elf().then(|| read_kernel(file)).transpose()
    }

    /// Chooses the console of `config` if none was asked for, and the command line by it. A kernel that certainly has no driver for the serial port has the
    /// virtio console.
    fn choose_console(&self, config: &mut VmConfig, unpacked: Option<&Image>) {
        let lacks_port = unpacked.is_some_and(|image| image.lacks(KernelPart::SerialPort));
        if self.console.is_none() && lacks_port {
            config.console = console::Console::Hvc;
        }
        if self.cmdline.is_none() {
            config.machine.command_line = default_command_line(&config.console);
        }
    }
}

/// Checks that no two devices have the same peer or the same address.
fn check_networks(networks: &[NetworkConfig]) -> anyhow::Result<()> {
    for (index, network) in networks.iter().enumerate() {
        let others = || networks.iter().take(index);
        if others().any(|other| other.peer == network.peer) {
            let peer = &network.peer;
            return Err(usage(format_args!("--net {peer} is given twice")));
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

/// The command line for a Linux guest with its console.
fn default_command_line(console: &console::Console) -> String {
    match console {
        console::Console::Hvc => "console=hvc0".to_owned(),
        _ => "console=ttyS0".to_owned(),
    }
}

/// The user of `--user`.
fn parse_user(words: &str) -> anyhow::Result<User> {
    Ok(User::find(words)?)
}

/// The number of addresses from `--prf-addresses`.
fn parse_addresses(word: &str) -> Result<usize, String> {
    word.parse()
        .ok()
        .filter(|addresses| (MIN_ADDRESSES..=MAX_ADDRESSES).contains(addresses))
        .ok_or_else(|| format!("'{word}' isn't a number from {MIN_ADDRESSES} to {MAX_ADDRESSES}"))
}

/// Makes the options below this heading of the help require the option `--kernel`.
pub fn with_kernel(heading: &'static str) -> impl FnMut(Arg) -> Arg {
    move |option| match option.get_help_heading() == Some(heading) {
        true => option.requires("kernel"),
        false => option,
    }
}

/// The text of `--until`.
pub fn parse_console_text(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a text that is empty is everywhere".to_owned()),
        1..=CONSOLE_TEXT_MAX => Ok(text.to_owned()),
        length => Err(format!(
            "the text has {length} bytes, which is more than {CONSOLE_TEXT_MAX}"
        )),
    }
}
