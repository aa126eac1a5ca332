//! prfdc: a record of the counters every few minutes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::local_time::LocalTime;
use super::log::{append, open_to_append};
use super::prfsnap::now;
use super::{PrfError, Profiler};
use crate::device::DeviceOptions;
use crate::interrupt::Interrupt;

/// Record the profiler's counters into a new file every few minutes, for prfpr
///
/// Turns profiling on, records at once, then after each period, until it has made a record in the
/// hour off_hour of the local time, or is ended by SIGINT or SIGTERM, which leave the file whole.
/// Profiling stays on; prfstat off ends it. The file has the form that prfsnap writes.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0 when it has ended by the hour or by a signal; 1 when the file exists \
    already, when no table is loaded or another one gets loaded meanwhile, or when anything else fails; \
    2 for wrong options.\n\n\
    Examples:\n  prfdc log            (every 10 minutes until 17 o'clock)\n  \
    prfdc log 1 24 &     (every minute, for ever)\n  prfdc log 0.5 24     (every 30 seconds)"
)]
pub struct PrfdcArguments {
    /// The file, which must not exist
    pub file: PathBuf,

    /// Minutes between records; fractions are possible
    #[arg(default_value = "10", value_name = "period", value_parser = parse_minutes)]
    pub period: Duration,

    /// The hour, 0 to 23, whose first record is the last; 24: never
    #[arg(default_value_t = 17, value_name = "off_hour",
        value_parser = clap::value_parser!(i32).range(0..=24))]
    pub off_hour: i32,

    /// Which profiler
    #[command(flatten)]
    pub device: DeviceOptions,
}

fn parse_minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "not a number of minutes")?;
    match Duration::try_from_secs_f64(60.0 * minutes) {
        Ok(period) if !period.is_zero() => Ok(period),
        _ => Err("has to be more than 0 minutes, and not forever".to_owned()),
    }
}

impl PrfdcArguments {
    /// Records until the hour has come or a signal does.
    ///
    /// # Errors
    /// [`PrfError::NotLoaded`], [`PrfError::Log`]; or what the device says.
    pub fn execute(&self) -> Result<(), PrfError> {
        let device = self.device.open()?;
        let interrupt = Interrupt::on_signals().map_err(PrfError::Signals)?;
        let profiler = Profiler::new(&*device);
        let over = |time: i64| LocalTime::of(time).is_some_and(|time| time.hour == self.off_hour);
        record_periodically(&profiler, &self.file, self.period, &interrupt, &over)
    }
}

/// Turns profiling on and records into a new log at `path`, at once and then each `period`, until `over`
/// says so of a record's time or `interrupt` is set off.
///
/// # Errors
/// As [`PrfdcArguments::execute`]; the log has whole records then, or doesn't exist.
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
        // Nothing is in it. Where it can't be removed, an empty file is no harm.
        let _ = std::fs::remove_file(path);
    })?;
    let mut next = Some(Instant::now());
    loop {
        let time = now();
        append(&mut file, path, time, &counters)?;
        if over(time) {
            return Ok(());
        }
        // A period that was missed, the machine having slept, isn't made up for.
        next = next.and_then(|last| Some(last.checked_add(period)?.max(Instant::now())));
        if interrupt.comes_before(next) {
            return Ok(());
        }
        counters = profiler.read()?;
    }
}
