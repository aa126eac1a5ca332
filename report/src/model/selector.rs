//! Selects ticks of a recording, and says when those without a sample were.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use kvmprof_recording::file::{Account, BlockTimes, RecordingInfo};
use kvmprof_recording::{Sample, Ticks};

use super::{Selection, Weight};

/// Selects ticks by vCPU and time. Gives ticks without a sample, which have no recorded time, a computed one.
#[derive(Debug)]
pub struct Selector {
    period: u64,
    began: u64,
    /// In ns of CLOCK_MONOTONIC.
    begin: u64,
    end: u64,
    selection: Selection,
    /// The last tick of each vCPU.
    last: HashMap<u16, u64, RandomState>,
    account: Account,
}

impl Selector {
    /// Selects the vCPUs and the time of `selection` of the recording with properties `info`.
    pub fn new(info: &RecordingInfo, selection: &Selection) -> Self {
        let time = selection.time;
        let began = info.began_monotonic_ns;
        Self {
            period: Weight::of_tick(info).interval_ns(),
            began,
            // 0 restricts nothing.
            begin: time.begin.map_or(0, |_| time.begin_in(began)),
            end: time.end_in(began),
            selection: selection.clone(),
            last: HashMap::default(),
            account: Account::default(),
        }
    }

    /// The account of the selected ticks.
    pub fn account(&self) -> Account {
        self.account
    }

    /// Whether any tick of the next block, which has these `times`, may be selected. If not, the caller skips the block, and [`Self::spread`]
    /// continues after it.
    pub fn wants(&mut self, times: &BlockTimes) -> bool {
        let is_wanted = times.vcpus.iter().any(|times| {
            let last = self.last.get(&times.vcpu).copied().unwrap_or(self.began);
            let (mut first, mut until) = (u64::MAX, 0);
            if let Some(samples) = times.samples {
                (first, until) = (samples.earliest, samples.latest);
            }
            if times.missed > 0 {
                let missed = times.missed.saturating_mul(self.period);
                // The block doesn't say where they are among its samples.
                (first, until) = (first.min(last), until.max(last).saturating_add(missed));
            }
            first < self.end && until >= self.begin
        });
        if !is_wanted {
            for times in &times.vcpus {
                let last = self.last.entry(times.vcpu).or_insert(self.began);
                let before = times.samples.map_or(*last, |samples| samples.last);
                let missed = times.missed_last.saturating_mul(self.period);
                *last = before.saturating_add(missed);
            }
        }
        is_wanted
    }

    /// The times of `ticks`, the next ones of their vCPU, and which part of them is selected. Ticks without a sample are spread
    /// evenly between samples, and each kind of them in the same proportion.
    pub fn spread(&mut self, ticks: &Ticks) -> Spread {
        let last = self.last.entry(ticks.vcpu).or_insert(self.began);
        let first = last.saturating_add(self.period);
        let missed = missed(ticks);
        let until = match &ticks.sample {
            Some(sample) => sample.time,
            None => last.saturating_add(missed.saturating_mul(self.period)),
        };
        *last = until;
        let mut spread = Spread {
            ticks: *ticks,
            // The clock isn't exact. A tick before a sample must not get a later time than the sample.
            first: first.min(until),
            until,
            period: self.period,
            missed,
            begin: 0,
            end: missed,
        };
        if !self.selection.has_vcpu(ticks.vcpu) {
            spread.end = 0;
            spread.ticks.sample = None;
        } else if self.begin != 0 || self.end != u64::MAX {
            (spread.begin, spread.end) = (spread.before(self.begin), spread.before(self.end));
            let is_selected = |sample: &Sample| (self.begin..self.end).contains(&sample.time);
            spread.ticks.sample = ticks.sample.filter(is_selected);
        }
        self.account.enter(&spread.selected());
        spread
    }

    /// The selected part of `ticks`, and the time of its first tick.
    #[cfg(test)]
    pub fn select(&mut self, ticks: &Ticks) -> (Ticks, u64) {
        let spread = self.spread(ticks);
        (spread.selected(), spread.begin())
    }
}

/// A run of ticks in time: those without a sample at even distances, then at most one with a sample.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    ticks: Ticks,
    /// The times of the first and of the last one, in ns of CLOCK_MONOTONIC.
    first: u64,
    until: u64,
    /// Between two ticks, in ns.
    period: u64,
    /// The number of ticks without a sample, of all kinds.
    missed: u64,
    /// The range of their numbers that is selected.
    begin: u64,
    end: u64,
}

impl Spread {
    /// The selected ticks.
    pub fn selected(&self) -> Ticks {
        if (self.begin, self.end) == (0, self.missed) {
            return self.ticks;
        }
        self.part(self.begin, self.end, self.ticks.sample)
    }

