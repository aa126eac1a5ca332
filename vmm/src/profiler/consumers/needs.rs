//! What consumers need of the clocks, and what comes of it together.

use std::time::Duration;

use kvmprof_introspection::TaskScope;
use kvmprof_recording::StackParts;

use super::Client;
use crate::clock::{ClockSetting, TickSource};

/// What looks at the guest's tasks a consumer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookNeeds {
    /// The time between two of them.
    pub period: Duration,
    /// Which tasks each has at least.
    pub scope: TaskScope,
}

impl LookNeeds {
    /// Looks that serve both.
    pub fn with(self, other: Self) -> Self {
        Self {
            period: self.period.min(other.period),
            scope: self.scope.max(other.scope),
        }
    }
}

/// What a consumer needs of the clocks at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockNeeds {
    /// What makes the ticks that it counts; `None`: it counts nothing.
    pub source: Option<TickSource>,
    /// Whether it counts for the guest alone: what makes the host's ticks goes before `source`.
    pub gives_way: bool,
    /// Whether others of the host needn't take `source`: theirs goes before it.
    pub yields: bool,
    /// Whether a guest that is held may start.
    pub starts_guest: bool,
    /// Whether samples need their process group.
    pub process_group: bool,
    /// The parts of call stacks that samples need.
    pub stacks: StackParts,
    /// Whether it needs the mappings of processes.
    pub processes: bool,
    /// Whether something is done on the vCPU's thread at each tick.
    pub exits: bool,
    /// The looks at the guest's tasks; `None`: none.
    pub looks: Option<LookNeeds>,
}

/// What all consumers need at one moment, so that each has to look only once.
#[derive(Clone, Debug)]
pub struct AllNeeds {
    /// By the consumers' indexes.
    pub(super) each: Vec<ClockNeeds>,
    /// The clock's rate while only the guest counts, in Hz at most.
    pub(super) guest_max_hz: u32,
}

impl AllNeeds {
    /// What makes the ticks that they count; `None` while none does. Whoever starts to count while others do takes
    /// theirs, or can't start; but the host's clients needn't take the guest's.
    pub fn source(&self) -> Option<TickSource> {
        let mut all = self.each.iter();
        let yielding = || all.find(|needs| needs.yields)?.source;
        self.source_for(Client::Host).or_else(yielding).or_else(|| {
            let source = self.each.iter().find_map(|needs| needs.source)?;
            match source {
                // One that was the host's choice, who has left.
                TickSource::Clock(hz) => TickSource::clock(hz.min(self.guest_max_hz)),
                TickSource::Event(_) => Some(source),
            }
        })
    }

    /// What makes the ticks to which `client` has to keep.
    pub fn source_for(&self, client: Client) -> Option<TickSource> {
        match client {
            Client::Host => (self.each.iter())
                .filter(|needs| !needs.gives_way && !needs.yields)
                .find_map(|needs| needs.source),
            Client::Guest => self.source(),
        }
    }

    /// Whether a consumer other than `index` counts.
    pub fn others_count(&self, index: usize) -> bool {
        self.any_other(index, |needs| needs.source.is_some())
    }

    /// Whether a consumer other than `index` counts to whose source `client` has to keep.
    pub fn others_bind(&self, index: usize, client: Client) -> bool {
        self.any_other(index, |needs| {
            needs.source.is_some() && (client == Client::Guest || !needs.gives_way && !needs.yields)
        })
    }

    fn any_other(&self, index: usize, is_it: impl Fn(&ClockNeeds) -> bool) -> bool {
        let mut all = self.each.iter().enumerate();
        all.any(|(other, needs)| other != index && is_it(needs))
    }

    /// The looks at the guest's tasks that serve all of them.
    pub fn looks(&self) -> Option<LookNeeds> {
        let looks = self.each.iter().filter_map(|needs| needs.looks);
        looks.reduce(LookNeeds::with)
    }

    /// Whether a guest that is held may start.
    pub fn start_guest(&self) -> bool {
        self.each.iter().any(|needs| needs.starts_guest)
    }

    /// The setting of the clocks that serves all of them.
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
    fn looks_that_serve_both_are_the_closer_ones_of_more_tasks() {
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
