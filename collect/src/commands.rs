//! The program's command line.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use kvmprof_cli::command_line::{self, Command, Console, ExitStatus, Program, usage, value};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_cli::text::{self, write_json};
use kvmprof_recording::counters::Counters;
use kvmprof_recording::exits::ExitInterval;
use kvmprof_tools::program::Setup;

use crate::batch::Batch;
use crate::collector::{Collector, Host, new_boot};
use crate::config::Config;
use crate::contain::contain;
use crate::demo::DemoArguments;
use crate::export::ExportArguments;
use crate::launcher::{self, Forked};
use crate::look;
use crate::work::{self, Prepared, Reload};

/// Collect samples of all guests of this host, always and at a low rate
///
/// Follows the guests behind the sockets that match --sockets, also those that start later, sums up their samples by window of time, and
/// delivers them to Prometheus, Parquet files, Pyroscope, Parca or OpenTelemetry, as the configuration says. At SIGHUP the program reads the
/// configuration again; SIGTERM ends it.
#[derive(Debug, Parser)]
#[command(
    name = "kvmprof-collect",
    version,
    args_conflicts_with_subcommands = true,
    mut_subcommand("install-links", |links| links.hide(true)),
    after_help = "Exit status: 0 if a signal has ended it, or --once is done; 1 if something failed; 2 for wrong options or a wrong \
    configuration.\n\nExamples:\n  kvmprof-collect --once --sockets '/run/kvmprof/*.sock'\n  kvmprof-collect demo"
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Subcommands>,
    #[command(flatten)]
    collect: CollectArguments,
}

/// The program's commands. Without a command, it collects.
#[derive(Debug, Subcommand)]
enum Subcommands {
    Demo(DemoArguments),
    Launcher(LauncherArguments),
    Export(Box<ExportArguments>),
    #[command(flatten)]
    Setup(Setup),
}

/// Attach to guests of other VMMs for a collector that has no rights
///
/// Waits for a kvmprof-collect at the socket attach.launcher of the configuration. While one is connected, runs a kvmprof attach for each guest that attach.guests
/// means, and hands its recording to the collector. Guests, limit, rate and ways to sample are those of this configuration; the collector can ask for nothing.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0 if a signal has ended it; 1 if something failed; 2 for wrong options.\n\nExample:\n  \
    kvmprof-collect launcher --config /etc/kvmprof/collect.toml"
)]
struct LauncherArguments {
    /// The configuration, in TOML: as for collecting, whose keys attach, hz, kernel_stacks and user_stacks are used
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl Command for LauncherArguments {
    fn execute(&self, _: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let rules = || {
            let config = Config::read(&self.config)?;
            config.check()?;
            Ok(config)
        };
        launcher::serve(&rules)?;
        Ok(ExitStatus::SUCCESS)
    }
}

/// Options of collecting.
#[derive(Args, Debug)]
struct CollectArguments {
    /// The configuration, in TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A pattern of the paths of guests' sockets, instead of the configuration's patterns; may be given several times
    #[arg(long, value_name = "PATTERN")]
    sockets: Vec<String>,
    /// A pattern of the names, VMMs' programs or pids of guests of other VMMs to follow, instead of the configuration's patterns; may be given
    /// several times
    #[arg(long, value_name = "PATTERN")]
    attach: Vec<String>,
    /// Ticks per second on each vCPU, instead of the configuration's hz
    #[arg(long, short = 'F', value_name = "HZ", value_parser = value::rate)]
    hz: Option<u32>,
    /// Length of a window in seconds, instead of the configuration's window
    #[arg(long, value_name = "SECONDS")]
    window: Option<u32>,
    /// Folder of the spool, instead of the configuration's spool.folder
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// This host's name, instead of the configuration's host: in a pod the node's
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Collect for the time of one window, print a summary, and end; nothing is stored or sent
    #[arg(long)]
    once: bool,
    /// With --once: print a JSON object for each window's time
    #[arg(long, requires = "once")]
    json: bool,
}

impl Program for Arguments {
    fn chosen(&self) -> &dyn Command {
        match &self.command {
            Some(Subcommands::Demo(demo)) => demo,
            Some(Subcommands::Launcher(launcher)) => launcher,
            Some(Subcommands::Export(export)) => export.as_ref(),
            Some(Subcommands::Setup(setup)) => setup,
            None => &self.collect,
        }
    }
}

/// Executes the command line. Returns the program's exit status.
pub fn main() -> ExitCode {
    let level = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(level)
        .format(|buffer, record| {
            let message = text::message(&record.args().to_string());
            writeln!(buffer, "kvmprof-collect: {message}")
        })
        .init();
    command_line::main::<Arguments>()
}

impl Command for CollectArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let mut config = self.read_config().map_err(usage)?;
        let rules = || self.read_config();
        let needs_launcher = !config.attach.guests.is_empty() && config.attach.launcher.is_none();
        // SAFETY: the command has started no thread yet.
        let forked = needs_launcher.then(|| unsafe { Forked::start(&rules) });
        let forked = forked.transpose()?;
        let folders = if self.once {
            Vec::new()
        } else {
            config.folders()
        };
        contain(&folders, !config.owners.is_empty()).context("Cannot give up rights")?;
        with_launcher(&mut config, forked.as_ref());
        let interrupt = Interrupt::on_signals()?;
        if self.once {
            self.look(&config, &interrupt, console)?;
            return Ok(ExitStatus::SUCCESS);
        }
        let prepare = || {
            let mut config = self.read_config()?;
            with_launcher(&mut config, forked.as_ref());
            Prepared::new(config)
        };
        let reload = Reload::on_signal(&prepare)?;
        work::run(Prepared::new(config)?, &interrupt, &reload)?;
        Ok(ExitStatus::SUCCESS)
    }
}

