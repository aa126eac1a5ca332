//! Sums up several boots of the same guest, and compares them with those of another.

use std::collections::{BTreeMap, HashMap};

use thiserror::Error;

use super::estimate::{Comparison, Estimate};
use super::initcalls::{Call, CallKind, calls, longest_unseen};
use super::levels::Levels;
use super::phases::{Phase, phases};
use super::samples::{Places, SampledCode};
use crate::export::{ExportError, Source};
use crate::statistics::correct_for_many;
use kvmprof_recording::file::{Account, Observer};

/// Why the boot in a recording can't be used.
#[derive(Debug, Error)]
pub enum BootError {
    /// It can't be read.
    #[error(transparent)]
    Recording(#[from] ExportError),
    /// Its samples are of events.
    #[error("The recording is sampled by an event, and not by the clock: a boot takes time")]
    ByEvent,
    /// It has no initcall.
    #[error(
        "There is no initcall of a Linux kernel in the recording: make one from the guest's first instruction on (kvmprof boot --kernel, or kvmprof run \
         --record), with a higher --hz if the boot is quick"
    )]
    NoInitcall,
    /// It has more than one boot.
    #[error(
        "The guest was reset while it was recorded, and has booted more than once: record each boot alone (kvmprof boot --kernel, or kvmprof run \
         --record --on-reset exit)"
    )]
    Reset,
    /// It wasn't read to its end.
    #[error("Interrupted: a boot counts as a whole only")]
    Interrupted,
}

/// The boot in one recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Boot {
    /// The start and the end of each of [`Phase::ALL`], in ns from the recording's start.
    pub phases: [(u64, u64); 5],
    /// The initcalls and modules' init functions that have samples, in the order in which they began.
    pub calls: Vec<Call>,
    /// How long an initcall can have run without a sample, in ns: one that isn't in `calls` took less.
    pub longest_unseen_ns: u64,
    /// The time between two ticks, in ns.
    pub tick_ns: u64,
    /// The share of lost and stolen ticks, from 0 to 1. The larger it is, the less exact are the times.
    pub unseen: f64,
}

