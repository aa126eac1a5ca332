//! What is marked on the page's time line. Times are in ns from the start of each recording, or from its selected begin if those
//! differ.

use std::collections::BTreeMap;

use kvmprof_recording::file::ProcessLabels;
use serde_json::{Value, json};

use super::data::ns;
use crate::profile::{self, Profile};
use crate::text::visible;

/// Maximum number of marks of each kind; later ones aren't there.
const MAX_MARKS: usize = 1000;

/// When the guests of all recordings restarted.
pub fn restarts(profile: &Profile, is_same_time: bool) -> Vec<u64> {
    let times = profile.recordings().flat_map(|recording| {
        let clock = Clock::new(recording, is_same_time);
        let resets = recording.contents.resets.iter();
        resets.filter_map(move |reset| clock.at(reset.time))
    });
    times.take(MAX_MARKS).collect()
}

/// When clients had paused the guests: the recording's number, and `begin` and `end`, which is null if that is the recording's.
pub fn pauses(profile: &Profile, is_same_time: bool) -> Value {
    let pauses = profile
        .recordings()
        .enumerate()
        .flat_map(|(number, recording)| {
            let Clock { begin, .. } = Clock::new(recording, is_same_time);
            profile::pauses(recording).into_iter().map(move |pause| {
                json!({
                    "recording": number,
                    "begin": ns(pause.begin).saturating_sub(begin),
                    "end": pause.end.map(|end| ns(end).saturating_sub(begin)),
                })
            })
        });
    pauses.take(MAX_MARKS).collect()
}

/// When processes executed another program: at which of their samples that was seen (`time`), the `process`, by its number on the
/// page, and the `program`.
pub fn execs(profile: &Profile, is_same_time: bool) -> Value {
    let numbers = profile
        .all_processes()
        .map(|(recording, pid, _)| (recording, pid));
    let numbers: BTreeMap<(usize, i32), usize> = numbers.zip(0..).collect();
    let execs = profile
        .recordings()
        .enumerate()
        .flat_map(|(number, recording)| {
            let clock = Clock::new(recording, is_same_time);
            let (mut labels, numbers) = (Programs::default(), &numbers);
            recording.contents.labels.iter().filter_map(move |next| {
                let program = labels.next(next)?;
                let process = numbers.get(&(number, next.pid))?;
                let time = clock.at(next.time)?;
                Some(json!({ "process": process, "time": time, "program": visible(program) }))
            })
        });
    execs.take(MAX_MARKS).collect()
}

/// The clock of the page's times of a recording.
struct Clock {
    /// When the recording began, in ns of CLOCK_MONOTONIC.
    start: u64,
    /// How long after that the page's times begin, in ns.
    begin: u64,
}

impl Clock {
    fn new(recording: &Profile, is_same_time: bool) -> Self {
        let begin = recording.selection.time.begin.filter(|_| !is_same_time);
        Self {
            start: recording.contents.info.began_monotonic_ns,
            begin: begin.map_or(0, ns),
        }
    }

    /// The page's time at `time`; `None` before it begins.
    fn at(&self, time: u64) -> Option<u64> {
        time.checked_sub(self.start)?.checked_sub(self.begin)
    }
}

/// The latest labels of processes.
#[derive(Default)]
struct Programs<'a>(BTreeMap<i32, &'a ProcessLabels>);

impl<'a> Programs<'a> {
    /// Takes the next labels of a process. Returns its program if it is another one than that process had before.
    fn next(&mut self, next: &'a ProcessLabels) -> Option<&'a str> {
        let before = self.0.insert(next.pid, next)?;
        let both = |key| Some((before.labels.get(key)?, next.labels.get(key)?));
        // Another process may have got the same pid.
        let (began, begins) = both("started")?;
        let (old, new) = both("executable")?;
        (began == begins && old != new).then_some(new.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_executes_another_program_is_the_same_process() {
        let labels = |pid, started: &str, executable: &str| ProcessLabels {
            pid,
            time: 0,
            labels: [("started", started), ("executable", executable)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        };
        let all = [
            labels(7, "1.0", "/bin/sh"),
            labels(8, "1.0", "/bin/true"),
            labels(7, "1.0", "/bin/sh"),
            labels(7, "1.0", "/bin/cat"),
            labels(8, "2.0", "/bin/sh"),
        ];
        let mut programs = Programs::default();
        let found = all.iter().map(|one| programs.next(one));
        let found: Vec<_> = found.collect();
        assert_eq!(found, [None, None, None, Some("/bin/cat"), None]);
    }
}
