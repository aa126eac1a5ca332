//! What part of a recording is selected.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Criteria, Transform};
use crate::text::visible;

/// The selected part of recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// What ticks have to have: all of the labels and patterns, and one of each other list that isn't empty.
    pub only: Criteria,
    /// What they may not have: none of them.
    pub not: Criteria,
    /// The selected time.
    pub time: TimeRange,
    /// What is shown of the stacks, one after the other.
    pub transforms: Vec<Transform>,
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
            only: Criteria {
                pids: pids.to_vec(),
                ..Criteria::default()
            },
            ..Self::default()
        }
    }

    /// The options of the command line that select it, without the time, each with its value.
    pub fn options(&self) -> impl Iterator<Item = (String, String)> {
        let only = self.only.options().into_iter();
        let only = only.map(|(kind, value)| (format!("--{kind}"), value));
        let not = self.not.options().into_iter();
        let not = not.map(|(kind, value)| ("--not".to_owned(), format!("{kind}={value}")));
        let transforms = self.transforms.iter();
        let transforms =
            transforms.map(|transform| ("--transform".to_owned(), transform.to_string()));
        only.chain(not).chain(transforms)
    }

    /// Whether it selects samples by their stacks or labels.
    pub(super) fn is_of_stacks(&self) -> bool {
        let drops = self.transforms.iter().any(Transform::drops_stacks);
        drops || self.only.are_of_stacks() || self.not.are_of_stacks()
    }

    /// Whether it selects samples by more than their time and vCPU.
    pub fn is_of_samples(&self) -> bool {
        self.is_of_stacks() || self.only.are_of_samples() || self.not.are_of_samples()
    }

    /// Whether it leaves out times or vCPUs, with all of their ticks.
    pub fn is_part(&self) -> bool {
        !(self.time.is_all() && self.only.vcpus.is_empty() && self.not.vcpus.is_empty())
    }

    /// Whether it has a vCPU.
    pub fn has_vcpu(&self, vcpu: u16) -> bool {
        let only = &self.only.vcpus;
        (only.is_empty() || only.contains(&vcpu)) && !self.not.vcpus.contains(&vcpu)
    }
}

impl fmt::Display for Selection {
    /// The selection as options of the command line, without the time.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.options();
        let options = options.map(|(option, value)| format!("{option} {}", visible(&value)));
        formatter.write_str(&options.collect::<Vec<_>>().join(" "))
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