impl Boot {
    /// Reads the recording of `source`, of a kernel whose initcalls have these `levels`. Without levels it isn't known which functions are initcalls,
    /// and the upper bounds of calls are useless. `observer` gets the progress.
    ///
    /// # Errors
    /// [`BootError`].
    pub fn read(
        source: &Source,
        levels: &Levels,
        observer: &dyn Observer,
    ) -> Result<Self, BootError> {
        let tick_ns = match source.weight().time_ns() {
            0 => return Err(BootError::ByEvent),
            time => time,
        };
        if !source.profile().contents.resets.is_empty() {
            return Err(BootError::Reset);
        }
        let began = source.profile().contents.info.began_monotonic_ns;
        let (mut seen, mut end) = (Vec::new(), 0);
        let mut places = Places::of(source);
        source.for_each(|event| {
            let ticks = event.ticks.saturating_mul(tick_ns);
            end = end.max(event.time.saturating_sub(began).saturating_add(ticks));
            seen.push(places.seen(event, began)?);
            Ok(())
        })?;
        let unlooked = source.looks(observer, |look| {
            for task in &look.tasks {
                seen.extend(places.waiting(task, look, began)?);
            }
            Ok(())
        })?;
        if unlooked > 0 || source.profile().contents.unread > 0 {
            return Err(BootError::Interrupted);
        }
        // Samples of different vCPUs are only roughly in order.
        seen.sort_by_key(|seen| seen.time);
        if !(seen.iter()).any(|seen| matches!(seen.place, SampledCode::Initcall(_))) {
            return Err(BootError::NoInitcall);
        }
        Ok(Self {
            phases: phases(&seen, end),
            calls: calls(&seen, levels, tick_ns, end),
            longest_unseen_ns: longest_unseen(&seen, levels),
            tick_ns,
            unseen: unseen(&source.profile().contents.account),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown as a percentage")]
fn unseen(account: &Account) -> f64 {
    let unseen = account.lost.saturating_add(account.stolen);
    unseen as f64 / account.ticks.max(1) as f64
}

/// A phase or a call in several boots.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The phase, or the function.
    pub name: String,
    /// The initcall's level, or the module in brackets; empty for phases, and if unknown.
    pub level: String,
    /// The start of the phase in each boot, in ns from the recording's start; empty for calls.
    pub begins_ns: Vec<u64>,
    /// The time in it. A boot without samples in it counts as 0.
    pub time: Estimate,
    /// The lower and upper bound of the mean, in ns, from the samples before, in and after it; `None` for phases, and for calls that
    /// aren't known to be initcalls.
    pub bounds_ns: Option<(u64, u64)>,
}

/// Boots of the same guest.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The number of boots.
    pub boots: usize,
    /// The longest time between two ticks in them, in ns.
    pub tick_ns: u64,
    /// The largest share of lost and stolen ticks in a boot, from 0 to 1.
    pub unseen: f64,
    /// The time from the first instruction to the recording's end.
    pub whole: Estimate,
    /// The phases, in their order.
    pub phases: Vec<Row>,
    /// The initcalls and modules' init functions, the longest first.
    pub calls: Vec<Row>,
}

impl Summary {
    /// Sums up boots of a kernel whose initcalls have these `levels`.
    pub fn new(boots: &[Boot], levels: &Levels) -> Self {
        let tick_ns = boots.iter().map(|boot| boot.tick_ns).max().unwrap_or(0);
        let phases = Phase::ALL.iter().enumerate().map(|(index, phase)| {
            let times = boots.iter().map(|boot| boot.phases[index]);
            let times: Vec<u64> = times.map(|(begin, end)| end - begin).collect();
            Row {
                name: phase.name().to_owned(),
                level: String::new(),
                begins_ns: boots.iter().map(|boot| boot.phases[index].0).collect(),
                time: Estimate::new(&times, tick_ns),
                bounds_ns: None,
            }
        });
        let ends: Vec<u64> = boots.iter().map(|boot| boot.phases[4].1).collect();
        Self {
            boots: boots.len(),
            tick_ns,
            unseen: boots.iter().map(|boot| boot.unseen).fold(0.0, f64::max),
            whole: Estimate::new(&ends, tick_ns),
            phases: phases.collect(),
            calls: call_rows(boots, levels, tick_ns),
        }
    }
}

fn call_rows(boots: &[Boot], levels: &Levels, tick_ns: u64) -> Vec<Row> {
    // The estimate, the lower and the upper bound, for each boot.
    let unseen: Vec<[u64; 3]> = (boots.iter())
        .map(|boot| [0, 0, boot.longest_unseen_ns])
        .collect();
    let mut times: BTreeMap<(&str, &CallKind), Vec<[u64; 3]>> = BTreeMap::new();
    for (index, boot) in boots.iter().enumerate() {
        for call in &boot.calls {
            let key = (call.function.as_str(), &call.kind);
            let times = times.entry(key).or_insert_with(|| unseen.clone());
            times[index] = [call.time_ns, call.at_least_ns, call.at_most_ns];
        }
    }
    let rows = times.into_iter().map(|((function, kind), times)| {
        let mean = |which: usize| {
            let sum: u128 = times.iter().map(|times| u128::from(times[which])).sum();
            u64::try_from(sum / times.len().max(1) as u128).unwrap_or(u64::MAX)
        };
        let all: Vec<u64> = times.iter().map(|[time, ..]| *time).collect();
        let level = match kind {
            CallKind::Initcall => levels.of(function),
            CallKind::Module(module) => Some(module.as_str()),
        };
        let is_initcall = *kind == CallKind::Initcall && level.is_some();
        Row {
            name: function.to_owned(),
            level: level.unwrap_or_default().to_owned(),
            begins_ns: Vec::new(),
            time: Estimate::new(&all, tick_ns),
            bounds_ns: is_initcall.then(|| (mean(1), mean(2))),
        }
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by(|one, other| other.time.mean_ns.total_cmp(&one.time.mean_ns));
    rows
}

/// A phase or a call, before and after a change.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedRow {
    /// The phase, or the function.
    pub name: String,
    /// As [`Row::level`].
    pub level: String,
    /// The time before.
    pub before: Estimate,
    /// The time after.
    pub after: Estimate,
    /// The change. Its probability is corrected for the number of comparisons: that of all rows, of phases and of calls.
    pub comparison: Comparison,
}

/// The changes from `before` to `after`: of the phases, in their order, and of the calls, the biggest change first.
pub fn compare(before: &Summary, after: &Summary) -> (Vec<ComparedRow>, Vec<ComparedRow>) {
    let mut phases = compare_rows(before, after, |summary| &summary.phases);
    let mut calls = compare_rows(before, after, |summary| &summary.calls);
    let rows = phases.iter_mut().chain(&mut calls);
    correct_for_many(rows.filter_map(|row| row.comparison.p.as_mut()));
    let size = |row: &ComparedRow| row.comparison.change_ns.abs();
    calls.sort_by(|one, other| size(other).total_cmp(&size(one)));
    (phases, calls)
}

fn compare_rows(
    before: &Summary,
    after: &Summary,
    rows: impl for<'a> Fn(&'a Summary) -> &'a Vec<Row>,
) -> Vec<ComparedRow> {
    let missing = |summary: &Summary| Estimate::new(&vec![0; summary.boots], summary.tick_ns);
    let known = |summary| {
        let known = rows(summary).iter();
        let known = known.map(|row| ((row.name.as_str(), row.level.as_str()), row.time));
        known.collect::<HashMap<_, _>>()
    };
    let (known_before, known_after) = (known(before), known(after));
    let find = |known: &HashMap<(&str, &str), Estimate>, summary: &Summary, row: &Row| {
        let found = known.get(&(row.name.as_str(), row.level.as_str()));
        found.copied().unwrap_or_else(|| missing(summary))
    };
    let is_new = |row: &&Row| !known_before.contains_key(&(row.name.as_str(), row.level.as_str()));
    let all = rows(before).iter().chain(rows(after).iter().filter(is_new));
    let compared = all.map(|row| {
        let (before, after) = (
            find(&known_before, before, row),
            find(&known_after, after, row),
        );
        ComparedRow {
            name: row.name.clone(),
            level: row.level.clone(),
            before,
            after,
            comparison: Comparison::new(&before, &after),
        }
    });
    compared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(times: &[(&str, u64)]) -> Boot {
        let calls = times.iter().map(|(function, time_ns)| Call {
            function: (*function).to_owned(),
            kind: CallKind::Initcall,
            began_ns: 0,
            time_ns: *time_ns,
            at_least_ns: time_ns - time_ns / 10,
            at_most_ns: time_ns + time_ns / 10,
            samples: 1,
        });
        let end = times.iter().map(|(_, time)| time).sum();
        Boot {
            phases: [(0, 0), (0, 0), (0, end), (end, end), (end, end)],
            calls: calls.collect(),
            longest_unseen_ns: 3,
            tick_ns: 1,
            unseen: 0.0,
        }
    }

    fn summary(boots: &[Boot]) -> Summary {
        let names = ["one", "two"].map(|name| format!("__initcall__kmod_m__1_1_{name}6"));
        let levels = Levels::from_symbols(names.iter().map(String::as_str));
        Summary::new(boots, &levels)
    }

    #[test]
    fn unsampled_initcalls_took_no_time() {
        let summary = summary(&[boot(&[("one", 4), ("two", 10)]), boot(&[("two", 12)])]);
        let rows = summary.calls.iter();
        let rows = rows.map(|row| (row.name.as_str(), row.time.mean_ns, row.bounds_ns.unwrap()));
        // The second boot may have had an unsampled initcall of 3 ns.
        let expected = [("two", 11.0, (10, 12)), ("one", 2.0, (2, 3))];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
        assert_eq!(summary.whole.mean_ns, 13.0);
        assert_eq!(summary.phases[2].time.mean_ns, 13.0);
    }

    /// Times that an artificial recording claims.
    #[test]
    fn any_times_are_accepted() {
        let mut boot = boot(&[("one", u64::MAX / 2)]);
        boot.calls[0].at_most_ns = u64::MAX;
        let summary = summary(&[boot.clone(), boot]);
        assert_eq!(summary.calls[0].bounds_ns.unwrap().1, u64::MAX);
        let (_, calls) = compare(&summary, &summary);
        assert_eq!(calls[0].comparison.p, Some(1.0));
    }

    /// A boot whose only call takes as long as the phase: both changes are as improbable, and four phases don't change.
    #[test]
    fn phases_and_calls_are_corrected_together() {
        let boots = |time: u64| summary(&[0, 10, 20].map(|more| boot(&[("one", time + more)])));
        let (before, after) = (boots(1000), boots(1030));
        let alone = Comparison::new(&before.calls[0].time, &after.calls[0].time);
        let expected = 6.0 * alone.p.unwrap();
        assert!(expected < 1.0, "{expected}");
        let (phases, calls) = compare(&before, &after);
        for row in [&phases[2], &calls[0]] {
            let p = row.comparison.p.unwrap();
            assert!((p - expected).abs() < 1e-9, "{p} for {expected}");
        }
    }

    #[test]
    fn a_slower_call_is_found_among_others() {
        let boots = |slow: u64| {
            let boots = [0, 1, 2].map(|more| {
                let (same, other) = (("same", 500 + 7 * more), ("other", 90 - more));
                boot(&[("slow", slow + more), same, other])
            });
            summary(&boots)
        };
        let (phases, calls) = compare(&boots(1000), &boots(1100));
        assert_eq!(phases[2].comparison.change_ns.round(), 100.0);
        assert_eq!(calls[0].name, "slow");
        assert!(calls[0].comparison.p.unwrap() < 0.001);
        assert!(calls[1..].iter().all(|row| row.comparison.p == Some(1.0)));
        // One that exists only afterwards.
        let (_, calls) = compare(&summary(&[boot(&[])]), &boots(1000));
        assert_eq!(calls[0].before.mean_ns, 0.0);
        assert_eq!(calls[0].comparison.p, None);
    }
}
