//! Properties of the clock for any sequence of times, delays, halts and rates, whether a host could behave
//! like that or not.

use proptest::prelude::*;

use super::manual::{ManualBackend, total};
use crate::clock::elapsed_ticks::LATE_NS;
use crate::clock::grid::aligned_start;
use crate::clock::{ElapsedTicks, Grid, VcpuClock};
use crate::signals;

const START: u64 = 1_234_567_890_123;
const RATES: [u32; 5] = [0, 7, 100, 997, 10_000];

/// A step. Times are in ns.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// KVM_RUN is interrupted after this time by the timer, the alarm or neither.
    Interrupt(u64, Option<Signal>),
    /// The vCPU is found halted.
    Halt,
    /// A halted vCPU's account is requested after this time.
    AccountHalted(u64),
    /// The thread has waited for a processor.
    RunDelay(u64),
    /// The tracer's thread has waited for a processor.
    TracerDelay(u64),
    /// The thread has run since the alarm was started.
    RunTime(u64),
    /// The host starts or stops refusing the alarm.
    RefuseAlarm(bool),
    /// After this time, the clock is restarted at one of [`RATES`].
    Restart(u64, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Kick,
    Alarm,
}

fn duration() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        3 => 0..2 * LATE_NS,
        4 => 0..5_000_000_u64,
        3 => 0..30_000_000_u64,
        1 => 0..3_000_000_000_u64,
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let signal = prop_oneof![
        4 => Just(Some(Signal::Kick)),
        3 => Just(Some(Signal::Alarm)),
        1 => Just(None),
    ];
    let step = prop_oneof![
        12 => (duration(), signal).prop_map(|(after, signal)| Step::Interrupt(after, signal)),
        4 => Just(Step::Halt),
        3 => duration().prop_map(Step::AccountHalted),
        4 => duration().prop_map(Step::RunDelay),
        2 => duration().prop_map(Step::TracerDelay),
        3 => duration().prop_map(Step::RunTime),
        1 => any::<bool>().prop_map(Step::RefuseAlarm),
        1 => (duration(), 0..RATES.len()).prop_map(|(after, rate)| Step::Restart(after, rate)),
    ];
    proptest::collection::vec(step, 1..120)
}

/// The clock, and what is known of its ticks without its arithmetic.
struct CheckedClock {
    clock: VcpuClock<ManualBackend>,
    now: u64,
    jitter: bool,
    // The expected grid: as many ticks are accounted as it has taken.
    grid: Grid,
    accounted: u64,
    // Halted vCPUs: run delay that the clock was given, and its part that has stolen ticks, in ns.
    halted_delay: u64,
    halted_stolen: u64,
}

impl CheckedClock {
    fn new(jitter: bool) -> Self {
        let mut checked = Self {
            clock: VcpuClock::with_backend(5, ManualBackend::default(), jitter),
            now: START,
            jitter,
            grid: Grid::new(0, 1, None),
            accounted: 0,
            halted_delay: 0,
            halted_stolen: 0,
        };
        checked.restart(1_000);
        checked
    }

    fn restart(&mut self, hz: u32) {
        self.clock.restart(hz, self.now);
        let seed = self.jitter.then_some(self.now ^ 5);
        self.grid = Grid::new(aligned_start(self.now, hz), hz, seed);
        assert_eq!(self.clock.hz(), hz);
        assert!(!self.clock.is_halted());
    }

    /// Every tick up to `time` is accounted once, as one of the four.
    fn check_count(&mut self, elapsed: &ElapsedTicks, time: u64) {
        assert_eq!(total(elapsed), self.grid.take(time), "{elapsed:?}");
        self.accounted += total(elapsed);
    }

    fn interrupt(&mut self, signal: Option<Signal>) {
        let number = signal.map(|signal| match signal {
            Signal::Kick => signals::kick(),
            Signal::Alarm => signals::alarm(),
        });
        let was_halted = self.clock.is_halted();
        let run_delay = self.clock.backend.run_delay;
        let delay = run_delay + self.clock.backend.tracer_delay;
        let elapsed = self.clock.on_interrupt(self.now, number);
        if self.clock.hz() == 0 || (was_halted && signal != Some(Signal::Alarm)) {
            assert_eq!(elapsed, None);
            return;
        }
        assert!(!self.clock.is_halted());
        let Some(elapsed) = elapsed else {
            assert_eq!(self.grid.take(self.now), 0);
            return;
        };
        self.check_count(&elapsed, self.now);
        if was_halted {
            assert!(elapsed.sample);
            self.check_stolen_while_halted(elapsed.stolen, run_delay);
        } else {
            self.check_stolen(&elapsed, delay);
        }
    }

