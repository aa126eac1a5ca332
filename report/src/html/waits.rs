//! Where a guest's tasks waited, for the page.

use std::cmp::Reverse;

use kvmprof_recording::file::{Contents, FileError, Observer, Recording, RecordingInfo};
use kvmprof_recording::tasks::TaskState;
use serde_json::{Value, json};

use super::calls::Calls;
use super::pack::PackedNumbers;
use crate::model::timeline::Bins;
use crate::model::{Selected, Selection, Table, Watcher};
use crate::profile::Profile;
use crate::symbolize::Resolver;
use crate::tasks::{self, TaskSums, Thread, Wait, WaitKey, state_name};

/// Maximum number of waits, those that were seen most often.
const MAX_WAITS: usize = 50_000;
/// Maximum number of looks and runs of looks: if there are more, the page doesn't know when tasks waited.
const MAX_TIMES: usize = 300_000;

/// The sums of a recording's looks at tasks; `None` if it has none, or if a part is selected of which looks know nothing.
#[derive(Clone, Debug, Default)]
pub struct Waits(Option<TaskSums>);

impl Watcher for Waits {
    fn begin(&mut self, _: usize, _: &RecordingInfo, _: &Selection, _: &Resolver) {}

    fn take(&mut self, _: &Selected) {}

    fn end(
        &mut self,
        recording: &Recording,
        contents: &Contents,
        selection: &Selection,
        observer: &dyn Observer,
    ) -> Result<(), FileError> {
        let of_tasks = Selection {
            time: selection.time,
            ..Selection::from_pids(&selection.only.pids)
        };
        if contents.info.tasks.is_some() && *selection == of_tasks {
            let sums = TaskSums::read(recording, contents, selection, observer)?;
            self.0 = Some(sums).filter(|sums| sums.looks > 0);
        }
        Ok(())
    }
}

/// A wait of a recording, by its number.
type Found<'a> = (usize, &'a WaitKey, &'a Wait);

/// The waits of all recordings of `profile`, whose nodes are added to `calls`; `None` if no recording has looks.
///
/// - `looks`, packed, of each recording: their number, then the bin of each (as a difference) if `timed`;
/// - `states`: their names, and letters behind them; `threads`: their `recording`, `pid`, `tid` and `name`;
/// - `timed`: whether it is known in which looks each wait was seen;
/// - `rows`, packed: for each wait the number of its thread (as a difference), its state, its node, in how many looks it was seen, for how long its task
///   hadn't run at least, in ns; if `timed` the number of runs of looks, and for each run its first look, less the end of the last run (as a difference), and its number of looks;
/// - `rare`: the number of waits that are left out, and in how many looks they were seen.
pub fn json(profile: &Profile, all: &[Waits], calls: &mut Calls, bins: &Bins) -> Option<Value> {
    if all.iter().all(|waits| waits.0.is_none()) {
        return None;
    }
    let (found, rare) = found(all);
    let times = sums(all).map(|(_, sums)| sums.times.len()).sum::<usize>();
    let runs = found.iter().map(|(.., wait)| wait.runs.len());
    let is_timed = sums(all).all(|(_, sums)| !sums.times.is_empty())
        && times.saturating_add(runs.sum()) <= MAX_TIMES;
    let recordings: Vec<&Profile> = profile.recordings().collect();
    let looks = (0..recordings.len()).map(|recording| {
        let sums = all.get(recording).and_then(|waits| waits.0.as_ref());
        looks(recordings[recording], sums, bins, is_timed).to_text()
    });
    let looks: Vec<String> = looks.collect();
    let mut threads: Table<(usize, Thread)> = Table::default();
    let mut rows = PackedNumbers::default();
    let mut last = 0;
    for (recording, key, wait) in &found {
        let thread = threads.number((*recording, key.thread));
        rows.push_difference(last, thread);
        last = thread;
        let frames = tasks::frames(&recordings[*recording].resolver, &key.stack);
        let node = calls.node_of_wait(frames, key.stack.is_whole);
        let state = TaskState::ALL.iter().position(|state| *state == key.state);
        rows.push(state.unwrap_or_default() as u64);
        rows.push(node.into());
        rows.push(wait.seen);
        rows.push(wait.longest);
        if is_timed {
            push_runs(&mut rows, wait);
        }
    }
    let names = threads.values().iter().map(|(recording, thread)| {
        let sums = all[*recording].0.as_ref();
        sums.map_or_else(String::new, |sums| sums.name(*thread))
    });
    let column = |value: &dyn Fn(&(usize, Thread)) -> i64| {
        Value::Array(
            threads
                .values()
                .iter()
                .map(|one| value(one).into())
                .collect(),
        )
    };
    let states = TaskState::ALL.map(|state| format!("{} ({})", state_name(state), state.letter()));
    Some(json!({
        "looks": looks,
        "states": states,
        "threads": {
            // There are few recordings.
            "recording": column(&|(recording, _)| i64::try_from(*recording).unwrap_or(i64::MAX)),
            "pid": column(&|(_, thread)| thread.pid.into()),
            "tid": column(&|(_, thread)| thread.tid.into()),
            "name": names.collect::<Vec<_>>(),
        },
        "timed": is_timed,
        "rows": rows.to_text(),
        "rare": { "waits": rare.0, "seen": rare.1 },
    }))
}

