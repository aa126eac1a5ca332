//! `kvmprof run`.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::config;
use super::guest::{GuestOptions, parse_console_text};
use super::record_limit::{RecordLimit, whole_recording};
use super::units::{parse_look_ticks, parse_stacks};
use crate::commands::jail::{Bind, Needs};
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage, value};
use kvmprof_client::named_socket;
use kvmprof_machine::console::{ESCAPE_HELP, Interrupt};
use kvmprof_profiling::{LookPlan, RecordPlan};
use kvmprof_recording::file::RecordingFailure;
use kvmprof_recording::{SamplingEvent, StackParts};
use kvmprof_vmm::vm::VmConfig;

/// Run a guest under the clock
///
/// Boots an unmodified Linux bzImage, or another kernel in an ELF file. The clock runs only while pcs is open, a minor
/// of prf is on, or a recording is made.
#[derive(Debug, Args)]
#[command(after_help = format!("On a terminal, {ESCAPE_HELP}.\n\n\
    Exit status: 0 when the guest powered off, was stopped, or was reset with --on-reset exit; 1 for an error; 2 for wrong \
    options, or where there is no KVM that can be used; 3 when no vCPU could go on; 4 when the guest's kernel panicked.\n\n\
    Example: kvmprof run --kernel vmlinuz --initrd initrd.img --cpus 2 --memory 1G --socket /run/guest.sock"))]
pub struct RunArguments {
    /// The guest's kernel: a Linux bzImage, or an ELF file
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    #[command(flatten)]
    guest: GuestOptions,
    /// Listen at this path for clients, such as getpc, record and status
    #[arg(long, short, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen for clients at a socket of this name in /run/kvmprof, or for other users than root in $XDG_RUNTIME_DIR/kvmprof.
    /// Clients find it without --socket if it is the only one
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
    name: Option<String>,
    /// How long the guest runs at most, in seconds
    #[arg(long, value_name = "N", value_parser = value::seconds)]
    seconds: Option<Duration>,
    /// End the guest when its console says this
    #[arg(long, value_name = "TEXT", value_parser = parse_console_text)]
    until: Option<String>,
    /// Hold the vCPUs until a client starts to gather samples or turns prf on
    #[arg(long)]
    wait: bool,
    /// Record every tick to this file, from the guest's first instruction to its end; see kvmprof report. An older file
    /// is replaced when the first samples come; an older recording is kept, with .old at the end of its name
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
    /// Have --record look at all tasks of a Linux guest, too, once every so many ticks [default: 10], as kvmprof record does
    #[arg(long, value_name = "EVERY", requires = "record", conflicts_with = "event", num_args = 0..=1, require_equals = true, default_missing_value = "10", value_parser = parse_look_ticks)]
    tasks: Option<u32>,
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
            config.profiling.socket = Some(named_socket(name)?);
        }
        let status = self.guest.run(config, Interrupt::ForGuest)?;
        // An error of the guest takes precedence.
        whole_recording(&failure)?;
        Ok(status)
    }
}

impl RunArguments {
    /// Checks that the options are compatible. `failure` is set if the recording is incomplete.
    fn config(&self, failure: &RecordingFailure) -> anyhow::Result<VmConfig> {
        if self.wait && self.socket.is_none() && self.name.is_none() && self.record.is_none() {
            return Err(usage(
                "--wait without --socket or --name would wait for ever: no client could start the guest",
            ));
        }
        let record = self.record.clone().map(|path| RecordPlan {
            path,
            stacks: self.stacks,
            event: self.event,
            looks: self.tasks.map(LookPlan::all),
            file: self.limit.file(failure),
        });
        let mut config = self.guest.config(&self.kernel, record)?;
        config.profiling.socket.clone_from(&self.socket);
        Ok(VmConfig {
            hold: self.wait,
            time_limit: self.seconds,
            until: self.until.clone(),
            ..config
        })
    }
}

/// Used by `kvmprof jail`.
impl RunArguments {
    /// The files and devices that a jail needs for these options.
    ///
    /// # Errors
    /// An option can't be used in a jail.
    pub(crate) fn needs(&self) -> anyhow::Result<Needs> {
        if self.name.is_some() {
            return Err(usage(
                "--name has a folder of the host's: in a jail give --socket",
            ));
        }
        let mut needs = self.guest.needs()?;
        let read = self.config.iter().chain([&self.kernel]);
        needs.inputs.extend(read.map(|path| Bind::new(path, false)));
        needs.output("--socket", self.socket.as_ref());
        needs.output("--record", self.record.as_ref());
        Ok(needs)
    }

    /// The guest.
    pub(crate) fn guest(&self) -> &GuestOptions {
        &self.guest
    }
}

/// Prints the options of this process's command line.
fn print_config(console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    let arguments = config::expand(console.program(), env::args_os().collect())?;
    let text = config::print(console.program(), &arguments)?;
    let written = console.text().write_all(text.as_bytes());
    written.context("Cannot write the options")?;
    Ok(ExitStatus::SUCCESS)
}
