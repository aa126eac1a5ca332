//! Stretches of samples with interrupts off, and with preemption off. A stretch also ends when another thread runs: the scheduler turns both on
//! after a switch (`finish_task_switch`, `kernel/sched/core.c`).

use std::collections::BTreeMap;

use kvmprof_recording::{Mode, Preemption, Sample};

use super::running::Names;
use super::stretch::{Stretch, StretchRow};
use crate::budget::{OutputBudget, TooMuch};
use crate::profile::Selected;

/// Maximum number of stretches that are kept, the longest ones. Up to twice as many are kept until the shorter ones are removed.
const MAX_STRETCHES: usize = 1000;

/// What is off in a stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Switch {
    /// Interrupts: none could reach the vCPU.
    #[default]
    Interrupts,
    /// Preemption: the scheduler could not switch to another thread.
    Preemption,
}

impl Switch {
    /// Whether it was off at `sample`. A halted vCPU waits for interrupts.
    fn is_off(self, sample: &Sample) -> bool {
        match self {
            Self::Interrupts => sample.has_interrupts_off(),
            Self::Preemption => sample.preemption == Preemption::Off && sample.mode != Mode::Idle,
        }
    }
}

/// The times of a recording that the lengths of stretches depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// The start of the recording, in ns of CLOCK_MONOTONIC.
    pub began: u64,
    /// The start of the selected time, in ns of CLOCK_MONOTONIC. Earlier samples don't count.
    pub selected: u64,
    /// The time between two ticks, in ns.
    pub period: u64,
}

/// A vCPU's state.
#[derive(Debug)]
struct VcpuState {
    /// The last time with interrupts on.
    on: u64,
    /// The time of the last sample.
    last: u64,
    open: Option<Stretch>,
}

/// Finds stretches.
#[derive(Debug, Default)]
pub(super) struct Stretches {
    switch: Switch,
    times: Times,
    vcpus: BTreeMap<u16, VcpuState>,
    found: Vec<Stretch>,
    count: u64,
    samples: u64,
}

impl Stretches {
    pub fn new(switch: Switch, times: Times) -> Self {
        Self {
            switch,
            times,
            ..Self::default()
        }
    }

    pub fn take(&mut self, selected: &Selected) {
        let ticks = selected.spread.selected();
        let Times {
            selected: begin,
            period,
            ..
        } = self.times;
        let state = self.vcpus.entry(ticks.vcpu).or_insert(VcpuState {
            on: begin,
            last: begin,
            open: None,
        });
        let mut ended = None;
        let until = selected.spread.until();
        if ticks.idle > 0 {
            // Halted vCPUs wait for interrupts.
            ended = close(state, until);
        }
        if ticks.idle > 0 || ticks.ungathered > 0 {
            // Their exact times aren't known: they come before the next sample, and stolen and lost ticks may come after them.
            let behind = ticks.stolen.saturating_add(ticks.lost);
            let behind = behind.saturating_add(u64::from(selected.sample.is_some()));
            let since = until.saturating_sub(behind.saturating_mul(period));
            state.on = since.max(state.on);
        }
        if let Some(open) = &mut state.open {
            // Ticks that weren't recorded belong to another thread. Stolen and lost ticks may come before them, in whatever order the recording has both.
            open.is_over |= ticks.ungathered > 0;
            if open.is_over {
                open.behind = open.behind.max(until);
            } else {
                open.stolen = open.stolen.saturating_add(ticks.stolen);
            }
        }
        if let Some(sample) = &selected.sample {
            if state.open.as_ref().is_some_and(|open| open.is_over) {
                ended = close(state, sample.time);
            }
            if self.switch.is_off(sample) {
                self.samples += 1;
                if (state.open.as_ref()).is_some_and(|open| open.tid != sample.tid) {
                    ended = close(state, sample.time).or(ended);
                    state.on = state.last;
                }
                // The time of a halt is known by the grid of ticks alone. A sample with jitter may be earlier.
                let before = if state.on < sample.time {
                    state.on
                } else {
                    sample.time.saturating_sub(period)
                };
                let open = state.open.get_or_insert_with(|| Stretch {
                    vcpu: sample.vcpu,
                    pid: sample.pid,
                    tid: sample.tid,
                    first: sample.time,
                    before,
                    ..Stretch::default()
                });
                open.add(sample, selected.stack);
            } else {
                ended = close(state, sample.time).or(ended);
                state.on = sample.time;
            }
            state.last = sample.time;
        }
        if let Some(stretch) = ended {
            self.keep(stretch);
        }
    }

