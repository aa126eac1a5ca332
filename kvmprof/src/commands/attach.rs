//! `kvmprof attach`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use kvmprof_attach::remote::StandStill;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage, value};
use kvmprof_profiling::clock::{ClockSource, DEFAULT_HZ};
use kvmprof_profiling::{LookPlan, ProfilingConfig, RecordPlan};
use kvmprof_recording::StackParts;
use kvmprof_recording::file::RecordingFailure;
use kvmprof_vmm::attached::{AttachConfig, AttachedEnd, Attachment, ConsoleText, attach};
use kvmprof_vmm::vm::{block_signals, catch_signals};

use super::guest::parse_console_text;
use super::profiling::ProfilingOptions;
use super::record_limit::{RecordLimit, whole_recording};
use super::sandbox::SandboxMode;
use super::targets;
use super::thread_panics;
use super::units::{parse_look_ticks, parse_stacks};

/// The argument of `--capture`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum CaptureWay {
    /// kvmprof stops the vCPU for each sample, by ptrace: everything that can be seen of a guest
    #[default]
    Ptrace,
    /// The host's kernel takes samples in an interrupt, by eBPF: nothing is stopped. On hosts with VT-x there are no call
    /// stacks
    Kernel,
}

/// Profile a guest that another program runs, such as QEMU
///
/// Serves the same socket as kvmprof run, but profil, pmc and control, without the guest's or the VMM's help. Each vCPU's thread
/// is stopped at each tick by ptrace(2), by a process of its own: the one that reads what the guest has made has no rights. The guest and its VMM go
/// on when kvmprof ends, however it does.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when the guest has ended or rebooted into a 17th kernel, or a signal has ended kvmprof; 1 for an error; 2 for wrong options.\n\n\
    Examples:\n  \
      kvmprof attach 1234 --record guest.kvmprof\n  \
      kvmprof attach debian12 --socket /run/debian12.sock"
)]
pub struct AttachArguments {
    /// The guest, as kvmprof list shows it: the pid of its VMM, or its name, unless that is a number. PID:START_TIME is the pid with the start time of the list's
    /// document (--json): no later process is taken for it
    #[arg(value_name = "PID|PID:START_TIME|NAME")]
    guest: String,
    /// Listen at this path for clients, such as getpc, record, top and status
    #[arg(long, short, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Record every tick to this file, until the guest or kvmprof ends; see kvmprof report. An older file is replaced when the first
    /// samples come; an older recording is kept, with .old at the end of its name
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    limit: RecordLimit,
    /// How long the guest is profiled at most, in seconds
    #[arg(long, value_name = "N", value_parser = value::seconds)]
    seconds: Option<Duration>,
    /// End when the guest's console says this, from now on
    #[arg(long, value_name = "TEXT", value_parser = parse_console_text, requires = "console")]
    until: Option<String>,
    /// The file to which the VMM writes the guest's console, for --until
    #[arg(long, value_name = "FILE", requires = "until")]
    console: Option<PathBuf>,
    /// Wait until there is such a guest, and its vCPUs run
    #[arg(long)]
    wait: bool,
    /// Have --record look at all tasks of a Linux guest, too, once every so many ticks [default: 10], as kvmprof record does
    #[arg(long, value_name = "EVERY", requires = "record", num_args = 0..=1, require_equals = true, default_missing_value = "10", value_parser = parse_look_ticks)]
    tasks: Option<u32>,
    /// Who takes samples
    #[arg(long, value_name = "WAY", value_enum, default_value_t)]
    capture: CaptureWay,
    /// The parts of call stacks that are recorded: kernel, user, both with a comma between them, or none
    #[arg(long, value_name = "PARTS", default_value = "kernel,user", value_parser = parse_stacks, requires = "record")]
    stacks: StackParts,
    /// Ticks of the profiling clock a second on each vCPU
    #[arg(long, value_name = "HZ", default_value_t = DEFAULT_HZ, value_parser = value::rate)]
    hz: u32,
    #[command(flatten)]
    profiling: ProfilingOptions,
    /// The guest's kernel, a Linux bzImage or an ELF file, if it isn't to be found in the guest's memory; or another file of its build, as for --btf and --symbols
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxMode,
}

impl AttachArguments {
    /// The text that ends it.
    fn until(&self) -> Option<ConsoleText> {
        let (text, file) = self.until.clone().zip(self.console.clone())?;
        Some(ConsoleText { text, file })
    }
}

impl Command for AttachArguments {
    /// Profiles the guest until it ends.
    fn execute(&self, _console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        if self.socket.is_none() && self.record.is_none() {
            return Err(usage(
                "attach needs --socket or --record: without them nobody would get the samples",
            ));
        }
        let source = match self.capture {
            CaptureWay::Ptrace => ClockSource::Ptrace,
            CaptureWay::Kernel => ClockSource::Kernel,
        };
        let profiling = self.profiling.config(source, self.hz)?;
        self.sandbox.close_inherited(&[]);
        let (host, machine) = targets::find_machine(&self.guest, self.wait)?;
        let pid = machine.pid;
        let sockets = self.socket.iter().cloned().collect();
        // SAFETY: the command has started no thread yet.
        let output_names = unsafe { self.sandbox.output_names(sockets, self.record.as_deref()) }?;
        // SAFETY: the command has started no thread yet.
        let attachment =
            unsafe { Attachment::open(machine, host, &profiling, StandStill::Briefly) }?;
        self.sandbox.contain()?;
        block_signals().context("Cannot block signals")?;
        catch_signals().context("Cannot catch signals")?;
        thread_panics::end_program();
        let failure = RecordingFailure::default();
        let config = AttachConfig {
            attachment,
            kernel: self.kernel.clone(),
            time_limit: self.seconds,
            until: self.until(),
            output_names,
            restrict_paths: self.sandbox.restricts_paths(),
            profiling: ProfilingConfig {
                socket: self.socket.clone(),
                record: self.record.clone().map(|path| RecordPlan {
                    path,
                    stacks: self.stacks,
                    event: None,
                    looks: self.tasks.map(LookPlan::all),
                    file: self.limit.file(&failure),
                }),
                ..profiling
            },
        };
        let end = attach(config)?;
        match end {
            AttachedEnd::Guest => eprintln!("The guest of process {pid} has ended."),
            AttachedEnd::OtherKernel => eprintln!(
                "The guest of process {pid} has rebooted into another kernel once too often: attach again."
            ),
            AttachedEnd::NoTracer => bail!(
                "kvmprof's process that traces process {pid} has ended: the guest goes on; attach again"
            ),
            // Why is said below.
            AttachedEnd::Stopped | AttachedEnd::NoOutput => {}
        }
        whole_recording(&failure)?;
        Ok(ExitStatus::SUCCESS)
    }
}
