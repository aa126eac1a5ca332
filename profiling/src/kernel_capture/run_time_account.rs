//! Accounts for the ticks of a clock that advances only while its thread runs.
//!
//! The grid of ticks is in wall-clock time. While the thread runs there is a sample for each period; the times of the host's scheduler
//! distinguish stolen ticks from idle ones in between. The account is made from time to time, in whole periods: up to [`SLACK`] ticks stay
//! open until the next time.

use crate::clock::{ElapsedTicks, ThreadTimes};

/// Maximum number of ticks that stay open because the time that explains them isn't a whole period yet.
const SLACK: i64 = 2;
/// Maximum delay of the scheduler's time of a running thread, in ns: more than a tick of a host with 100 Hz.
const LAG: i64 = 20_000_000;

/// The account of one vCPU's thread.
#[derive(Clone, Copy, Debug)]
pub struct RunTimeAccount {
    /// The grid's period in ns.
    period: i64,
    at: u64,
    times: ThreadTimes,
    /// Number of ticks of the grid that aren't explained yet; below 0, the number of samples that are ahead of the grid.
    open: i64,
    /// Number of samples that found no room in the ring, and haven't been accounted for.
    lost: i64,
    /// Time in ns that the thread waited for a processor, or slept, and that hasn't explained a tick.
    delay: i64,
    asleep: i64,
    /// Time in ns that the thread was held for looks at its vCPU so far.
    held: u64,
    /// Time in ns that the thread was held while it would have run or slept, and that hasn't explained a tick.
    unknown: i64,
}

impl RunTimeAccount {
    /// An account that begins at `now` (ns), when the thread's times are `times`. The grid's period is in ns, and not 0.
    pub fn new(period: u64, now: u64, times: ThreadTimes) -> Self {
        Self {
            period: signed(period).max(1),
            at: now,
            times,
            open: 0,
            lost: 0,
            delay: 0,
            asleep: 0,
            held: 0,
            unknown: 0,
        }
    }

    /// Returns what became of the ticks without a sample. Since the last call, `ticks` ticks of the grid have passed, `sampled` samples
    /// have been read, and `lost` samples found no room. The thread's times at `now` are `times`, and it was `held` for looks for this time in all, in ns: nobody knows
    /// what the vCPU would have done meanwhile, so that those ticks are lost.
    pub fn explain(
        &mut self,
        now: u64,
        times: ThreadTimes,
        held: u64,
        ticks: u64,
        sampled: u64,
        lost: u64,
    ) -> ElapsedTicks {
        let grown = |new: u64, old: u64| signed(new.saturating_sub(old));
        let delay = grown(times.delay, self.times.delay);
        let run = grown(times.run, self.times.run);
        self.delay += delay;
        let asleep = grown(now, self.at) - run - delay;
        // A look is counted at its end: it may have begun before.
        let unknown = signed(held.saturating_sub(self.held)).min(asleep).max(0);
        self.unknown += unknown;
        self.asleep += asleep - unknown;
        (self.at, self.times, self.held) = (now, times, held);
        self.open += signed(ticks) - signed(sampled);
        self.lost += signed(lost);
        let lost = self.lost.min(self.open).max(0);
        self.lost -= lost;
        self.open -= lost;
        let stolen = take(&mut self.open, &mut self.delay, self.period);
        let unknown = take(&mut self.open, &mut self.unknown, self.period);
        let idle = take(&mut self.open, &mut self.asleep, self.period);
        // On a busy host, interrupts come late, and several ticks make one sample.
        let unexplained = (self.open - SLACK).max(0);
        self.open -= unexplained;
        self.forget();
        ElapsedTicks {
            idle: unsigned(idle),
            stolen: unsigned(stolen),
            lost: unsigned(lost + unknown + unexplained),
            sample: false,
        }
    }

    /// Limits what remains, because time in which there were samples must not explain other ticks later.
    fn forget(&mut self) {
        let most = LAG + SLACK * self.period;
        self.delay = self.delay.min(most);
        self.asleep = self.asleep.clamp(-most, most);
        self.unknown = self.unknown.min(most);
        self.lost = self.lost.min(SLACK);
    }
}

