//! Classifies ticks: sampled, idle, stolen or lost.

use super::ClockBackend;

/// Numbers of ticks that have passed, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElapsedTicks {
    /// Ticks on which the vCPU was halted.
    pub idle: u64,
    /// Ticks on which the host did not run the thread.
    pub stolen: u64,
    /// Ticks that were missed for another reason.
    pub lost: u64,
    /// Whether there is one more tick after those, to be sampled now.
    pub sample: bool,
}

impl ElapsedTicks {
    /// How many ticks took no sample.
    pub fn without_sample(&self) -> u64 {
        self.idle + self.stolen + self.lost
    }
}

/// A tick that is seen later than this, in ns, may have come while the host did not run the thread. A
/// sample would then show where the vCPU was preempted, not what it did on the tick.
pub(super) const LATE_NS: u64 = 100_000;
/// After this many ticks in time the run delay is read anyway, so that no tick is attributed to its growth
/// of long ago.
pub(super) const REFRESH_RUN_DELAY_TICKS: u32 = 64;

/// Distinguishes ticks that the host stole from lost and idle ones, by the delays that the host's
/// scheduler reports.
#[derive(Debug, Default)]
pub(super) struct TickAccount {
    ticks_since_run_delay: u32,
    // Run delay of a halted vCPU that no tick has been stolen for yet, in ns; a period at most.
    halted_delay: u64,
}

impl TickAccount {
    /// Classifies `ticks` (1 or more) of a vCPU that was not halted. The last of them is seen `late` ns after
    /// it was due. Reads the delays only if necessary, because that takes a system call.
    pub fn explain<B: ClockBackend>(
        &mut self,
        ticks: u64,
        late: u64,
        period: u64,
        backend: &mut B,
    ) -> ElapsedTicks {
        self.ticks_since_run_delay += 1;
        let in_time = ticks == 1 && late < LATE_NS;
        if in_time && self.ticks_since_run_delay < REFRESH_RUN_DELAY_TICKS {
            return ElapsedTicks {
                sample: true,
                ..ElapsedTicks::default()
            };
        }
        self.ticks_since_run_delay = 0;
        let missed = ticks - 1;
        let delay = backend.take_run_delay();
        if !in_time && delay >= missed * period + late / 2 {
            return ElapsedTicks {
                stolen: ticks,
                ..ElapsedTicks::default()
            };
        }
        let stolen = missed.min(nearest_ticks(delay + backend.take_tracer_delay(), period));
        ElapsedTicks {
            idle: 0,
            stolen,
            lost: missed - stolen,
            sample: true,
        }
    }

    /// Classifies `ticks` of a vCPU that was halted all the time.
    pub fn explain_halted<B: ClockBackend>(
        &mut self,
        ticks: u64,
        period: u64,
        backend: &mut B,
    ) -> ElapsedTicks {
        // Many short waits add up: the delay that is less than a whole tick is kept.
        self.halted_delay += backend.take_run_delay();
        let stolen = ticks.min(self.halted_delay / period);
        self.halted_delay = (self.halted_delay - stolen * period).min(period);
        ElapsedTicks {
            idle: ticks - stolen,
            stolen,
            ..ElapsedTicks::default()
        }
    }

    /// Classifies `missed` ticks between the halt of a vCPU and the sample after its alarm, which
    /// came when its thread had run for `run_time` ns.
    pub fn explain_alarm<B: ClockBackend>(
        &mut self,
        missed: u64,
        run_time: u64,
        period: u64,
        backend: &mut B,
    ) -> ElapsedTicks {
        let halted = self.explain_halted(missed, period, backend);
        // If the host's timers are late, the guest runs for longer than the alarm was set to. On those
        // ticks it was not idle.
        let busy = run_time / period;
        let lost = busy.saturating_sub(1).min(halted.idle);
        ElapsedTicks {
            idle: halted.idle - lost,
            lost,
            sample: true,
            ..halted
        }
    }
}

/// `ns` in ticks, rounded to the nearest number: a short wait for a processor accounts for no tick.
fn nearest_ticks(ns: u64, period: u64) -> u64 {
    (ns + period / 2) / period
}
