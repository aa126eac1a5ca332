//! prfsnap: one record of the counters.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;

use super::log::{Appended, append, open_to_append};
use super::{PrfError, Profiler};
use crate::device::DeviceOptions;

/// Add a record of the profiler's counters to a file, for prfpr
///
/// Turns profiling on if it isn't yet, and leaves it on. A new or empty file gets the table of addresses
/// first; prfpr compares consecutive records. The file is: N, N addresses, then records of a
/// time (seconds since 1970) and N + 2 counters (the last two: user mode, idle), all of them 64-bit
/// little-endian numbers.
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

impl PrfsnapArguments {
    /// Turns profiling on and appends a record. Warnings go to `warnings`.
    ///
    /// # Errors
    /// [`PrfError::NotLoaded`], [`PrfError::Log`]; or what the device says.
    pub fn execute(&self, warnings: &mut dyn Write) -> Result<(), PrfError> {
        let device = self.device.open()?;
        snap(&Profiler::new(&*device), &self.file, warnings)
    }
}

/// Turns profiling on and appends a record to the log at `path`. Warnings go to `warnings`.
///
/// # Errors
/// As [`PrfsnapArguments::execute`].
pub fn snap(
    profiler: &Profiler<'_>,
    path: &Path,
    warnings: &mut dyn Write,
) -> Result<(), PrfError> {
    profiler.turn_on()?;
    let counters = profiler.read()?;
    let mut file = open_to_append(path, false)?;
    if append(&mut file, path, now(), &counters)? == Appended::OverPart {
        let path = path.display();
        // A warning that can't be written is no reason to fail.
        let _ = writeln!(
            warnings,
            "prfsnap: warning: {path} ended within a record; the new one is in its place"
        );
    }
    Ok(())
}

/// Seconds since 1970 began in UTC.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since
        .ok()
        .and_then(|since| i64::try_from(since.as_secs()).ok())
        .unwrap_or_default()
}
