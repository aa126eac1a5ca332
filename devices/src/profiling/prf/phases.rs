//! Selects the ticks that prf counts of a faster clock.

use kvmprof_abi::prf::RATE_HZ;

use super::minor::CountedTicks;
use crate::profiling::phase::Phase;
use kvmprof_recording::Ticks;

/// Selects every n-th tick of each vCPU. All minors share it, so that those of the vCPUs and the one for all count the
/// same ticks.
#[derive(Debug)]
pub(super) struct Phases {
    /// The clock's rate, in Hz.
    hz: u32,
    vcpus: Vec<Phase>,
}

impl Phases {
    pub(super) fn new(vcpus: u16) -> Self {
        Self {
            hz: 0,
            vcpus: vec![Phase::new(0, RATE_HZ); usize::from(vcpus)],
        }
    }

    /// Sets the clock's rate to `hz`. If that changes it, a new period starts on each vCPU.
    pub(super) fn set_hz(&mut self, hz: u32) {
        if hz != self.hz {
            self.hz = hz;
            self.vcpus.fill(Phase::new(hz, RATE_HZ));
        }
    }

    /// True if the clock's rate is a multiple of 100 Hz.
    pub(super) fn is_countable(&self) -> bool {
        self.hz != 0 && self.hz.is_multiple_of(RATE_HZ)
    }

    /// The counted ones of `ticks`; `None` for an unknown vCPU.
    pub(super) fn pick<'a>(&mut self, ticks: &'a Ticks) -> Option<CountedTicks<'a>> {
        let phase = self.vcpus.get_mut(usize::from(ticks.vcpu))?;
        Some(CountedTicks {
            total: ticks.total(),
            // In the order of the ticks.
            idle: phase.pass(ticks.idle),
            stolen: phase.pass(ticks.stolen),
            lost: phase.pass(ticks.lost),
            sample: ticks.sample.as_ref().filter(|_| phase.pass(1) == 1),
        })
    }
}
