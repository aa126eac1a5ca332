//! Stretches of samples with interrupts off, and with preemption off. A stretch ends with the thread, too: the scheduler turns both on when it has
//! switched (`finish_task_switch`, `kernel/sched/core.c`).

use std::collections::BTreeMap;

use kvmprof_recording::{Mode, Preemption, Sample};
use serde::Serialize;

use super::running::{Names, Running};
use crate::profile::{Selected, StackFrame};

/// Different stacks of a stretch that are kept.
const MAX_STACKS: usize = 64;
/// Stretches that are kept, the longest ones; twice as many before they are sorted out.
const MAX_STRETCHES: usize = 1000;

/// What is off in a stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Switch {
    /// Interrupts: none could have reached the vCPU.
    #[default]
    Interrupts,
    /// Preemption: the scheduler could not have taken the vCPU away.
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

/// Samples of one thread on one vCPU that followed each other, all with interrupts off, or all with preemption off: what is said here of interrupts is
/// true of preemption then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StretchRow {
    /// The vCPU.
    pub vcpu: u16,
    /// The thread's pid in the guest; -1 when unknown.
    pub pid: i32,
    /// The thread's tid.
    pub tid: i32,
    /// The time of its first sample, in ns from the recording's begin.
    pub begin_ns: u64,
    /// From the first sample to the last one, in ns; 0 for a single one. If interrupts were never on between the samples, they were off
    /// for at least that long.
    pub seen_ns: u64,
    /// From the last tick before with interrupts on to the next one behind, in ns: interrupts were off for no longer.
    pub at_most_ns: u64,
    /// How many samples there were.
    pub samples: u64,
    /// Ticks in it on which the host ran something else.
    pub stolen: u64,
    /// What ran at its first sample.
    pub first: Running,
    /// The innermost function of the kernel that all of its samples have on the stack; `None` if there isn't any.
    pub common: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Stretch {
    vcpu: u16,
    pid: i32,
    tid: i32,
    first: u64,
    last: u64,
    /// The last time before it, and the first behind, with interrupts on.
    before: u64,
    behind: u64,
    samples: u64,
    stolen: u64,
    stacks: Vec<Option<u32>>,
}

impl Stretch {
    fn seen(&self) -> u64 {
        self.last.saturating_sub(self.first)
    }

    fn at_most(&self) -> u64 {
        self.behind.saturating_sub(self.before)
    }

    /// What the longest ones have most of.
    fn length(&self) -> (u64, u64, u64) {
        (self.seen(), self.samples, self.at_most())
    }

    fn add(&mut self, sample: &Sample, stack: Option<u32>) {
        self.last = sample.time;
        self.samples += 1;
        if self.stacks.len() < MAX_STACKS && !self.stacks.contains(&stack) {
            self.stacks.push(stack);
        }
    }
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
    /// When the recording began, in ns of CLOCK_MONOTONIC.
    began: u64,
    /// Between two ticks, in ns.
    period: u64,
    vcpus: BTreeMap<u16, VcpuState>,
    found: Vec<Stretch>,
    count: u64,
    samples: u64,
}

impl Stretches {
    pub fn new(switch: Switch, began: u64, period: u64) -> Self {
        Self {
            switch,
            began,
            period,
            ..Self::default()
        }
    }

