//! What part of a recording is selected.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use kvmprof_recording::Mode;

use super::Pattern;
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

    /// The end of the range in a recording that began at `began`, both in ns of CLOCK_MONOTONIC; `u64::MAX` for the recording's end.
    pub fn end_in(&self, began: u64) -> u64 {
        self.end.map_or(u64::MAX, |time| after(began, time))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_selected_by_the_begin_of_their_ids() {
        let label = |text: &str| text.parse::<Label>().unwrap();
        assert!(label("container=4f1d").is_of("4f1d0a5e") && label("user=0").is_of("0"));
        assert!(!label("container=0a5e").is_of("4f1d0a5e"));
        assert!(!label("container=").is_of("4f1d0a5e") && !label("user=1").is_of("1000"));
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
