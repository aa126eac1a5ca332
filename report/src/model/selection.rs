//! Selects a part of a recording.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use foldhash::fast::RandomState;
use kvmprof_recording::{Mode, Sample, Ticks};

use kvmprof_recording::file::{Account, BlockTimes, RecordingInfo};

use super::{Pattern, Weight};
use crate::text::visible;

/// The selected part of recordings. A tick has to match all members; an empty member matches all ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The pids of processes.
    pub pids: Vec<i32>,
    /// Names of threads: all processes that have a thread of one of these names.
    pub comms: Vec<String>,
    /// vCPUs.
    pub vcpus: Vec<u16>,
    /// Modes.
    pub modes: Vec<Mode>,
    /// Labels of processes.
    pub labels: Vec<Label>,
    /// A pattern that the name of a function on the stack has to match.
    pub grep: Option<Pattern>,
    /// The selected time.
    pub time: TimeRange,
}

/// A label that processes have to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// The text isn't a valid [`Label`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a label is wanted, such as user=1000")]
pub struct NotALabel;

impl FromStr for Label {
    type Err = NotALabel;

    fn from_str(text: &str) -> Result<Self, NotALabel> {
        let (key, value) = text.split_once('=').ok_or(NotALabel)?;
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

/// The key of containers' ids, which people abbreviate.
const CONTAINER: &str = "container";

impl Label {
    /// Whether a process whose label of this key is `value` has the label: the begin of a container's id is enough.
    pub fn is_of(&self, value: &str) -> bool {
        let is_abbreviated = self.key == CONTAINER && !self.value.is_empty();
        value == self.value || is_abbreviated && value.starts_with(&self.value)
    }
}

impl fmt::Display for Label {
    /// Writes the form that is parsed.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.key, self.value)
    }
}

/// A range of time, relative to the recording's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeRange {
    /// The start; `None` for the recording's start.
    pub begin: Option<Duration>,
    /// The end, exclusive; `None` for the recording's end.
    pub end: Option<Duration>,
}

/// The text isn't a valid [`TimeRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a range of seconds is wanted, such as 1.5:4, 10: or :3")]
pub struct NotATimeRange;

impl FromStr for TimeRange {
    type Err = NotATimeRange;

    fn from_str(text: &str) -> Result<Self, NotATimeRange> {
        let seconds = |text: &str| match text {
            "" => Ok(None),
            _ => {
                let seconds = text.parse().map_err(|_| NotATimeRange)?;
                let time = Duration::try_from_secs_f64(seconds).map_err(|_| NotATimeRange)?;
                Ok(Some(time))
            }
        };
        let (begin, end) = text.split_once(':').ok_or(NotATimeRange)?;
        let range = Self {
            begin: seconds(begin)?,
            end: seconds(end)?,
        };
        match range {
            Self {
                begin: Some(begin),
                end: Some(end),
            } if begin >= end => Err(NotATimeRange),
            _ => Ok(range),
        }
    }
}

impl fmt::Display for TimeRange {
    /// Writes the range in seconds, in the form that is parsed.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Option<Duration>| {
            time.map_or_else(String::new, |time| time.as_secs_f64().to_string())
        };
        write!(formatter, "{}:{}", seconds(self.begin), seconds(self.end))
    }
}

impl TimeRange {
    /// Whether the time `since_begin` (ns since the recording's start) is in it.
    pub fn contains(&self, since_begin: u64) -> bool {
        let time = Duration::from_nanos(since_begin);
        self.begin.is_none_or(|begin| time >= begin) && self.end.is_none_or(|end| time < end)
    }

    /// The start of the range in a recording that began at `began`, both in ns of CLOCK_MONOTONIC.
    pub fn begin_in(&self, began: u64) -> u64 {
        self.begin.map_or(began, |time| after(began, time))
    }