    pub fn take(&mut self, selected: &Selected) {
        let ticks = selected.spread.selected();
        let began = self.began;
        let state = self.vcpus.entry(ticks.vcpu).or_insert(VcpuState {
            on: began,
            last: began,
            open: None,
        });
        let mut ended = None;
        if ticks.idle > 0 {
            // Halted vCPUs wait for interrupts. When exactly isn't known: before what comes next.
            let until = selected.spread.until();
            ended = close(state, until);
            state.on = match selected.sample {
                Some(sample) => sample.time.saturating_sub(self.period).max(state.on),
                None => until.max(state.on),
            };
        }
        if let Some(open) = &mut state.open {
            open.stolen = open.stolen.saturating_add(ticks.stolen);
        }
        if let Some(sample) = &selected.sample {
            if self.switch.is_off(sample) {
                self.samples += 1;
                if (state.open.as_ref()).is_some_and(|open| open.tid != sample.tid) {
                    ended = close(state, sample.time).or(ended);
                    state.on = state.last;
                }
                // When a vCPU was halted is known by the grid of ticks alone, which a sample with jitter may be ahead of.
                let before = if state.on < sample.time {
                    state.on
                } else {
                    sample.time.saturating_sub(self.period)
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

    /// All samples with it off, all stretches, and the `top` longest of these.
    pub fn rows(mut self, names: &Names<'_>, top: usize) -> (u64, u64, Vec<StretchRow>) {
        let period = self.period;
        let states = std::mem::take(&mut self.vcpus).into_values();
        for stretch in states.filter_map(|state| state.open) {
            let behind = stretch.last.saturating_add(period);
            self.keep(Stretch { behind, ..stretch });
        }
        self.sort();
        let rows = self.found.iter().take(top);
        let rows = rows
            .map(|stretch| row(stretch, self.began, names))
            .collect();
        (self.samples, self.count, rows)
    }
}

fn close(state: &mut VcpuState, behind: u64) -> Option<Stretch> {
    let open = state.open.take()?;
    Some(Stretch {
        behind: behind.max(open.last),
        ..open
    })
}

fn row(stretch: &Stretch, began: u64, names: &Names<'_>) -> StretchRow {
    let first = stretch.stacks.first().copied().flatten();
    StretchRow {
        vcpu: stretch.vcpu,
        pid: stretch.pid,
        tid: stretch.tid,
        begin_ns: stretch.first.saturating_sub(began),
        seen_ns: stretch.seen(),
        at_most_ns: stretch.at_most(),
        samples: stretch.samples,
        stolen: stretch.stolen,
        first: names.running(first),
        common: common(&stretch.stacks, names),
    }
}

/// The innermost function of the kernel that all `stacks` have in common, from the outermost frame on.
fn common(stacks: &[Option<u32>], names: &Names<'_>) -> Option<String> {
    let outermost_first = |stack: &Option<u32>| {
        let mut frames = names.frames(*stack);
        frames.reverse();
        frames
    };
    let mut shared: Vec<StackFrame> = outermost_first(stacks.first()?);
    for stack in stacks.iter().skip(1) {
        let frames = outermost_first(stack);
        let same = shared.iter().zip(&frames).take_while(|(one, other)| {
            one.frame.function == other.frame.function && one.frame.module == other.frame.module
        });
        let length = same.count();
        shared.truncate(length);
    }
    let innermost = shared.last().filter(|frame| frame.is_kernel)?;
    Some(innermost.frame.function.as_ref().to_owned())
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::Ticks;
    use kvmprof_recording::file::RecordingInfo;

    use super::*;
    use crate::profile::{Profile, Selection, Selector};
    use kvmprof_recording::IPL_MASKED;

    const PERIOD: u64 = 1_000_000;

    /// A tick `number` periods after the begin.
    fn sample(number: u64, tid: i32, ipl: u8) -> Ticks {
        Ticks {
            sample: Some(Sample {
                time: number * PERIOD,
                tid,
                ipl,
                ..Sample::default()
            }),
            ..Ticks::default()
        }
    }

    fn rows(ticks: &[Ticks]) -> Vec<StretchRow> {
        rows_of(Switch::Interrupts, ticks)
    }

    fn rows_of(switch: Switch, ticks: &[Ticks]) -> Vec<StretchRow> {
        let info = RecordingInfo {
            hz: 1000,
            ..RecordingInfo::default()
        };
        let mut selector = Selector::new(&info, &Selection::default());
        let mut stretches = Stretches::new(switch, 0, PERIOD);
        for ticks in ticks {
            stretches.take(&Selected {
                spread: selector.spread(ticks),
                sample: ticks.sample,
                stack: None,
            });
        }
        let profile = Profile::default();
        let (samples, count, rows) = stretches.rows(&Names::new(&profile), 10);
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
            ..sample(6, 7, IPL_MASKED)
        };
        let ticks = [
            sample(1, 7, 0),
            sample(2, 7, IPL_MASKED),
            sample(3, 7, IPL_MASKED),
            stolen,
            sample(7, 7, 0),
            sample(8, 7, IPL_MASKED),
        ];
        assert_eq!(lengths(&ticks), [(4, 6, 2), (0, 2, 0)]);
    }

    #[test]
    fn preemption_has_stretches_of_its_own() {
        let sample = |number, preemption, mode| Ticks {
            sample: Some(Sample {
                preemption,
                mode,
                ..sample(number, 7, IPL_MASKED).sample.unwrap()
            }),
            ..Ticks::default()
        };
        let ticks = [
            sample(1, Preemption::On, Mode::Kernel),
            sample(2, Preemption::Off, Mode::Kernel),
            sample(3, Preemption::Off, Mode::Interrupt),
            sample(4, Preemption::Unknown, Mode::Kernel),
            sample(5, Preemption::Off, Mode::Idle),
            sample(6, Preemption::Off, Mode::Kernel),
        ];
        let rows = rows_of(Switch::Preemption, &ticks);
        let lengths = rows
            .iter()
            .map(|row| (row.seen_ns / PERIOD, row.at_most_ns / PERIOD));
        assert_eq!(lengths.collect::<Vec<_>>(), [(1, 3), (0, 2)]);
    }

    #[test]
    fn another_thread_and_a_halt_end_a_stretch() {
        let halted = Ticks {
            idle: 3,
            ..sample(6, 8, IPL_MASKED)
        };
        let ticks = [
            sample(1, 7, IPL_MASKED),
            sample(2, 8, IPL_MASKED),
            halted,
            sample(7, 8, 0),
        ];
        assert_eq!(lengths(&ticks), [(0, 5, 0), (0, 2, 0), (0, 2, 0)]);
    }

    /// Until when a vCPU was halted is known by the grid of ticks; samples with jitter may come before.
    #[test]
    fn a_halt_behind_a_sample_bounds_no_stretch_with_it() {
        let halted = Ticks {
            idle: 5,
            ..Ticks::default()
        };
        let ticks = [
            sample(1, 7, 0),
            halted,
            sample(4, 7, IPL_MASKED),
            sample(5, 7, 0),
        ];
        let rows = rows(&ticks);
        assert_eq!((rows[0].seen_ns, rows[0].at_most_ns), (0, 2 * PERIOD));
    }
}
