//! A simulated host on which a vCPU runs, halts and waits for a processor as a test says: the clock
//! classifies each tick.

use proptest::prelude::*;

use super::manual::{HZ, MS, ManualBackend, US};
use crate::clock::VcpuClock;
use crate::clock::elapsed_ticks::LATE_NS;
use crate::signals;

/// The activity of the vCPU's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// It executes the guest.
    Run,
    /// It sleeps in KVM_RUN, because the guest has halted.
    Halt,
    /// It waits for a processor.
    Wait,
    /// It takes a sample.
    Sample,
}
use Activity::{Halt, Run, Sample, Wait};

/// Numbers of ticks, or times in ns, by activity.
type ByActivity = [u64; 4];

/// The thread's time from 0 on, with a clock of [`HZ`].
struct Host {
    clock: VcpuClock<ManualBackend>,
    now: u64,
    // The cost of a sample, in ns.
    cost: u64,
    // The time up to which the timer's signals have been delivered.
    delivered: u64,
    time: ByActivity,
    ticks: ByActivity,
    // The vCPU's activity.
    samples: ByActivity,
    idle: u64,
    stolen: u64,
    lost: u64,
    // How often no tick woke the halted vCPU from then on, and for how long in total, in ns.
    halts: u64,
    halted: u64,
}

impl Host {
    fn new(cost: u64) -> Self {
        let mut clock = VcpuClock::with_backend(0, ManualBackend::default(), false);
        clock.restart(HZ, 0);
        Self {
            clock,
            now: 0,
            cost,
            delivered: 0,
            time: [0; 4],
            ticks: [0; 4],
            samples: [0; 4],
            idle: 0,
            stolen: 0,
            lost: 0,
            halts: 0,
            halted: 0,
        }
    }

    /// After all phases, each an activity of the thread for this many ns.
    fn after(phases: &[(Activity, u64)], cost: u64) -> Self {
        let mut host = Self::new(cost);
        for &(activity, time) in phases {
            match activity {
                Run | Halt => host.enter_kvm_run(activity, host.now + time),
                Wait | Sample => host.pass(activity, host.now + time),
            }
        }
        host.finish();
        host
    }

    /// Lets time pass up to `end`, in which nothing interrupts the thread.
    fn pass(&mut self, activity: Activity, end: u64) {
        let time = end - self.now;
        self.time[activity as usize] += time;
        self.ticks[activity as usize] += end / MS - self.now / MS;
        let backend = &mut self.clock.backend;
        match activity {
            Run | Sample => backend.run_time += time,
            Wait => backend.run_delay += time,
            Halt => {}
        }
        if activity == Halt && self.clock.is_halted() {
            self.halted += time;
        }
        self.now = end;
    }

    /// The thread is in KVM_RUN until `end`, where the guest runs or is halted, except for the time that
    /// the clock takes.
    fn enter_kvm_run(&mut self, activity: Activity, end: u64) {
        while self.now < end {
            let signal = self.next_signal(activity);
            let (at, signal) = signal.unwrap_or((u64::MAX, 0));
            self.pass(activity, at.clamp(self.now, end));
            if at <= self.now {
                self.interrupt(signal, activity);
            }
        }
    }

    /// The time and kind of the next signal; in the past if it is pending.
    fn next_signal(&self, activity: Activity) -> Option<(u64, i32)> {
        let backend = &self.clock.backend;
        if self.clock.is_halted() {
            let left = backend.alarm?.saturating_sub(backend.run_time);
            return (activity == Run).then_some((self.now + left, signals::alarm()));
        }
        let at = backend.timer?.next_after(self.delivered)?;
        Some((at, signals::kick()))
    }

    fn interrupt(&mut self, signal: i32, activity: Activity) {
        self.delivered = self.now;
        let elapsed = self.clock.on_interrupt(self.now, Some(signal));
        assert!(!self.clock.is_halted());
        let Some(elapsed) = elapsed else {
            return;
        };
        self.idle += elapsed.idle;
        self.stolen += elapsed.stolen;
        self.lost += elapsed.lost;
        if !elapsed.sample {
            return;
        }
        self.samples[activity as usize] += 1;
        self.pass(Sample, self.now + self.cost);
        if activity == Halt {
            self.clock.halt();
            self.halts += 1;
        }
    }

