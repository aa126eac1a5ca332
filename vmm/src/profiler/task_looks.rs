//! When the guest's tasks are looked at, and which vCPU stands still for that.

use std::time::{Duration, Instant};

use kvmprof_introspection::TaskReader;
use kvmprof_recording::tasks::TaskLook;

use super::clocks::Clocks;

/// Looks at the guest's tasks, one at a time. Each is made by the next vCPU, so that all of them pay for it.
#[derive(Debug, Default)]
pub struct TaskLooks {
    /// What looks, unless it is on its way.
    reader: Option<Box<TaskReader>>,
    /// The vCPU whose thread has been asked.
    asked: Option<usize>,
    /// When the next look is due.
    due: Option<Instant>,
    turn: usize,
    /// The guest was restarted: nothing of the last look holds.
    is_stale: bool,
}

impl TaskLooks {
    /// Asks for a look if one is due: there is to be one every `period`, or none. Hands the look that has arrived to `take`.
    pub fn advance(
        &mut self,
        clocks: &Clocks,
        period: Option<Duration>,
        take: impl FnOnce(&TaskLook),
    ) {
        self.collect(clocks, take);
        let Some(period) = period else {
            self.due = None;
            self.reader = None;
            return;
        };
        let now = Instant::now();
        let due = *self.due.get_or_insert(now);
        if self.asked.is_some() || now < due || clocks.is_paused() {
            return;
        }
        // A look that took too long is left out, and the others stay in time.
        let next = due + period;
        self.due = Some(if next < now { now + period } else { next });
        self.ask(clocks);
    }

    /// How long it is until the next look is due; `None` if there is none, or one is under way.
    pub fn wait(&self) -> Option<Duration> {
        let due = self.due.filter(|_| self.asked.is_none())?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// The guest was restarted.
    pub fn forget(&mut self) {
        self.is_stale = true;
    }

    fn collect(&mut self, clocks: &Clocks, take: impl FnOnce(&TaskLook)) {
        let Some(vcpu) = self.asked.and_then(|index| clocks.vcpu(index)) else {
            return;
        };
        if let Some((reader, has_looked)) = vcpu.tasks.take_answer() {
            if has_looked && !self.is_stale {
                take(reader.look());
            }
            self.reader = Some(reader);
        } else if vcpu.kicker.is_attached() {
            return;
        } else {
            vcpu.tasks.withdraw();
        }
        self.asked = None;
    }

    fn ask(&mut self, clocks: &Clocks) {
        let index = self.turn;
        let Some(vcpu) = clocks.vcpu(index) else {
            self.turn = 0;
            return;
        };
        self.turn = (index + 1) % clocks.count().max(1);
        if !vcpu.kicker.is_attached() {
            return;
        }
        let mut reader = self.reader.take().unwrap_or_default();
        if std::mem::take(&mut self.is_stale) {
            reader.forget();
        }
        vcpu.tasks.ask(reader);
        vcpu.kicker.kick();
        self.asked = Some(index);
    }
}