    /// A running vCPU is never idle, and the host can't have stolen more than its delays.
    fn check_stolen(&self, elapsed: &ElapsedTicks, delay: u64) {
        assert_eq!(elapsed.idle, 0);
        if elapsed.sample {
            // To the nearest tick.
            let whole = (delay + self.grid.period() / 2) / self.grid.period();
            assert!(elapsed.stolen <= whole, "{elapsed:?} in {delay}");
            assert!(elapsed.lost == 0 || elapsed.stolen == whole);
        } else {
            // All are stolen, the last one by a part of a tick.
            assert_eq!(elapsed.lost, 0);
            assert!((elapsed.stolen - 1) * self.grid.period() <= delay);
            assert!(delay >= LATE_NS / 2);
        }
    }

    fn check_stolen_while_halted(&mut self, stolen: u64, run_delay: u64) {
        self.halted_delay += run_delay;
        self.halted_stolen += stolen * self.grid.period();
        assert!(self.halted_stolen <= self.halted_delay);
    }

    fn account_halted(&mut self) {
        let was_halted = self.clock.is_halted();
        let backend = &self.clock.backend;
        let (run_delay, run_time) = (backend.run_delay, backend.run_time);
        let elapsed = self.clock.account_halted(self.now);
        assert_eq!(self.clock.is_halted(), was_halted);
        assert!(!elapsed.sample && elapsed.lost == 0);
        if was_halted {
            self.check_count(&elapsed, self.now.saturating_sub(run_time));
            self.check_stolen_while_halted(elapsed.stolen, run_delay);
        } else {
            assert_eq!(elapsed, ElapsedTicks::default());
        }
    }

    fn halt(&mut self) {
        let could = self.clock.hz() != 0 && !self.clock.backend.refuses_alarm;
        let was_halted = self.clock.is_halted();
        self.clock.halt();
        assert_eq!(self.clock.is_halted(), was_halted || could);
    }

    /// The timer runs while the vCPU does, the alarm while it is halted, and nothing else.
    fn check_timers(&self) {
        let backend = &self.clock.backend;
        if self.clock.hz() == 0 {
            assert_eq!((backend.timer, backend.alarm), (None, None));
        } else if self.clock.is_halted() {
            assert_eq!(backend.timer, None);
            assert_eq!(backend.alarm, Some(self.grid.period()));
        } else {
            let timer = backend.timer.unwrap();
            if self.jitter {
                assert_eq!(timer.period, None);
                assert!(timer.first >= self.grid.next());
            } else {
                assert_eq!(timer.period, Some(self.grid.period()));
                assert_eq!(timer.first % self.grid.period(), 0);
            }
        }
    }

    /// After the clock was read, another signal will have it read again.
    fn check_next_signal(&self) {
        if self.clock.hz() != 0 && !self.clock.is_halted() {
            let timer = self.clock.backend.timer.unwrap();
            assert!(timer.next_after(self.now).is_some(), "{timer:?}");
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Interrupt(after, signal) => {
                self.now += after;
                self.interrupt(signal);
                self.check_next_signal();
            }
            Step::Halt => self.halt(),
            Step::AccountHalted(after) => {
                self.now += after;
                self.account_halted();
            }
            Step::RunDelay(ns) => self.clock.backend.run_delay += ns,
            Step::TracerDelay(ns) => self.clock.backend.tracer_delay += ns,
            Step::RunTime(ns) => self.clock.backend.run_time += ns,
            Step::RefuseAlarm(refuses) => self.clock.backend.refuses_alarm = refuses,
            Step::Restart(after, rate) => {
                self.now += after;
                self.restart(RATES[rate]);
            }
        }
        self.check_timers();
    }
}

proptest! {
    #[test]
    fn each_tick_is_accounted_once(steps in steps(), jitter in any::<bool>()) {
        let mut checked = CheckedClock::new(jitter);
        for step in steps {
            checked.step(step);
        }
    }

    /// Without jitter the number of ticks is known without a grid.
    #[test]
    fn as_many_ticks_are_accounted_as_periods_have_passed(
        steps in steps(),
        last in duration(),
    ) {
        let mut checked = CheckedClock::new(false);
        let begun = checked.now / 1_000_000;
        for step in steps {
            if !matches!(step, Step::Restart(..)) {
                checked.step(step);
            }
        }
        checked.step(Step::Interrupt(last, Some(Signal::Alarm)));
        prop_assert_eq!(checked.accounted, checked.now / 1_000_000 - begun);
    }
}
