//! prfdc: records the counters every few minutes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use super::local_time::LocalTime;
use super::log::{append, open_to_append};
use super::prfsnap::now;
use super::{PrfError, Profiler};
use crate::device::DeviceOptions;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_cli::interrupt::Interrupt;

/// The time between two checks whether the guest has ended: its counters can be read for 2 s after its end.
const LOOK: Duration = Duration::from_millis(500);

/// Record the profiler's counters into a new file every few minutes, for prfpr
///
/// prfdc turns profiling on, makes a record at once and another after each period. It ends when it has made a record in
/// the hour off_hour of the local time, at the guest's end with a last record, or by SIGINT or SIGTERM, which leave the file complete. Profiling stays on:
/// prfstat off turns it off. The file has the form that prfsnap writes.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 when the hour or a signal has ended it; 1 when the file exists \
    already, when no table is loaded or another table is loaded meanwhile, or when anything else fails; \
    2 for wrong options.\n\n\
    Examples:\n  prfdc log            (every 10 minutes until 17 o'clock)\n  \
    prfdc log 1 24 &     (every minute, for ever)\n  prfdc log 0.5 24     (every 30 seconds)"
)]
pub struct PrfdcArguments {
    /// The file, which must not exist
    pub file: PathBuf,

    /// The time between two records, in minutes, such as 10 or 0.5
    #[arg(default_value = "10", value_name = "period", value_parser = value::minutes)]
    pub period: Duration,

    /// The hour, 0 to 23, in which the last record is made; 24: never end
    #[arg(default_value_t = 17, value_name = "off_hour",
        value_parser = clap::value_parser!(i32).range(0..=24))]
    pub off_hour: i32,

    /// Which profiler
    #[command(flatten)]
    pub device: DeviceOptions,
}

impl Command for PrfdcArguments {
    /// Records until the hour or a signal.
    fn execute(&self, _console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let device = self.device.open()?;
        let interrupt = Interrupt::on_signals().context("Cannot catch signals")?;
        let profiler = Profiler::new(&*device);
        let over =
            |time: i64| LocalTime::from_unix(time).is_some_and(|time| time.hour == self.off_hour);
        record_periodically(&profiler, &self.file, self.period, &interrupt, &over)?;
        Ok(ExitStatus::SUCCESS)
    }
}

/// Turns profiling on and records into a new log at `path`, at once and then each `period`, until `over` is true for a
/// record's time, until the guest's end, or until an `interrupt`.
///
/// # Errors
/// [`PrfError::NotLoaded`], [`PrfError::Log`], or the device's error; the log has complete records then, or doesn't
/// exist.
pub fn record_periodically(
    profiler: &Profiler<'_>,
    path: &Path,
    period: Duration,
    interrupt: &Interrupt,
    over: &dyn Fn(i64) -> bool,
) -> Result<(), PrfError> {
    let mut file = open_to_append(path, true)?;
    let first = profiler.turn_on().and_then(|()| profiler.read());
    let mut counters = first.inspect_err(|_| {
        // The file has no records. If it can't be removed, an empty file is harmless.
        let _ = std::fs::remove_file(path);
    })?;
    let mut next = Some(Instant::now());
    loop {
        let time = now();
        append(&mut file, path, time, &counters)?;
        if over(time) {
            return Ok(());
        }
        // Periods that were missed while the machine slept are skipped.
        next = next.and_then(|last| Some(last.checked_add(period)?.max(Instant::now())));
        match wait(profiler, next, interrupt) {
            Wait::Interrupted => return Ok(()),
            Wait::GuestEnded => {
                append(&mut file, path, now(), &profiler.read()?)?;
                return Ok(());
            }
            Wait::NextPeriod => counters = profiler.read()?,
        }
    }
}

/// Why a wait of prfdc has ended.
enum Wait {
    NextPeriod,
    Interrupted,
    GuestEnded,
}

/// Waits for the next period. Notices the guest's end early enough for a last record.
fn wait(profiler: &Profiler<'_>, next: Option<Instant>, interrupt: &Interrupt) -> Wait {
    loop {
        let look = Instant::now().checked_add(LOOK);
        let until = match (next, look) {
            (Some(next), Some(look)) => Some(next.min(look)),
            (next, look) => next.or(look),
        };
        if interrupt.comes_before(until) {
            return Wait::Interrupted;
        }
        if profiler.has_ended() {
            return Wait::GuestEnded;
        }
        if next.is_some_and(|next| Instant::now() >= next) {
            return Wait::NextPeriod;
        }
    }
}
