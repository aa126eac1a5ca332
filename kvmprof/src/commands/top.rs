//! `kvmprof top`.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use clap::Args;
use kvmprof_abi::wire::device;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_report::top::{TopOptions, run};

use super::recorder;
use super::targets::TargetArgs;
use super::units::parse_stacks;
use kvmprof_recording::{SamplingEvent, StackParts};

/// Maximum number of pieces that wait to be shown. The rest waits in the guest's recorder, which counts what it has to drop.
const PIECES: usize = 8;

/// Show live where a running guest spends its time
///
/// A terminal shows processes, functions, call stacks and vCPUs over the last seconds; the key h lists the keys. A pipe
/// gets plain tables, one after the other.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when the user quit, the tables were printed or the guest ended; 1 when there is no \
    such guest, or it has no clock; 2 for wrong options.\n\n\
    Example: kvmprof top guest --count 1 --interval 5 | head -40"
)]
pub struct TopArguments {
    #[command(flatten)]
    target: TargetArgs,
    /// Length of the time window that the view covers, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = value::seconds_of_an_hour)]
    window: Duration,
    /// The parts of call stacks that are recorded: kernel, user, both with a comma between them, or none
    #[arg(long, value_name = "PARTS", default_value = "kernel,user", value_parser = parse_stacks)]
    stacks: StackParts,
    /// Sample one of every N events of a vCPU instead of by the clock, as kvmprof record does
    #[arg(long, value_name = "EVENT:N")]
    event: Option<SamplingEvent>,
    /// Ticks of the clock a second on each vCPU, if nothing else samples the guest. If not given, whatever it is sampled by
    /// already, else the rate that it was started with
    #[arg(long, short = 'F', value_name = "HZ", conflicts_with = "event", value_parser = value::rate)]
    hz: Option<u32>,
    /// In a pipe: time between two tables, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = value::seconds_of_an_hour)]
    interval: Duration,
    /// In a pipe: end after this many tables
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// In a pipe: maximum number of rows of a table
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Also show the values of the label of processes with this key, such as user
    #[arg(long, value_name = "KEY")]
    by: Option<String>,
    /// Also show the frames of interpreters, beside the functions of the language that they execute
    #[arg(long)]
    native: bool,
    /// No colours, as with NO_COLOR in the environment
    #[arg(long, alias = "no-color")]
    no_colour: bool,
}

impl Command for TopArguments {
    /// Shows a running guest until the user quits, or, in a pipe, until the guest ends.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let connection = self.target.connect(self.event.is_some(), console)?;
        let recorder = connection.open(device::RECORDER, 0)?;
        if let Some(hz) = self.hz {
            recorder::choose_rate(&connection, &recorder, hz)?;
        }
        recorder::start(
            &connection,
            &recorder,
            self.stacks,
            self.event,
            "Cannot start to record the guest",
        )?;
        let options = TopOptions {
            window: self.window,
            interval: self.interval,
            count: self.count,
            rows: self.top,
            by: self.by.clone(),
            native: self.native,
            // https://no-color.org
            colours: !self.no_colour
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let device = &recorder;
        std::thread::scope(|scope| {
            // Declared here, so that it is dropped when the view ends for any reason. The reader must not wait for it.
            let (sender, feed) = sync_channel(PIECES);
            let _end = recorder::Disconnect(&connection);
            scope.spawn(move || recorder::read(device, &sender));
            run(&feed, &options)
        })?;
        Ok(ExitStatus::SUCCESS)
    }
}
