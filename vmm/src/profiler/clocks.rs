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

/// How long a vCPU's thread may take to answer that is busy with an exit: one that is stuck there (a
/// stalled terminal) must not hold up everybody else.
const PATIENCE_IN_EXIT: Duration = Duration::from_millis(200);
/// How long the others may take: they answer as soon as the host runs them, and until they have, ticks
/// are missing in the accounts.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at whether they have.
const POLL: Duration = Duration::from_micros(50);

impl Profiler {
    /// Has the clocks run at `hz`, or stop with 0; all ticks until then are taken in first.
    pub(super) fn set_clocks(&mut self, hz: u32) {
        self.hz = hz;
        self.request_of_all();
    }

    /// Has every vCPU thread answer once, with the clocks as they are.
    pub(super) fn request_of_all(&mut self) {
        let setting = self.setting();
        self.stacks = setting.stacks;
        self.follows_processes = setting.processes;
        for vcpu in &self.vcpus {
            vcpu.shared.control.request(setting);
            vcpu.shared.kicker.kick();
        }
        self.await_settled();
    }

    /// Before a consumer stops: takes in every tick until now. Without `others` that want more the
    /// clocks stop first, so that they count the same ticks as their last consumer.
    pub(super) fn settle_before_leaving(&mut self, others: bool) {
        if others {
            self.settle();
        } else {
            self.set_clocks(0);
        }
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

    /// True while a consumer counts ticks.
    fn is_wanted(&self) -> bool {
        self.pcs.wants_ticks() || self.others_than_pcs_want_ticks()
    }

    /// True while a consumer other than pcs counts ticks.
    pub(super) fn others_than_pcs_want_ticks(&self) -> bool {
        self.prf.wants_ticks() || self.is_recording()
    }

    /// The rate for one more consumer, in Hz: that of those who use the clock already, else the one
    /// that kvmprof was started with; an earlier client's PCS_SETHZ was for itself.
    pub(super) fn rate_for_another(&self) -> u32 {
        if self.is_wanted() {
            self.rate
        } else {
            self.plan.hz
        }
    }

    /// Starts the clocks if somebody listens now and nobody did, or the other way round, and tells
    /// the vCPUs if process groups and stacks are wanted. Lets the guest start if anything is counted.
    pub(super) fn follow_consumers(&mut self, process_group_before: bool) {
        if self.pcs.is_gathering() || self.others_than_pcs_want_ticks() {
            self.gate.open();
        }
        let wanted = if self.is_wanted() && !self.ended {
            self.rate
        } else {
            0
        };
        let process_group = self.pcs.wants_process_group();
        if wanted != self.hz
            || process_group != process_group_before
            || self.stacks_wanted() != self.stacks
            || self.is_recording() != self.follows_processes
        {
            self.set_clocks(wanted);
        }
    }

    fn setting(&self) -> ClockSetting {
        ClockSetting {
            hz: self.hz,
            process_group: self.pcs.wants_process_group(),
            stacks: self.stacks_wanted(),
            processes: self.is_recording(),
        }
    }

    fn await_settled(&mut self) {
        let begun = Instant::now();
        while self.is_awaited(begun.elapsed()) {
            std::thread::sleep(POLL);
            self.drain();
        }
        self.drain();
    }

    /// True while there is a vCPU whose answer is worth waiting for, after so long a time.
    fn is_awaited(&self, waited: Duration) -> bool {
        self.vcpus.iter().any(|vcpu| {
            let shared = &vcpu.shared;
            let patience = if shared.is_in_exit() {
                PATIENCE_IN_EXIT
            } else {
                PATIENCE
            };
            shared.kicker.is_attached() && !shared.control.is_settled() && waited < patience
        })
    }
}