fn sums(all: &[Waits]) -> impl Iterator<Item = (usize, &TaskSums)> {
    let sums = all.iter().enumerate();
    sums.filter_map(|(recording, waits)| Some((recording, waits.0.as_ref()?)))
}

/// The waits in the order of their threads, and how many others there are, and how often these were seen. Threads of the kernel that wait for work don't count.
fn found(all: &[Waits]) -> (Vec<Found<'_>>, (usize, u64)) {
    let waits = sums(all).flat_map(|(recording, sums)| {
        let waits = sums.waits.iter();
        waits.map(move |(key, wait)| (recording, key, wait))
    });
    let mut found: Vec<Found<'_>> = waits
        .filter(|(_, key, _)| key.state != TaskState::Idle)
        .collect();
    let place = |(recording, key, _): &Found<'_>| (*recording, key.thread, key.state);
    let order = |one: &Found<'_>, other: &Found<'_>| {
        let by_place = place(one).cmp(&place(other));
        by_place.then_with(|| one.1.stack.frames.cmp(&other.1.stack.frames))
    };
    found.sort_by(|one, other| {
        let by_seen = Reverse(one.2.seen).cmp(&Reverse(other.2.seen));
        by_seen.then_with(|| order(one, other))
    });
    let rare = found.get(MAX_WAITS..).unwrap_or_default();
    let seen = rare.iter().map(|(.., wait)| wait.seen);
    let rare = (rare.len(), seen.fold(0, u64::saturating_add));
    found.truncate(MAX_WAITS);
    found.sort_by(order);
    (found, rare)
}

/// The looks of a recording.
fn looks(profile: &Profile, sums: Option<&TaskSums>, bins: &Bins, is_timed: bool) -> PackedNumbers {
    let mut packed = PackedNumbers::default();
    packed.push(sums.map_or(0, |sums| sums.looks));
    let begin = profile.selection.time.begin.unwrap_or_default();
    let begin = u64::try_from(begin.as_nanos()).unwrap_or(u64::MAX);
    let begin = begin.saturating_add(profile.contents.info.began_monotonic_ns);
    let last_bin = u32::try_from(bins.used().saturating_sub(1)).unwrap_or(u32::MAX);
    let times = sums.filter(|_| is_timed).map(|sums| &sums.times[..]);
    let mut last = 0;
    for time in times.unwrap_or_default() {
        let bin = time.saturating_sub(begin) / bins.width().max(1);
        // Looks go on after the last tick.
        let bin = u32::try_from(bin).map_or(last_bin, |bin| bin.min(last_bin));
        packed.push_difference(last, bin);
        last = bin;
    }
    packed
}

fn push_runs(rows: &mut PackedNumbers, wait: &Wait) {
    rows.push(wait.runs.len() as u64);
    let mut last = 0_u32;
    for run in &wait.runs {
        // A task may be in a look more than once.
        rows.push_difference(last, run.first);
        rows.push(run.count.into());
        last = run.first.saturating_add(run.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads that waited once each, in a recording of these looks.
    fn waiting(threads: usize, looks: usize) -> Vec<Waits> {
        let waits = (0..threads).map(|number| {
            let tid = i32::try_from(number).unwrap();
            let key = WaitKey {
                thread: Thread { pid: 7, tid },
                state: TaskState::Sleeping,
                stack: Default::default(),
            };
            let wait = Wait {
                seen: if number == 0 { 9 } else { 1 },
                ..Wait::default()
            };
            (key, wait)
        });
        vec![Waits(Some(TaskSums {
            looks: looks as u64,
            times: vec![0; looks],
            waits: waits.collect(),
            ..TaskSums::default()
        }))]
    }

    fn made(all: &[Waits]) -> Value {
        let mut calls = Calls::default();
        json(&Profile::default(), all, &mut calls, &Bins::default()).unwrap()
    }

    #[test]
    fn rare_waits_are_counted_together() {
        let value = made(&waiting(MAX_WAITS + 5, 1));
        assert_eq!(value["rare"], json!({ "waits": 5, "seen": 5 }));
        assert_eq!(value["threads"]["tid"].as_array().unwrap().len(), MAX_WAITS);
        assert_eq!(value["threads"]["tid"][0], 0);
        assert!(value.to_string().len() < 2 << 20);
    }

    #[test]
    fn too_many_looks_have_no_times() {
        assert_eq!(made(&waiting(1, MAX_TIMES))["timed"], true);
        let value = made(&waiting(1, MAX_TIMES + 1));
        assert_eq!(
            (&value["timed"], &value["rare"]["waits"]),
            (&json!(false), &json!(0))
        );
        assert!(value.to_string().len() < 4096);
    }
}
