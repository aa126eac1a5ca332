//! The needs of consumers of the clocks, and the setting that serves all of them.

use std::time::Duration;

use kvmprof_introspection::TaskScope;
use kvmprof_recording::StackParts;

use super::Side;
use crate::clock::{ClockSetting, TickSource};

/// The looks at the guest's tasks that a consumer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookNeeds {
    /// The time between two looks.
    pub period: Duration,
    /// The tasks that each look has at least.
    pub scope: TaskScope,
}

impl LookNeeds {
    /// The looks that serve both.
    pub fn with(self, other: Self) -> Self {
        Self {
            period: self.period.min(other.period),
            scope: self.scope.max(other.scope),
        }
    }
}

/// The present needs of a consumer of the clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockNeeds {
    /// The source of the ticks that it counts; `None` if it counts nothing.
    pub source: Option<TickSource>,
    /// Whether it counts for the guest alone. The source of the host's ticks has priority over `source` then.
    pub gives_way: bool,
    /// Whether other consumers of the host needn't take `source`. Theirs has priority then.
    pub yields: bool,
    /// Whether a guest that is held may start.
    pub starts_guest: bool,
    /// Whether samples need their process group.
    pub process_group: bool,
    /// The parts of call stacks that samples need.
    pub stacks: StackParts,
    /// Whether it needs the mappings of processes.
    pub processes: bool,
    /// Whether the vCPU's thread has work to do at each tick.
    pub exits: bool,
    /// The looks at the guest's tasks; `None` for no looks.
    pub looks: Option<LookNeeds>,
}

/// The needs of all consumers at one moment, which are collected only once.
#[derive(Clone, Debug)]
pub struct AllNeeds {
    /// The needs, by the consumers' indexes.
    pub(super) each: Vec<ClockNeeds>,
    /// The clock's maximum rate while only the guest counts, in Hz.
    pub(super) guest_max_hz: u32,
}

impl AllNeeds {
    /// The source of the ticks that all consumers count; `None` if none counts. A consumer that begins to count while others do takes their
    /// source, or can't begin. But the host's clients needn't take the guest's source.
    pub fn source(&self) -> Option<TickSource> {
        let mut all = self.each.iter();
        let yielding = || all.find(|needs| needs.yields)?.source;
        self.source_for(Side::Host).or_else(yielding).or_else(|| {
            let source = self.each.iter().find_map(|needs| needs.source)?;
            match source {
                // The rate may be the choice of a client of the host that has left.
                TickSource::Clock(hz) => TickSource::clock(hz.min(self.guest_max_hz)),
                TickSource::Event(_) => Some(source),
            }
        })
    }

    /// The source of ticks that `client` has to use.
    pub fn source_for(&self, side: Side) -> Option<TickSource> {
        match side {
            Side::Host => (self.each.iter())
                .filter(|needs| !needs.gives_way && !needs.yields)
                .find_map(|needs| needs.source),
            Side::Guest => self.source(),
        }
    }

    /// Whether a consumer other than `index` counts.
    pub fn others_count(&self, index: usize) -> bool {
        self.any_other(index, |needs| needs.source.is_some())
    }

    /// Whether a consumer other than `index` counts, so that `client` has to use its source.
    pub fn others_bind(&self, index: usize, side: Side) -> bool {
        self.any_other(index, |needs| {
            needs.source.is_some() && (side == Side::Guest || !needs.gives_way && !needs.yields)
        })
    }

    fn any_other(&self, index: usize, is_it: impl Fn(&ClockNeeds) -> bool) -> bool {
        let mut all = self.each.iter().enumerate();
        all.any(|(other, needs)| other != index && is_it(needs))
    }

    /// The looks at the guest's tasks that serve all consumers.
    pub fn looks(&self) -> Option<LookNeeds> {
        let looks = self.each.iter().filter_map(|needs| needs.looks);
        looks.reduce(LookNeeds::with)
    }

    /// Whether a guest that is held may start.
    pub fn start_guest(&self) -> bool {
        self.each.iter().any(|needs| needs.starts_guest)
    }

    /// The setting of the clocks that serves all consumers.
    pub fn setting(&self) -> ClockSetting {
        let mut setting = ClockSetting {
            source: self.source(),
            ..ClockSetting::default()
        };
        for needs in self.each.iter().filter(|needs| needs.source.is_some()) {
            setting.process_group |= needs.process_group;
            setting.stacks.kernel |= needs.stacks.kernel;
            setting.stacks.user |= needs.stacks.user;
            setting.processes |= needs.processes;
            setting.exits |= needs.exits;
        }
        setting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combined_looks_use_the_shorter_interval_and_more_tasks() {
        let needs = |ms: u64, scope: TaskScope| LookNeeds {
            period: Duration::from_millis(ms),
            scope,
        };
        let (often, of_all) = (needs(1, TaskScope::FirstThread), needs(10, TaskScope::All));
        for both in [often.with(of_all), of_all.with(often)] {
            assert_eq!(both, needs(1, TaskScope::All));
        }
        assert_eq!(often.with(often), often);
    }
}
