//! `kvmprof run`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use kvmprof_abi::prf::{MAX_ADDRESSES, MIN_ADDRESSES};

use super::exit::status_of_guest;
use super::units::{parse_memory, parse_stacks};
use crate::clock::{ClockSource, DEFAULT_HZ, MAXIMUM_HZ};
use crate::console::{Console, ESCAPE_HELP, RawTerminal};
use crate::introspection::{GuestKnowledge, StackWish};
use crate::machine::{KernelSource, MachineConfig};
use crate::profiler::RecordPlan;
use crate::virtio::GuestAccess;
use crate::vm::{Vm, VmConfig, block_signals};

/// Options of `kvmprof run`.
#[derive(Debug, Args)]
#[command(after_help = format!("On a terminal, {ESCAPE_HELP}.\n\n\
    Exit status: 0 when the guest powered off, was reset or was stopped by a signal; 1 for an error; 2 for wrong \
    options, or where there is no KVM that can be used; 3 when no vCPU could go on; 4 when the guest's kernel panicked.\n\n\
    Example: kvmprof run --kernel vmlinuz --initrd initrd.img --cpus 2 --memory 1G --socket /run/guest.sock"))]
pub struct RunArguments {
    /// The guest's kernel: a Linux bzImage, or an ELF file
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// The initial RAM disk
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// The kernel's command line, if not console=ttyS0 (with --console hvc: console=hvc0)
    #[arg(long, value_name = "WORDS")]
    cmdline: Option<String>,
    /// The guest's memory, such as 512M or 4G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_memory)]
    memory: u64,
    /// How many vCPUs the guest has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: u16,
    /// Where the guest's console is: stdio (its serial port), hvc (its virtio console, on standard
    /// input and output), none or file:PATH
    #[arg(long, value_name = "WHERE", default_value = "stdio")]
    console: Console,
    /// What the guest may do with the profiling devices through its own ports: none, pcs, prf or
    /// all
    #[arg(long, value_name = "DEVICES", default_value = "all")]
    guest_access: GuestAccess,
    /// Where clients such as getpc connect
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Ticks of the profiling clock a second on each vCPU; 0: no clock
    #[arg(long, value_name = "HZ", default_value_t = DEFAULT_HZ, value_parser = clap::value_parser!(u32).range(0..=i64::from(MAXIMUM_HZ)))]
    hz: u32,
    /// What drives the clock: thread (a timer on each vCPU's thread) or ticker (a thread of its
    /// own, which costs the guest less and another core more)
    #[arg(long, value_name = "SOURCE", default_value = "thread")]
    clock: ClockSource,
    /// Give ticks a random phase, so that work which the guest does periodically doesn't run in
    /// step with the clock
    #[arg(long)]
    jitter: bool,
    /// Hold the vCPUs until a client starts to gather samples or turns prf on
    #[arg(long)]
    wait: bool,
    /// How many addresses a table of prf may have
    #[arg(long, value_name = "N", default_value_t = MAX_ADDRESSES, value_parser = parse_addresses)]
    prf_addresses: usize,
    /// Record every tick to this file, from the guest's first instruction to its end; see kvmprof report
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The parts of call stacks that are recorded: kernel, user, both with a comma between them, or none
    #[arg(long, value_name = "PARTS", default_value = "kernel,user", value_parser = parse_stacks, requires = "record")]
    stacks: StackWish,
    /// A folder with the guest's files, or some of them: programs in recordings are looked for there first. Files are
    /// used whose build id, or else whose length, is that of the file in the guest
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// Where the guest keeps the pid of the running process, if its image doesn't say:
    /// absolute:ADDRESS[,OFFSET...]:BYTES, gs:OFFSET[,OFFSET...]:BYTES, or none
    #[arg(long, value_name = "PLACE")]
    pid_at: Option<String>,
}

/// Runs a guest until it ends.
///
/// # Errors
/// What keeps it from running, and any end but a normal one.
pub fn run(arguments: RunArguments) -> anyhow::Result<ExitCode> {
    if arguments.jitter && arguments.clock == ClockSource::Ticker {
        bail!("--jitter needs --clock thread: the ticker kicks all vCPUs in step");
    }
    if arguments.wait && arguments.socket.is_none() && arguments.record.is_none() {
        bail!("--wait without --socket would wait for ever: no client could start the guest");
    }
    if arguments.record.is_some() && arguments.hz == 0 {
        bail!("--record needs a clock: give --hz a number from 1 to {MAXIMUM_HZ}");
    }
    block_signals().context("Cannot block signals")?;
    let on_terminal = arguments.console.has_input();
    let vm = Vm::start(VmConfig {
        machine: MachineConfig {
            kernel: KernelSource::Path(arguments.kernel),
            initrd: arguments.initrd,
            command_line: (arguments.cmdline)
                .unwrap_or_else(|| default_command_line(&arguments.console)),
            memory_bytes: arguments.memory,
            cpus: arguments.cpus,
        },
        console: arguments.console,
        guest_access: arguments.guest_access,
        hz: arguments.hz,
        clock_source: arguments.clock,
        jitter: arguments.jitter,
        hold: arguments.wait,
        socket: arguments.socket,
        prf_addresses: arguments.prf_addresses,
        record: arguments.record.map(|path| RecordPlan {
            path,
            stacks: arguments.stacks,
        }),
        sysroot: arguments.sysroot,
        knowledge: arguments.pid_at.as_deref().map(pid_at).transpose()?,
    })?;
    let terminal = if on_terminal {
        RawTerminal::enter().context("Cannot set up the terminal")?
    } else {
        None
    };
    let end = vm.join();
    drop(terminal);
    status_of_guest(end?)
}

/// Linux, told where its console is.
fn default_command_line(console: &Console) -> String {
    match console {
        Console::Hvc => "console=hvc0".to_owned(),
        _ => "console=ttyS0".to_owned(),
    }
}

/// What `--pid-at` says of the guest.
fn pid_at(place: &str) -> anyhow::Result<GuestKnowledge> {
    if place == "none" {
        return Ok(GuestKnowledge::unknown());
    }
    GuestKnowledge::from_pid_at(place).context("--pid-at makes no sense")
}

/// How many addresses `--prf-addresses` allows.
fn parse_addresses(word: &str) -> Result<usize, String> {
    word.parse()
        .ok()
        .filter(|addresses| (MIN_ADDRESSES..=MAX_ADDRESSES).contains(addresses))
        .ok_or_else(|| format!("'{word}' isn't a number from {MIN_ADDRESSES} to {MAX_ADDRESSES}"))
}
