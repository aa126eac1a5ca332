//! Why the guest's vCPUs exited, over time, for the page.

use std::collections::BTreeSet;

use kvmprof_recording::exits::{Counts, ExitInterval, ExitSums, OfReason};
use kvmprof_recording::file::{Contents, FileError, Observer, Recording, RecordingInfo};
use serde_json::{Value, json};

use super::pack::PackedNumbers;
use crate::exits;
use crate::model::timeline::Bins;
use crate::model::{Criteria, Selected, Selection, Watcher};
use crate::profile::Profile;
use crate::symbolize::Resolver;
use crate::text::visible;

/// Maximum number of numbers of all rows: if there are more, the page doesn't know when exits were.
const MAX_NUMBERS: usize = 300_000;
/// Numbers of a row without its histogram, and of a class of that.
const ROW: usize = 8;
const CLASS: usize = 2;

/// The exits of a recording by reason, vCPU and interval. There are none if a part is selected of which they know nothing.
#[derive(Clone, Debug, Default)]
pub struct Exits {
    /// All intervals together.
    sums: ExitSums,
    /// The begin and the end of each interval, in ns of CLOCK_MONOTONIC.
    intervals: Vec<(u64, u64)>,
    /// The exits of each interval, by its number. None if there are too many.
    rows: Vec<(u32, Row)>,
    /// How many numbers the rows have.
    numbers: usize,
}

/// The exits of a vCPU for one reason.
#[derive(Clone, Debug)]
struct Row {
    reason: u32,
    vcpu: u32,
    count: u64,
    time: u64,
    left: u64,
    longest: u64,
    /// The classes of the histogram that have exits.
    classes: Vec<(u32, u64)>,
}

impl Row {
    fn new(one: &OfReason) -> Self {
        let classes = (0..).zip(one.histogram.classes());
        let classes = classes.filter(|(_, count)| **count > 0);
        Self {
            reason: one.reason,
            vcpu: one.vcpu,
            count: one.exits.count,
            time: one.exits.time,
            left: one.left.count,
            longest: one.longest,
            classes: classes.map(|(class, count)| (class, *count)).collect(),
        }
    }
}

impl Watcher for Exits {
    fn begin(&mut self, _: usize, _: &RecordingInfo, _: &Selection, _: &Resolver) {}

    fn take(&mut self, _: &Selected) {}

    fn end(
        &mut self,
        recording: &Recording,
        contents: &Contents,
        selection: &Selection,
        observer: &dyn Observer,
    ) -> Result<(), FileError> {
        let [only, not] = [&selection.only, &selection.not].map(|criteria| Criteria {
            vcpus: criteria.vcpus.clone(),
            ..Criteria::default()
        });
        let time = selection.time;
        let of_exits = Selection {
            only,
            not,
            time,
            transforms: Vec::new(),
        };
        if contents.has_exits && *selection == of_exits {
            exits::intervals(recording, &time, observer, |interval| {
                self.add(interval, selection);
            })?;
        }
        Ok(())
    }
}

impl Exits {
    /// Adds the exits of an interval, of the selected vCPUs.
    fn add(&mut self, interval: &ExitInterval, selection: &Selection) {
        let is_wanted =
            |one: &&OfReason| u16::try_from(one.vcpu).is_ok_and(|vcpu| selection.has_vcpu(vcpu));
        let reasons = interval.counts.reasons.iter().filter(is_wanted);
        let counts = Counts {
            reasons: reasons.cloned().collect(),
            lost: interval.counts.lost,
            ..Counts::default()
        };
        let number = u32::try_from(self.intervals.len()).unwrap_or(u32::MAX);
        for one in &counts.reasons {
            let row = Row::new(one);
            self.numbers += ROW + CLASS * row.classes.len();
            if self.numbers <= MAX_NUMBERS {
                self.rows.push((number, row));
            }
        }
        if self.numbers <= MAX_NUMBERS {
            self.intervals.push((interval.begin, interval.end));
        } else {
            self.intervals.clear();
            self.rows.clear();
        }
        self.sums.add(&ExitInterval {
            begin: interval.begin,
            end: interval.end,
            names: interval.names.clone(),
            counts,
            ..ExitInterval::default()
        });
    }
}

