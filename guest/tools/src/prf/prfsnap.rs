//! prfsnap: adds one record of the counters to a file.

use std::path::{Path, PathBuf};

use clap::Args;
use rustix::time::{ClockId, clock_gettime};

use super::log::{LogEnd, append, open_to_append};
use super::{PrfError, Profiler};
use crate::device::DeviceOptions;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};

/// Add a record of the profiler's counters to a file, for prfpr
///
/// prfsnap turns profiling on if it is off, and leaves it on; at the guest's end, as long as its counters can be read, it leaves
/// profiling off. A new or empty file gets the table of addresses first; prfpr
/// compares consecutive records. The file consists of 64-bit little-endian numbers: N, N addresses, then records of a time
/// (seconds since 1970) and N + 2 counters; the last two are user mode and idle.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0; 1 when no table is loaded, when the file was written with another \
    table, or when anything else fails; 2 for wrong options.\n\n\
    Example:\n  prfld; prfsnap log; sleep 10; prfsnap log; prfpr log"
)]
pub struct PrfsnapArguments {
    /// The file that the record is added to
    pub file: PathBuf,

    /// Which profiler
    #[command(flatten)]
    pub device: DeviceOptions,
}

impl Command for PrfsnapArguments {
    /// Turns profiling on and appends a record.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let device = self.device.open()?;
        if snap(&Profiler::new(&*device), &self.file)? == LogEnd::OverPart {
            let path = self.file.display();
            console.warn(format_args!(
                "{path} ended within a record; the new one is in its place"
            ));
        }
        Ok(ExitStatus::SUCCESS)
    }
}

/// Turns profiling on, unless the guest has ended, and appends a record to the log at `path`; returns what it found there.
///
/// # Errors
/// [`PrfError::NotLoaded`], [`PrfError::Log`]; or the device's error.
pub fn snap(profiler: &Profiler<'_>, path: &Path) -> Result<LogEnd, PrfError> {
    if !profiler.has_ended() {
        profiler.turn_on()?;
    }
    let counters = profiler.read()?;
    let mut file = open_to_append(path, false)?;
    Ok(append(&mut file, path, now(), &counters)?)
}

/// Seconds since the start of 1970 in UTC.
pub(super) fn now() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec
}