    /// Has all ticks accounted; each tick that was due must be one of the four.
    fn finish(&mut self) {
        self.cost = 0;
        let mut end = self.now;
        if self.clock.is_halted() {
            let elapsed = self.clock.account_halted(self.now);
            self.idle += elapsed.idle;
            self.stolen += elapsed.stolen;
            end -= self.clock.backend.run_time;
        } else {
            self.interrupt(signals::kick(), Run);
        }
        let sampled: u64 = self.samples.iter().sum();
        let all = sampled + self.idle + self.stolen + self.lost;
        assert_eq!(all, end / MS);
    }
}

fn phases(
    activities: &'static [Activity],
    longest: u64,
) -> impl Strategy<Value = Vec<(Activity, u64)>> {
    let time = prop_oneof![0..300 * US, 0..3 * MS, 0..longest];
    let phase = (prop::sample::select(activities), time);
    proptest::collection::vec(phase, 1..300)
}

proptest! {
    /// A guest alone on its processor: no tick is missed, and its halts are idle to the tick.
    #[test]
    fn ticks_of_a_quiet_host_are_sampled_or_idle(phases in phases(&[Run, Halt], 50 * MS)) {
        let host = Host::after(&phases, 0);
        prop_assert_eq!((host.stolen, host.lost), (0, 0));
        // Each halt begins with a sample, and a part of a tick may be left at its end.
        prop_assert!(host.idle * MS <= host.halted);
        prop_assert!(host.halted < (host.idle + host.halts) * MS + 1);
    }

    /// Without a halt, missed ticks are stolen: each tick on which it waited except those that are
    /// noticed in time.
    #[test]
    fn ticks_of_a_busy_host_are_sampled_or_stolen(phases in phases(&[Run, Wait], 50 * MS)) {
        let host = Host::after(&phases, 0);
        prop_assert_eq!((host.idle, host.lost), (0, 0));
        prop_assert!(host.stolen <= host.ticks[Wait as usize]);
        let in_time = host.ticks[Wait as usize] - host.stolen;
        prop_assert_eq!(host.samples[Run as usize], host.ticks[Run as usize] + in_time);
        let waits = phases.chunk_by(|(a, _), (b, _)| a == b).filter(|phase| phase[0].0 == Wait);
        let short = |wait: &&[(Activity, u64)]| wait.iter().map(|(_, time)| time).sum::<u64>() < MS + LATE_NS;
        prop_assert!(in_time <= waits.filter(short).count() as u64);
    }

    /// A guest alone on its processor, but samples take time. It continues nevertheless.
    #[test]
    fn ticks_that_fall_into_long_samples_are_lost(cost in 0..20 * MS) {
        let host = Host::after(&[(Run, 5_000 * MS)], cost);
        prop_assert_eq!((host.idle, host.stolen), (0, 0));
        if cost < MS {
            prop_assert_eq!(host.lost, 0);
        }
        // At 3 periods it is a seventh.
        if cost >= 3 * MS {
            prop_assert!(host.time[Run as usize] >= host.now / 8, "{:?}", host.time);
        }
    }

    /// All together: no time counts as idle or stolen that was neither, except for a tick at each
    /// boundary.
    #[test]
    fn idle_and_stolen_ticks_do_not_exceed_the_truth(
        phases in phases(&[Run, Halt, Wait], 50 * MS),
        cost in 0..3 * MS,
    ) {
        let host = Host::after(&phases, cost);
        let waits = phases.iter().filter(|(activity, _)| *activity == Wait).count() as u64;
        prop_assert!(host.stolen * MS <= host.time[Wait as usize] + waits * MS);
        prop_assert!(host.idle * MS <= host.halted + host.time[Wait as usize] + host.halts * (MS + cost));
    }
}