    /// The same with this `sample`, and with its idle ticks only if they are wanted.
    pub fn only(self, sample: Option<Sample>, wants_idle: bool) -> Self {
        Self {
            ticks: Ticks {
                idle: if wants_idle { self.ticks.idle } else { 0 },
                sample,
                ..self.ticks
            },
            ..self
        }
    }

    /// The time of the first selected tick without a sample, in ns of CLOCK_MONOTONIC.
    pub fn begin(&self) -> u64 {
        self.time(self.begin).min(self.until)
    }

    /// The time of the last selected tick, in ns of CLOCK_MONOTONIC; 0 if none is.
    pub fn until(&self) -> u64 {
        let missed = (self.begin < self.end).then(|| self.time(self.end - 1));
        let sample = self.ticks.sample.map(|sample| sample.time);
        missed.max(sample).unwrap_or(0)
    }

    /// The time of a tick without a sample.
    fn time(&self, number: u64) -> u64 {
        self.first
            .saturating_add(number.saturating_mul(self.period))
    }

    /// Distributes the selected ticks without a sample over bins of time: `bin_of` returns the bin of a time, `end_of` the end
    /// of a bin, in ns of CLOCK_MONOTONIC, and `each` gets each bin with its part. The sum of all parts is the number of selected
    /// ticks, and the sum of neighbouring parts is what a selection of their time has.
    pub fn share(
        &self,
        bin_of: impl Fn(u64) -> usize,
        end_of: impl Fn(usize) -> u64,
        mut each: impl FnMut(usize, &Ticks),
    ) {
        let mut begin = self.begin;
        while begin < self.end {
            let bin = bin_of(self.time(begin));
            let is_last = bin >= bin_of(self.time(self.end - 1));
            let end = if is_last {
                self.end
            } else {
                // Time continues, for any bins.
                self.before(end_of(bin)).clamp(begin + 1, self.end)
            };
            each(bin, &self.part(begin, end, None));
            begin = end;
        }
    }

    /// How many ticks without a sample were before `time`.
    fn before(&self, time: u64) -> u64 {
        let ticks = time.saturating_sub(self.first).div_ceil(self.period);
        ticks.min(self.missed)
    }

    /// Ticks `begin` to `end` of those without a sample, with `sample`.
    fn part(&self, begin: u64, end: u64, sample: Option<Sample>) -> Ticks {
        let part =
            |count: u64| portion(count, end, self.missed) - portion(count, begin, self.missed);
        Ticks {
            vcpu: self.ticks.vcpu,
            idle: part(self.ticks.idle),
            stolen: part(self.ticks.stolen),
            lost: part(self.ticks.lost),
            ungathered: part(self.ticks.ungathered),
            sample,
        }
    }
}

fn missed(ticks: &Ticks) -> u64 {
    (ticks.idle)
        .saturating_add(ticks.stolen)
        .saturating_add(ticks.lost)
        .saturating_add(ticks.ungathered)
}

/// The fraction `part` / `whole` of `count`.
fn portion(count: u64, part: u64, whole: u64) -> u64 {
    // Most ticks have a sample and nothing else.
    if count == 0 {
        return 0;
    }
    let portion = u128::from(count) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(portion).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::TimeRange;

    fn selector(selection: &Selection) -> Selector {
        let info = RecordingInfo {
            hz: 100_000_000,
            began_monotonic_ns: 100,
            ..RecordingInfo::default()
        };
        Selector::new(&info, selection)
    }

    fn sampled(time: u64) -> Ticks {
        Ticks {
            idle: 3,
            ..Ticks::from(Sample {
                time,
                ..Sample::default()
            })
        }
    }

    #[test]
    fn ticks_without_a_sample_lie_between_those_with_one() {
        let mut selector = selector(&Selection::default());
        let idle = Ticks {
            idle: u64::MAX,
            ..Ticks::default()
        };
        assert_eq!(selector.select(&sampled(141)), (sampled(141), 110));
        assert_eq!(selector.select(&sampled(145)).1, 145);
        assert_eq!(selector.select(&idle).1, 155);
        assert_eq!(selector.select(&idle).1, u64::MAX);
    }

    #[test]
    fn ticks_of_other_times_are_left_out() {
        let selection = Selection {
            time: TimeRange {
                begin: Some(Duration::from_nanos(20)),
                end: Some(Duration::from_nanos(60)),
            },
            ..Selection::default()
        };
        let mut selector = selector(&selection);
        // Idle at 110, 120, 130; a sample at 140.
        let (first, begin) = selector.select(&sampled(140));
        assert_eq!((first.idle, first.sample.is_some(), begin), (2, true, 120));
        // Idle at 150, 160, 170; a sample at 180.
        let (second, begin) = selector.select(&sampled(180));
        assert_eq!((second.idle, second.sample, begin), (1, None, 150));
        let (last, _) = selector.select(&sampled(500));
        assert_eq!((last.idle, last.sample), (0, None));
        let account = selector.account();
        assert_eq!((account.samples, account.idle, account.ticks), (1, 3, 4));
    }
}
