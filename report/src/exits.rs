//! The exits of a guest's vCPUs in a recording.

use kvmprof_recording::exits::{ExitInterval, ExitSums};
use kvmprof_recording::file::{Contents, FileError, Observer, Recording};

use crate::model::TimeRange;

/// Hands each interval of exits in `recording` whose middle is in `time` to `each`.
///
/// # Errors
/// The recording can't be read.
pub fn intervals(
    recording: &Recording,
    time: &TimeRange,
    observer: &dyn Observer,
    mut each: impl FnMut(&ExitInterval),
) -> Result<Contents, FileError> {
    let began = recording.info()?.began_monotonic_ns;
    recording.exits(observer, |interval| {
        let middle = interval.begin.saturating_add(interval.time() / 2);
        // The first one may begin a moment before the recording.
        let is_begun = time.begin.is_none() || middle >= time.begin_in(began);
        if is_begun && middle < time.end_in(began) {
            each(interval);
        }
    })
}

/// The sum of the intervals in `recording` whose middle is in `time`: `None` if there is none. Also the rest of its contents.
///
/// # Errors
/// The recording can't be read.
pub fn sum(
    recording: &Recording,
    time: &TimeRange,
    observer: &dyn Observer,
) -> Result<(Option<ExitInterval>, Contents), FileError> {
    let mut sums = ExitSums::default();
    let contents = intervals(recording, time, observer, |interval| sums.add(interval))?;
    Ok((sums.sum(), contents))
}