/// Has the collector use the launcher that it has started, if the configuration means guests and has no other launcher.
fn with_launcher(config: &mut Config, forked: Option<&Forked>) {
    let attach = &mut config.attach;
    if attach.guests.is_empty() || attach.launcher.is_some() {
        return;
    }
    match forked {
        Some(forked) => attach.launcher = Some(forked.path().to_owned()),
        None => log::error!(
            "attach.guests: kvmprof-collect was started without, and has no rights to attach any more: restart it, or have attach.launcher"
        ),
    }
}

impl CollectArguments {
    fn read_config(&self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        if !self.sockets.is_empty() {
            config.sockets.clone_from(&self.sockets);
        }
        if !self.attach.is_empty() {
            config.attach.guests.clone_from(&self.attach);
            // That one has patterns of its own.
            config.attach.launcher = None;
        }
        config.hz = self.hz.unwrap_or(config.hz);
        config.window = self.window.unwrap_or(config.window);
        if let Some(folder) = &self.spool {
            config.spool.folder.clone_from(folder);
        }
        config.host = self.host.clone().or(config.host);
        config.check()?;
        config.read_key()?;
        Ok(config)
    }

    fn look(
        &self,
        config: &Config,
        interrupt: &Interrupt,
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        let mut once = TimedCollection {
            interrupt,
            end: Instant::now() + Duration::from_secs(config.window.into()),
            batches: Vec::new(),
        };
        Collector::new(config, config.host_name(), new_boot()?).run(&mut once);
        if self.json {
            for batch in &once.batches {
                write_json(console.text(), serde_json::to_string(batch)?)?;
            }
            return Ok(());
        }
        if once.batches.is_empty() {
            let patterns = config.sockets.join(", ");
            let others = config.attach.guests.join(", ");
            let others = match others.as_str() {
                "" => String::new(),
                others => format!(", nor one of another VMM that matches {others}"),
            };
            console.say(format_args!(
                "No guest has ticked at a socket that matches {patterns}{others}"
            ));
        }
        look::print(&once.batches, console.text())?;
        Ok(())
    }
}

/// Collects for a limited time, for `--once`.
struct TimedCollection<'a> {
    interrupt: &'a Interrupt,
    end: Instant,
    batches: Vec<Batch>,
}

impl Host for TimedCollection<'_> {
    fn is_over(&self) -> bool {
        self.interrupt.is_raised() || Instant::now() >= self.end
    }

    fn take(&mut self, batch: Batch, _: BTreeMap<u64, u64>) {
        self.batches.push(batch);
    }

    fn note_open(&mut self, _: BTreeMap<u64, u64>) {}

    fn note_guests(&mut self, _: usize, left_out: usize) {
        if left_out > 0 {
            log::warn!("{left_out} guests are left out: raise limits.guests or attach.limit");
        }
    }

    fn note_counts(&mut self, _: &str, _: &Counters) {}

    fn note_exits(&mut self, _: &str, _: &ExitInterval) {}
}
