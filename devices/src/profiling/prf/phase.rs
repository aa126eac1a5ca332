//! Which ticks of a clock that is faster than prf are counted.

use kvmprof_abi::prf::RATE_HZ;

use super::minor::Counted;
use kvmprof_recording::Ticks;

/// Picks every n-th tick of each vCPU. All minors share it, so that those of the vCPUs and the one
/// for all of them count the same ticks.
#[derive(Debug)]
pub(super) struct Phases {
    /// The clock's rate, in Hz.
    hz: u32,
    /// Ticks from one that is counted to the next.
    period: u64,
    /// Ticks of each vCPU since the last one that was counted; below `period`.
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

    /// The clock's rate is `hz` from here on. With another rate, a new period starts on each vCPU.
    pub(super) fn set_hz(&mut self, hz: u32) {
        if hz != self.hz {
            self.hz = hz;
            self.period = u64::from((hz / RATE_HZ).max(1));
            self.passed.fill(0);
        }
    }

    /// True when some of the clock's ticks come 100 times a second.
    pub(super) fn is_countable(&self) -> bool {
        self.hz != 0 && self.hz.is_multiple_of(RATE_HZ)
    }

    /// What of `ticks` is counted; `None` for a vCPU that the guest hasn't got.
    pub(super) fn pick<'a>(&mut self, ticks: &'a Ticks) -> Option<Counted<'a>> {
        let passed = self.passed.get_mut(usize::from(ticks.vcpu))?;
        let mut pass = |ticks: u64| {
            let whole = ticks / self.period;
            // Below two periods, so that this can't overflow.
            let rest = *passed + ticks % self.period;
            *passed = rest % self.period;
            whole + rest / self.period
        };
        Some(Counted {
            total: ticks.total(),
            // In the order in which they came.
            idle: pass(ticks.idle),
            stolen: pass(ticks.stolen),
            lost: pass(ticks.lost),
            sample: ticks.sample.as_ref().filter(|_| pass(1) == 1),
        })
    }
}