/// The exits of all recordings of `profile`; `None` if no recording has any.
///
/// - `reasons`: their names; `halts`: for each, whether the vCPU waits in such exits (1 or 0);
/// - `timed`: whether it is known when exits were;
/// - `intervals`, packed, if `timed`: for each the bin of its middle (as a difference), its begin and its length, in ns from the first bin's begin;
/// - `rows`, packed: for each reason of a vCPU, if `timed` in an interval: the interval (as a difference, 0 otherwise), the reason, the vCPU, the number of exits, their time, how many went to the VMM, the
///   longest one, the number of classes of the histogram that have exits, and for each of these, how many classes have none before it, and how many exits are in it;
/// - `lost`: the number of exits that are missing.
pub fn json(profile: &Profile, all: &[Exits], bins: &Bins) -> Option<Value> {
    let sums: Vec<ExitInterval> = (all.iter())
        .filter_map(|exits| exits.sums.clone().sum())
        .collect();
    let first = sums.first()?;
    let numbers = all.iter().map(|exits| exits.numbers);
    let is_timed = numbers.fold(0, usize::saturating_add) <= MAX_NUMBERS;
    let (mut intervals, mut rows) = (PackedNumbers::default(), Vec::new());
    let mut last_bin = 0;
    let mut count = 0;
    for (exits, recording) in all.iter().zip(profile.recordings()) {
        if is_timed {
            push_intervals(&mut intervals, &mut last_bin, exits, recording, bins);
            let of_all = exits
                .rows
                .iter()
                .map(|(number, row)| (count + number, row.clone()));
            rows.extend(of_all);
            count += u32::try_from(exits.intervals.len()).unwrap_or_default();
        }
    }
    if !is_timed {
        let reasons = sums.iter().flat_map(|sum| &sum.counts.reasons);
        rows.extend(reasons.map(|one| (0, Row::new(one))));
    }
    let reasons: BTreeSet<u32> = rows.iter().map(|(_, row)| row.reason).collect();
    let reasons: Vec<u32> = reasons.into_iter().collect();
    // Recordings of one kind of processor have the same ones.
    let known = |reason: &u32| {
        let mut sums = sums.iter();
        sums.find(|sum| sum.names.contains_key(reason))
            .unwrap_or(first)
    };
    let lost = sums.iter().map(|sum| sum.counts.lost);
    let lost = lost.map(|lost| lost.reasons.saturating_add(lost.threads));
    Some(json!({
        "reasons": reasons.iter().map(|reason| visible(&known(reason).reason(*reason))).collect::<Vec<_>>(),
        "halts": reasons.iter().map(|reason| u8::from(known(reason).is_halt(*reason))).collect::<Vec<_>>(),
        "timed": is_timed,
        "intervals": intervals.to_text(),
        "rows": packed(&rows, &reasons).to_text(),
        "lost": lost.fold(0, u64::saturating_add),
    }))
}

fn push_intervals(
    packed: &mut PackedNumbers,
    last_bin: &mut u32,
    exits: &Exits,
    recording: &Profile,
    bins: &Bins,
) {
    let begin = recording.selection.time.begin.unwrap_or_default();
    let begin = u64::try_from(begin.as_nanos()).unwrap_or(u64::MAX);
    let begin = begin.saturating_add(recording.contents.info.began_monotonic_ns);
    let most = u32::try_from(bins.used().saturating_sub(1)).unwrap_or(u32::MAX);
    for (from, to) in &exits.intervals {
        let length = to.saturating_sub(*from);
        let middle = from.saturating_add(length / 2).saturating_sub(begin);
        // The last one goes on after the last tick.
        let bin = u32::try_from(middle / bins.width().max(1)).map_or(most, |bin| bin.min(most));
        packed.push_difference(*last_bin, bin);
        packed.push(from.saturating_sub(begin));
        packed.push(length);
        *last_bin = bin;
    }
}

fn packed(rows: &[(u32, Row)], reasons: &[u32]) -> PackedNumbers {
    let mut packed = PackedNumbers::default();
    let mut last = 0;
    for (interval, row) in rows {
        packed.push_difference(last, *interval);
        last = *interval;
        let reason = reasons.binary_search(&row.reason);
        packed.push(reason.unwrap_or_default() as u64);
        packed.push(row.vcpu.into());
        packed.push(row.count);
        packed.push(row.time);
        packed.push(row.left);
        packed.push(row.longest);
        packed.push(row.classes.len() as u64);
        let mut next = 0;
        for (class, count) in &row.classes {
            packed.push((class - next).into());
            packed.push(*count);
            next = class + 1;
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_recording::exits::Histogram;

    /// An interval with an exit of each class of the histogram.
    fn interval(number: u64) -> ExitInterval {
        let reason = OfReason {
            reason: 30,
            histogram: Histogram::new([1; Histogram::CLASSES]),
            ..OfReason::default()
        };
        ExitInterval {
            begin: number,
            end: number + 1,
            counts: Counts {
                reasons: vec![reason],
                ..Counts::default()
            },
            ..ExitInterval::default()
        }
    }

    #[test]
    fn too_many_intervals_have_no_times() {
        let mut exits = Exits::default();
        let most = MAX_NUMBERS / (ROW + CLASS * Histogram::CLASSES);
        let made = |exits: &Exits| {
            json(
                &Profile::default(),
                std::slice::from_ref(exits),
                &Bins::default(),
            )
        };
        assert_eq!(made(&exits), None);
        for number in 0..most {
            exits.add(&interval(number as u64), &Selection::default());
        }
        let value = made(&exits).unwrap();
        assert_eq!(
            (&value["timed"], &value["reasons"]),
            (&json!(true), &json!(["0x1e"]))
        );
        exits.add(&interval(most as u64), &Selection::default());
        let value = made(&exits).unwrap();
        assert_eq!(
            (&value["timed"], &value["intervals"]),
            (&json!(false), &json!(""))
        );
        assert!(value.to_string().len() < 4096);
        // Those of another vCPU don't count.
        for filter in ["only", "not"] {
            let mut selection = Selection::default();
            match filter {
                "only" => selection.only.vcpus.push(1),
                _ => selection.not.vcpus.push(0),
            }
            exits.add(&interval(0), &selection);
            assert_eq!(made(&exits).unwrap()["rows"], value["rows"], "{filter}");
        }
    }
}
