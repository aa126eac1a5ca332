//! Looks at the guest's tasks: the time of each look, and the stopped vCPU for it.

use std::time::{Duration, Instant};

use kvmprof_introspection::{TaskReader, TaskScope};
use kvmprof_recording::tasks::TaskLook;

use super::clocks::Clocks;
use super::consumers::LookNeeds;

/// The usual time that a vCPU takes to answer, and the interval of checks meanwhile.
const USUAL_ANSWER: Duration = Duration::from_millis(20);
const ANSWER_POLL: Duration = Duration::from_millis(1);

/// Looks at the guest's tasks, one at a time. The vCPUs take turns, so that the cost is shared.
#[derive(Debug, Default)]
pub struct TaskLooks {
    /// The reader of tasks; `None` while a vCPU's thread has it.
    reader: Option<Box<TaskReader>>,
    /// The vCPU whose thread has been asked, and the time of the request.
    asked: Option<(usize, Instant)>,
    /// The time of the next look.
    due: Option<Instant>,
    turn: usize,
    /// Whether the guest was restarted, so that the last look isn't valid any more.
    is_stale: bool,
}

impl TaskLooks {
    /// Requests a look if `needs` make one due; `None` for no looks. Passes a look that has arrived to `take`.
    pub fn advance(
        &mut self,
        clocks: &Clocks,
        needs: Option<LookNeeds>,
        take: impl FnOnce(&TaskLook),
    ) {
        self.collect(clocks, take);
        let Some(LookNeeds { period, scope }) = needs else {
            self.due = None;
            self.reader = None;
            return;
        };
        let now = Instant::now();
        let due = *self.due.get_or_insert(now);
        if self.asked.is_some() || now < due || clocks.is_paused() {
            return;
        }
        // If a look took too long, the next one is skipped, so that the others stay in time.
        let next = due + period;
        self.due = Some(if next < now { now + period } else { next });
        self.ask(clocks, scope);
    }

    /// The time until the next look is due, or may have arrived; `None` if there are no looks, or if the vCPU takes long to answer.
    pub fn wait(&self) -> Option<Duration> {
        let due = self.due?;
        match self.asked {
            None => Some(due.saturating_duration_since(Instant::now())),
            Some((_, since)) => (since.elapsed() < USUAL_ANSWER).then_some(ANSWER_POLL),
        }
    }

    /// Notes that the guest was restarted.
    pub fn forget(&mut self) {
        self.is_stale = true;
    }

    fn collect(&mut self, clocks: &Clocks, take: impl FnOnce(&TaskLook)) {
        let Some(vcpu) = self.asked.and_then(|(index, _)| clocks.vcpu(index)) else {
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

    fn ask(&mut self, clocks: &Clocks, scope: TaskScope) {
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
        reader.set_scope(scope);
        vcpu.tasks.ask(reader);
        vcpu.kicker.kick();
        self.asked = Some((index, Instant::now()));
    }
}
