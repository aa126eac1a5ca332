//! Selects the ticks that prf counts of a faster clock.

use kvmprof_abi::prf::RATE_HZ;

use super::minor::Counted;
use kvmprof_recording::Ticks;

/// Selects every n-th tick of each vCPU. All minors share it, so that those of the vCPUs and the one for all count the
/// same ticks.
#[derive(Debug)]
pub(super) struct Phases {
    /// The clock's rate, in Hz.
    hz: u32,
    /// The n of every n-th tick.
    period: u64,
    /// Ticks of each vCPU since the last counted one; below `period`.
    passed: Vec<u64>,
}

impl Phases {
    pub(super) fn new(vcpus: u16) -> Self {
        Self {
            hz: 0,
            period: 1,
            passed: vec![0; usize::from(vcpus)],
        }
    }

    /// Sets the clock's rate to `hz`. If that changes it, a new period starts on each vCPU.
    pub(super) fn set_hz(&mut self, hz: u32) {
        if hz != self.hz {
            self.hz = hz;
            self.period = u64::from((hz / RATE_HZ).max(1));
            self.passed.fill(0);
        }
    }

    /// True if the clock's rate is a multiple of 100 Hz.
    pub(super) fn is_countable(&self) -> bool {
        self.hz != 0 && self.hz.is_multiple_of(RATE_HZ)
    }

    /// The counted ones of `ticks`; `None` for an unknown vCPU.
    pub(super) fn pick<'a>(&mut self, ticks: &'a Ticks) -> Option<Counted<'a>> {
        let passed = self.passed.get_mut(usize::from(ticks.vcpu))?;
        let mut pass = |ticks: u64| {
            let whole = ticks / self.period;
            // Less than two periods, so this can't overflow.
            let rest = *passed + ticks % self.period;
            *passed = rest % self.period;
            whole + rest / self.period
        };
        Some(Counted {
            total: ticks.total(),
            // In the order of the ticks.
            idle: pass(ticks.idle),
            stolen: pass(ticks.stolen),
            lost: pass(ticks.lost),
            sample: ticks.sample.as_ref().filter(|_| pass(1) == 1),
        })
    }
}
