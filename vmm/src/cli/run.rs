//! `kvmprof run`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use super::exit::status_of_guest;
use super::units::parse_memory;
use crate::clock::{ClockSource, DEFAULT_HZ, MAXIMUM_HZ};
use crate::console::{Console, ESCAPE_HELP, RawTerminal};
use crate::introspection::GuestKnowledge;
use crate::machine::{KernelSource, MachineConfig};
use crate::vm::{Vm, VmConfig, block_signals};

/// Options of `kvmprof run`.
#[derive(Debug, Args)]
#[command(after_help = format!("On a terminal, {ESCAPE_HELP}."))]
pub struct RunArguments {
    /// The guest's kernel: a Linux bzImage, or an ELF file
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// The initial RAM disk
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// The kernel's command line
    #[arg(long, value_name = "WORDS", default_value = "console=ttyS0")]
    cmdline: String,
    /// The guest's memory, such as 512M or 4G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_memory)]
    memory: u64,
    /// How many vCPUs the guest has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: u16,
    /// Where the guest's serial console goes: stdio, none or file:PATH
    #[arg(long, value_name = "WHERE", default_value = "stdio")]
    console: Console,
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
    /// Hold the vCPUs until a client starts to gather samples
    #[arg(long)]
    wait: bool,
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
    if arguments.wait && arguments.socket.is_none() {
        bail!("--wait without --socket would wait for ever: no client could start the guest");
    }
    block_signals().context("Cannot block signals")?;
    let on_terminal = arguments.console.has_input();
    let vm = Vm::start(VmConfig {
        machine: MachineConfig {
            kernel: KernelSource::Path(arguments.kernel),
            initrd: arguments.initrd,
            command_line: arguments.cmdline,
            memory_bytes: arguments.memory,
            cpus: arguments.cpus,
        },
        console: arguments.console,
        hz: arguments.hz,
        clock_source: arguments.clock,
        jitter: arguments.jitter,
        hold: arguments.wait,
        socket: arguments.socket,
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

/// What `--pid-at` says of the guest.
fn pid_at(place: &str) -> anyhow::Result<GuestKnowledge> {
    if place == "none" {
        return Ok(GuestKnowledge::unknown());
    }
    GuestKnowledge::from_pid_at(place).context("--pid-at makes no sense")
}
