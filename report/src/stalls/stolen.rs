//! Ticks at which the host ran something else than the vCPU.

use std::collections::{BTreeMap, HashMap};

use kvmprof_recording::Mode;
use serde::Serialize;

use super::running::{COPIES, Names, Running, SharedRunning};
use crate::budget::{OutputBudget, TooMuch};
use crate::profile::Selected;

/// Maximum number of spans of all vCPUs that are kept for the comparison with waits.
const MAX_SPANS: usize = 1 << 20;

/// Stolen ticks of vCPUs that ran the same code at their last samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StolenRow {
    /// The number of ticks.
    pub ticks: u64,
    /// What the vCPU ran at its last sample before.
    pub last_seen: Running,
}

/// What a vCPU did at its last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum LastSeen {
    /// Unknown: there is no sample yet, its stack is beyond the limits, or ticks since then weren't recorded.
    #[default]
    Unknown,
    /// It was halted.
    Halted,
    /// It ran with the stack of this number.
    Stack(u32),
}

impl LastSeen {
    pub fn running<'a>(self, names: &Names<'a>) -> SharedRunning<'a> {
        match self {
            Self::Unknown => SharedRunning::unknown(),
            Self::Halted => SharedRunning::halted(),
            Self::Stack(stack) => names.running(Some(stack)),
        }
    }
}

/// A time during which ticks were stolen, in ns of CLOCK_MONOTONIC: from the vCPU's last tick before them to its next one.
#[derive(Clone, Copy, Debug)]
struct StolenTime {
    begin: u64,
    end: u64,
    last_seen: LastSeen,
}

#[derive(Debug, Default)]
struct VcpuState {
    /// The time of its last tick.
    last: u64,
    last_seen: LastSeen,
    /// Whether the last span ends at the next sample. A recording can have stolen ticks without the sample that follows them.
    is_open: bool,
    /// The spans in the order of time.
    spans: Vec<StolenTime>,
}

impl VcpuState {
    /// What the vCPU did at its last sample, if its ticks around `time` were stolen.
    fn at(&self, time: u64) -> Option<LastSeen> {
        let after = self.spans.partition_point(|span| span.begin < time);
        let span = self.spans.get(after.checked_sub(1)?)?;
        (time < span.end).then_some(span.last_seen)
    }
}

/// Finds the stolen ticks.
#[derive(Debug, Default)]
pub(super) struct StolenTicks {
    /// The start of the selected time, in ns of CLOCK_MONOTONIC.
    began: u64,
    vcpus: BTreeMap<u16, VcpuState>,
    spans: usize,
    ticks: HashMap<LastSeen, u64>,
}

impl StolenTicks {
    pub fn new(began: u64) -> Self {
        Self {
            began,
            ..Self::default()
        }
    }

    pub fn take(&mut self, selected: &Selected) {
        let ticks = selected.spread.selected();
        let until = selected.spread.until();
        let began = self.began;
        let state = self.vcpus.entry(ticks.vcpu).or_insert_with(|| VcpuState {
            last: began,
            ..VcpuState::default()
        });
        if ticks.idle > 0 {
            state.last_seen = LastSeen::Halted;
        }
        if ticks.ungathered > 0 {
            // Processes ran that weren't recorded.
            state.last_seen = LastSeen::Unknown;
        }
        if ticks.stolen > 0 {
            let sum = self.ticks.entry(state.last_seen).or_default();
            *sum = sum.saturating_add(ticks.stolen);
            if self.spans < MAX_SPANS {
                self.spans += 1;
                state.is_open = true;
                state.spans.push(StolenTime {
                    begin: state.last,
                    end: until,
                    last_seen: state.last_seen,
                });
            }
        }
        state.last = until.max(state.last);
        if let Some(sample) = &selected.sample {
            if let Some(span) = state.spans.last_mut().filter(|_| state.is_open) {
                span.end = span.end.max(sample.time);
            }
            state.is_open = false;
            state.last_seen = match selected.stack {
                _ if sample.mode == Mode::Idle => LastSeen::Halted,
                Some(stack) => LastSeen::Stack(stack),
                None => LastSeen::Unknown,
            };
        }
    }

    /// What another vCPU than `vcpu` did last, if the host didn't run it at `time`. A halted one doesn't count: it holds no lock and answers at once.
    pub fn at(&self, vcpu: u16, time: u64) -> Option<LastSeen> {
        let others = self.vcpus.iter().filter(|(other, _)| **other != vcpu);
        let mut seen = others.filter_map(|(_, state)| state.at(time));
        seen.find(|last_seen| *last_seen != LastSeen::Halted)
    }

    /// Whether the host ran something else than vCPU `vcpu` at `time`.
    pub fn is_stolen(&self, vcpu: u16, time: u64) -> bool {
        let state = self.vcpus.get(&vcpu);
        state.and_then(|state| state.at(time)).is_some()
    }

    /// The `top` rows with the most ticks.
    ///
    /// # Errors
    /// They don't fit into `budget`.
    pub fn rows(
        &self,
        names: &Names<'_>,
        top: usize,
        budget: &OutputBudget,
    ) -> Result<Vec<StolenRow>, TooMuch> {
        let mut sums: HashMap<SharedRunning<'_>, u64> = HashMap::new();
        for (last_seen, ticks) in &self.ticks {
            let sum = sums.entry(last_seen.running(names)).or_default();
            *sum = sum.saturating_add(*ticks);
        }
        let mut sums: Vec<(SharedRunning<'_>, u64)> = sums.into_iter().collect();
        sums.sort_by(|(one, ticks), (other, others)| {
            others.cmp(ticks).then_with(|| one.cmp(other))
        });
        let rows = sums.iter().take(top).map(|(last_seen, ticks)| {
            budget.take_row(last_seen.names(), COPIES)?;
            Ok(StolenRow {
                ticks: *ticks,
                last_seen: last_seen.to_row(),
            })
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::file::RecordingInfo;
    use kvmprof_recording::{Sample, Ticks};

    use super::*;
    use crate::profile::{Selection, Selector};

    /// The ticks of stolen ones by what was last seen: a sample with stack 5, then ticks of other processes that weren't recorded, then stolen ones.
    fn last_seen(ungathered: u64) -> Vec<(LastSeen, u64)> {
        let mut selector = Selector::new(&RecordingInfo::default(), &Selection::default());
        let mut stolen = StolenTicks::new(0);
        let tick = |time| {
            Ticks::from(Sample {
                time,
                ..Sample::default()
            })
        };
        let later = Ticks {
            ungathered,
            stolen: 3,
            ..tick(9_000_000)
        };
        for ticks in [tick(1_000_000), later] {
            stolen.take(&Selected {
                spread: selector.spread(&ticks),
                sample: ticks.sample,
                stack: Some(5),
                thread: None,
            });
        }
        stolen.ticks.into_iter().collect()
    }

    #[test]
    fn after_unrecorded_ticks_the_last_task_is_unknown() {
        assert_eq!(last_seen(0), [(LastSeen::Stack(5), 3)]);
        assert_eq!(last_seen(1), [(LastSeen::Unknown, 3)]);
    }
}