    fn keep(&mut self, stretch: Stretch) {
        self.count += 1;
        self.found.push(stretch);
        if self.found.len() >= 2 * MAX_STRETCHES {
            self.sort();
            self.found.truncate(MAX_STRETCHES);
        }
    }

    fn sort(&mut self) {
        self.found
            .sort_by_key(|stretch| std::cmp::Reverse(stretch.length()));
    }

    /// The number of samples with it off, the number of stretches, and the rows of the `top` longest stretches.
    ///
    /// # Errors
    /// They don't fit into `budget`.
    pub fn rows(
        mut self,
        names: &Names<'_>,
        top: usize,
        budget: &OutputBudget,
    ) -> Result<(u64, u64, Vec<StretchRow>), TooMuch> {
        let period = self.times.period;
        let states = std::mem::take(&mut self.vcpus).into_values();
        for stretch in states.filter_map(|state| state.open) {
            let behind = stretch.last.saturating_add(period).max(stretch.behind);
            self.keep(Stretch { behind, ..stretch });
        }
        self.sort();
        let rows = self.found.iter().take(top);
        let rows = rows.map(|stretch| stretch.row(self.times.began, names, budget));
        Ok((self.samples, self.count, rows.collect::<Result<_, _>>()?))
    }
}

fn close(state: &mut VcpuState, behind: u64) -> Option<Stretch> {
    let open = state.open.take()?;
    Some(Stretch {
        behind: behind.max(open.last),
        ..open
    })
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::Ticks;
    use kvmprof_recording::file::RecordingInfo;

    use super::*;
    use crate::profile::{Profile, Selection, Selector};
    use kvmprof_recording::IPL_MASKED;

    const PERIOD: u64 = 1_000_000;

    /// A tick `number` periods after the start.
    fn sample(number: u64, tid: i32, ipl: u8) -> Ticks {
        let sample = Sample {
            time: number * PERIOD,
            tid,
            ipl,
            ..Sample::default()
        };
        sample.into()
    }

    /// A tick of thread 7 with interrupts on, and with interrupts off.
    fn on(number: u64) -> Ticks {
        sample(number, 7, 0)
    }

    fn off(number: u64) -> Ticks {
        sample(number, 7, IPL_MASKED)
    }

    fn rows(ticks: &[Ticks]) -> Vec<StretchRow> {
        rows_of(Switch::Interrupts, ticks)
    }

    fn rows_of(switch: Switch, ticks: &[Ticks]) -> Vec<StretchRow> {
        selected_rows(switch, &Selection::default(), ticks)
    }

    fn selected_rows(switch: Switch, selection: &Selection, ticks: &[Ticks]) -> Vec<StretchRow> {
        let info = RecordingInfo {
            hz: 1000,
            ..RecordingInfo::default()
        };
        let mut selector = Selector::new(&info, selection);
        let times = Times {
            began: 0,
            selected: selection.time.begin_in(0),
            period: PERIOD,
        };
        let mut stretches = Stretches::new(switch, times);
        for ticks in ticks {
            let spread = selector.spread(ticks);
            stretches.take(&Selected {
                spread,
                sample: spread.selected().sample,
                stack: None,
                thread: None,
            });
        }
        let profile = Profile::default();
        let budget = OutputBudget::new(u64::MAX);
        let (samples, count, rows) = stretches.rows(&Names::new(&profile), 10, &budget).unwrap();
        assert_eq!(samples, rows.iter().map(|row| row.samples).sum::<u64>());
        assert_eq!(count, rows.len() as u64);
        rows
    }

    fn lengths(ticks: &[Ticks]) -> Vec<(u64, u64, u64)> {
        let length = |row: &StretchRow| (row.seen_ns / PERIOD, row.at_most_ns / PERIOD, row.stolen);
        rows(ticks).iter().map(length).collect()
    }

    #[test]
    fn a_stretch_lasts_until_interrupts_are_on() {
        let stolen = Ticks {
            stolen: 2,
            ..off(6)
        };
        let ticks = [on(1), off(2), off(3), stolen, on(7), off(8)];
        assert_eq!(lengths(&ticks), [(4, 6, 2), (0, 2, 0)]);
    }

    #[test]
    fn preemption_has_its_own_stretches() {
        let ticks = [
            (1, Preemption::On, Mode::Kernel),
            (2, Preemption::Off, Mode::Kernel),
            (3, Preemption::Off, Mode::Interrupt),
            (4, Preemption::Unknown, Mode::Kernel),
            (5, Preemption::Off, Mode::Idle),
            (6, Preemption::Off, Mode::Kernel),
        ];
        let ticks = ticks.map(|(number, preemption, mode)| {
            let sample = Sample {
                preemption,
                mode,
                ..off(number).sample.unwrap()
            };
            sample.into()
        });
        let rows = rows_of(Switch::Preemption, &ticks);
        let length = |row: &StretchRow| (row.seen_ns / PERIOD, row.at_most_ns / PERIOD);
        let lengths = rows.iter().map(length);
        assert_eq!(lengths.collect::<Vec<_>>(), [(1, 3), (0, 2)]);
    }

    #[test]
    fn another_thread_and_a_halt_end_a_stretch() {
        let halted = Ticks {
            idle: 3,
            ..sample(6, 8, IPL_MASKED)
        };
        let ticks = [off(1), sample(2, 8, IPL_MASKED), halted, sample(7, 8, 0)];
        assert_eq!(lengths(&ticks), [(0, 5, 0), (0, 2, 0), (0, 2, 0)]);
    }

    /// Unrecorded ticks between two stretches of a thread are those of others, with which the scheduler turned interrupts on.
    #[test]
    fn ticks_that_were_not_recorded_end_a_stretch() {
        let behind_others = |stolen| Ticks {
            ungathered: 4 - stolen,
            stolen,
            ..off(8)
        };
        let ticks = |stolen| [on(1), off(2), off(3), behind_others(stolen), off(9), on(10)];
        assert_eq!(lengths(&ticks(0)), [(1, 7, 0), (1, 3, 0)]);
        // The others may have run first: interrupts were off during all stolen ticks.
        assert_eq!(lengths(&ticks(3)), [(1, 7, 0), (1, 6, 0)]);
        // Recordings have ticks without a sample separately.
        let apart = |ungathered, stolen| Ticks {
            ungathered,
            stolen,
            ..Ticks::default()
        };
        let [on, first, second, _, fourth, end] = ticks(0);
        let third = off(8);
        let (one, three) = (apart(1, 0), apart(0, 3));
        let ticks = [on, first, second, one, three, third, fourth, end];
        assert_eq!(lengths(&ticks), [(1, 7, 0), (1, 6, 0)]);
    }

    /// Samples before the selected time aren't read, so nothing is known of them.
    #[test]
    fn a_stretch_starts_in_the_selected_time() {
        let selection = Selection {
            time: "3.6:".parse().unwrap(),
            ..Selection::default()
        };
        let ticks = [on(10), off(3590), off(3603), off(3604), on(3605)];
        let rows = selected_rows(Switch::Interrupts, &selection, &ticks);
        let times = |row: &StretchRow| [row.begin_ns, row.seen_ns, row.at_most_ns];
        let times: Vec<_> = rows.iter().map(times).collect();
        assert_eq!(times, [[3603, 1, 5].map(|number| number * PERIOD)]);
    }

    /// The end of a halt is known by the grid of ticks; samples with jitter may precede it.
    #[test]
    fn a_halt_behind_a_sample_bounds_no_stretch_with_it() {
        let halted = Ticks {
            idle: 5,
            ..Ticks::default()
        };
        let ticks = [on(1), halted, off(4), on(5)];
        let rows = rows(&ticks);
        assert_eq!((rows[0].seen_ns, rows[0].at_most_ns), (0, 2 * PERIOD));
    }
}