    /// Whether it is the whole recording.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// `time` after `began`, in ns.
fn after(began: u64, time: Duration) -> u64 {
    began.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl Selection {
    /// Selects these processes, at all times.
    pub fn from_pids(pids: &[i32]) -> Self {
        Self {
            pids: pids.to_vec(),
            ..Self::default()
        }
    }

    /// Whether it selects samples by more than their time and vCPU.
    pub fn is_of_samples(&self) -> bool {
        !self.pids.is_empty()
            || !self.comms.is_empty()
            || !self.modes.is_empty()
            || !self.labels.is_empty()
            || self.grep.is_some()
    }
}

impl fmt::Display for Selection {
    /// The selection as options of the command line, without the time.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: fmt::Display>(all: &[T]) -> String {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            all.join(",")
        }
        let mut options = Vec::new();
        if !self.pids.is_empty() {
            options.push(format!("--pid {}", list(&self.pids)));
        }
        let comms = self.comms.iter();
        options.extend(comms.map(|comm| format!("--comm {}", visible(comm))));
        if !self.vcpus.is_empty() {
            options.push(format!("--vcpu {}", list(&self.vcpus)));
        }
        if !self.modes.is_empty() {
            let modes: Vec<&str> = self.modes.iter().map(|mode| mode.name()).collect();
            options.push(format!("--mode {}", list(&modes)));
        }
        let labels = self.labels.iter();
        options.extend(labels.map(|label| format!("--label {}", visible(&label.to_string()))));
        if let Some(grep) = &self.grep {
            options.push(format!("--grep {}", visible(&grep.to_string())));
        }
        formatter.write_str(&options.join(" "))
    }
}

/// Selects ticks by vCPU and time. Gives ticks without a sample, which have no recorded time, a computed one.
#[derive(Debug)]
pub struct Selector {
    period: u64,
    began: u64,
    /// In ns of CLOCK_MONOTONIC.
    begin: u64,
    end: u64,
    /// All if empty.
    vcpus: Vec<u16>,
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
            begin: time.begin.map_or(0, |time| after(began, time)),
            end: time.end.map_or(u64::MAX, |time| after(began, time)),
            vcpus: selection.vcpus.clone(),
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
        if !self.vcpus.is_empty() && !self.vcpus.contains(&ticks.vcpu) {
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
    use super::*;

    const INFO: RecordingInfo = RecordingInfo {
        program: String::new(),
        kernel: String::new(),
        vcpus: 1,
        hz: 100_000_000,
        event: None,
        tasks: None,
        clock: String::new(),
        jitter: false,
        memory_bytes: 0,
        began_ns: 0,
        began_monotonic_ns: 100,
        stacks: kvmprof_recording::StackParts {
            kernel: false,
            user: false,
        },
        pids: Vec::new(),
    };

    fn sampled(time: u64) -> Ticks {
        Ticks {
            idle: 3,
            sample: Some(Sample {
                time,
                ..Sample::default()
            }),
            ..Ticks::default()
        }
    }

    #[test]
    fn containers_are_selected_by_the_begin_of_their_ids() {
        let label = |text: &str| text.parse::<Label>().unwrap();
        assert!(label("container=4f1d").is_of("4f1d0a5e") && label("user=0").is_of("0"));
        assert!(!label("container=0a5e").is_of("4f1d0a5e"));
        assert!(!label("container=").is_of("4f1d0a5e") && !label("user=1").is_of("1000"));
    }

    #[test]
    fn ticks_without_a_sample_lie_between_those_with_one() {
        let mut selector = Selector::new(&INFO, &Selection::default());
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
        let mut selector = Selector::new(&INFO, &selection);
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

    #[test]
    fn ranges_are_seconds_with_open_ends() {
        let range = |text: &str| text.parse::<TimeRange>();
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(
            range("1.5:4"),
            Ok(TimeRange {
                begin: seconds(1.5),
                end: seconds(4.0)
            })
        );
        assert_eq!(range("10:").unwrap().end, None);
        assert_eq!(range(":3").unwrap().begin, None);
        assert!(range(":").unwrap().is_all());
        for text in [
            "", "3", "4:4", "5:4", "-1:2", "a:b", "nan:", "1:2:3", "1e300:",
        ] {
            assert_eq!(range(text), Err(NotATimeRange), "{text}");
        }
    }
}