/// Takes as many of the open ticks as there are periods in `time`.
fn take(open: &mut i64, time: &mut i64, period: i64) -> i64 {
    let ticks = (*time / period).min(*open).max(0);
    *open -= ticks;
    *time -= ticks * period;
    ticks
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: u64 = 1_000_000;

    /// Times in ns that the thread ran, waited and slept, and the numbers of its samples and of lost ones.
    struct TestSpan {
        run: u64,
        delay: u64,
        asleep: u64,
        sampled: u64,
        lost: u64,
    }

    fn account(spans: &[TestSpan]) -> ([u64; 3], u64) {
        let mut account = RunTimeAccount::new(PERIOD, 0, ThreadTimes::default());
        let (mut now, mut ticks, mut times) = (0, 0, ThreadTimes::default());
        let mut sums = [0; 3];
        for span in spans {
            now += span.run + span.delay + span.asleep;
            times.run += span.run;
            times.delay += span.delay;
            let passed = now / PERIOD - ticks;
            ticks += passed;
            let elapsed = account.explain(now, times, 0, passed, span.sampled, span.lost);
            sums[0] += elapsed.idle;
            sums[1] += elapsed.stolen;
            sums[2] += elapsed.lost;
        }
        (sums, ticks)
    }

    fn span(run: u64, delay: u64, asleep: u64, sampled: u64, lost: u64) -> TestSpan {
        let [run, delay, asleep] = [run, delay, asleep].map(|ticks| ticks * PERIOD);
        TestSpan {
            run,
            delay,
            asleep,
            sampled,
            lost,
        }
    }

    #[test]
    fn ticks_are_attributed_by_the_schedulers_times() {
        assert_eq!(account(&[span(10, 0, 0, 10, 0)]).0, [0, 0, 0]);
        assert_eq!(account(&[span(0, 0, 10, 0, 0)]).0, [10, 0, 0]);
        assert_eq!(account(&[span(4, 3, 3, 4, 0)]).0, [3, 3, 0]);
        assert_eq!(account(&[span(10, 0, 0, 5, 5)]).0, [0, 0, 5]);
        // Ticks without an explanation are lost, except up to the slack.
        assert_eq!(account(&[span(10, 0, 0, 0, 0)]).0, [0, 0, 8]);
    }

    /// Nobody knows what a vCPU would have done while kvmprof held it.
    #[test]
    fn ticks_while_the_thread_was_held_are_lost() {
        let explained = |held: u64, run: u64, asleep: u64| {
            let mut account = RunTimeAccount::new(PERIOD, 0, ThreadTimes::default());
            let times = ThreadTimes {
                run: run * PERIOD,
                delay: 0,
            };
            let now = (run + asleep) * PERIOD;
            let elapsed = account.explain(now, times, held * PERIOD, run + asleep, run, 0);
            [elapsed.idle, elapsed.lost]
        };
        assert_eq!(explained(4, 6, 4), [0, 4]);
        assert_eq!(explained(4, 2, 8), [4, 4]);
        // A look is counted at its end: it may have begun before, and it doesn't explain time in which the thread ran.
        assert_eq!(explained(9, 6, 4), [0, 4]);
        assert_eq!(explained(4, 10, 0), [0, 0]);
    }

    #[test]
    fn many_short_waits_add_up() {
        let spans = [(); 100].map(|()| TestSpan {
            delay: PERIOD / 4,
            asleep: PERIOD / 4,
            ..span(0, 0, 0, 0, 0)
        });
        let ([idle, stolen, lost], ticks) = account(&spans);
        assert_eq!((ticks, lost), (50, 0));
        let half = 24..=25;
        assert!(
            half.contains(&idle) && half.contains(&stolen),
            "{idle} {stolen}"
        );
    }

    #[test]
    fn a_late_run_time_is_not_counted_as_sleep_twice() {
        // The scheduler reports 4 ms of run time after their samples.
        let mut account = RunTimeAccount::new(PERIOD, 0, ThreadTimes::default());
        let times = ThreadTimes::default();
        let first = account.explain(4 * PERIOD, times, 0, 4, 4, 0);
        assert_eq!(first, ElapsedTicks::default());
        let later = ThreadTimes {
            run: 4 * PERIOD,
            delay: 0,
        };
        let second = account.explain(8 * PERIOD, later, 0, 4, 0, 0);
        assert_eq!(second.idle, 4);
    }

    proptest! {
        /// For any times, no tick is counted twice, and all but a few are counted.
        #[test]
        fn every_tick_is_counted_once(
            spans in prop::collection::vec((0_u64..50, 0_u64..50, 0_u64..50, 0_u64..20), 1..50),
        ) {
            let spans: Vec<TestSpan> = spans
                .into_iter()
                .map(|(run, delay, asleep, lost)| span(run, delay, asleep, run, lost))
                .collect();
            let sampled: u64 = spans.iter().map(|span| span.sampled).sum();
            let (sums, ticks) = account(&spans);
            let counted = sampled + sums.iter().sum::<u64>();
            prop_assert!(counted <= ticks && ticks - counted <= 2, "{counted} {ticks} {sums:?}");
        }
    }
}
