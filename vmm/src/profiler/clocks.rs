//! Starting, stopping and settling the vCPUs' clocks.

use std::time::{Duration, Instant};

use super::Profiler;
use crate::clock::{ClockSetting, ClockSource};
use crate::vcpu::RegisterSource;

/// How the clocks are to run when they run.
#[derive(Clone, Copy, Debug)]
pub struct ClockPlan {
    /// Ticks a second on each vCPU; 0: there is no clock.
    pub hz: u32,
    /// What makes a vCPU exit.
    pub source: ClockSource,
    /// Whether ticks have a random phase.
    pub jitter: bool,
    /// Where registers are read.
    pub registers: RegisterSource,
}

/// How long vCPU threads may take to answer: one that is stuck in an exit (a stalled terminal)
/// must not hold up everybody else.
const PATIENCE: Duration = Duration::from_millis(200);
/// Between two looks at whether they have.
const POLL: Duration = Duration::from_micros(50);

impl Profiler {
    /// Has the clocks run at `hz`, or stop with 0; all ticks until then are taken in first.
    pub(super) fn set_clocks(&mut self, hz: u32) {
        self.hz = hz;
        let setting = self.setting();
        for vcpu in &self.vcpus {
            vcpu.shared.control.request(setting);
            vcpu.shared.kicker.kick();
        }
        self.await_settled();
    }

    /// Stops the clocks before their only consumer stops, so that both count the same ticks.
    pub(super) fn stop_clocks(&mut self) {
        self.set_clocks(0);
    }

    /// Takes in every tick that has passed until now, those of halted vCPUs too.
    pub fn settle(&mut self) {
        let setting = self.setting();
        for vcpu in &self.vcpus {
            if vcpu.shared.control.is_halted() {
                vcpu.shared.control.request(setting);
                vcpu.shared.kicker.kick();
            }
        }
        self.await_settled();
    }

    /// Starts the clocks if somebody listens now and nobody did, or the other way round, and tells
    /// the vCPUs if process groups are wanted.
    pub(super) fn follow_consumers(&mut self, process_group_before: bool) {
        if self.pcs.is_gathering() {
            self.gate.open();
        }
        let wanted = if self.pcs.wants_ticks() && !self.ended {
            self.rate
        } else {
            0
        };
        if wanted != self.hz || self.pcs.wants_process_group() != process_group_before {
            self.set_clocks(wanted);
        }
    }

    fn setting(&self) -> ClockSetting {
        ClockSetting {
            hz: self.hz,
            process_group: self.pcs.wants_process_group(),
        }
    }

    fn await_settled(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_settled() && Instant::now() < deadline {
            std::thread::sleep(POLL);
            self.drain();
        }
        self.drain();
    }

    fn is_settled(&self) -> bool {
        self.vcpus
            .iter()
            .all(|vcpu| !vcpu.shared.kicker.is_attached() || vcpu.shared.control.is_settled())
    }
}
