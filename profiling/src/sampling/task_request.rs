//! The profiler's request to a vCPU's thread to look at the guest's tasks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kvmprof_introspection::TaskReader;
use kvmprof_machine::lock::lock;

/// The state of a request.
#[derive(Debug, Default)]
enum Slot {
    /// Nothing: there is no request.
    #[default]
    Empty,
    /// A request, with the reader that looks.
    Asked(Box<TaskReader>),
    /// The answer; false if the tasks couldn't be read.
    Done(Box<TaskReader>, bool),
}

/// A request of the profiler to one vCPU's thread, and the answer. The reader goes to the vCPU's thread and comes back, so that one reader
/// remembers the last look, whichever vCPU looks.
#[derive(Debug, Default)]
pub struct TaskRequest {
    /// Whether the slot has a request. While it has one, the profiler takes the lock only to withdraw it: so the vCPU's thread gets the lock.
    is_asked: AtomicBool,
    /// Whether the slot has an answer.
    is_answered: AtomicBool,
    slot: Mutex<Slot>,
}

impl TaskRequest {
    /// Requests a look by `reader`. The caller must kick the vCPU's thread after that. Only the profiler calls this, and only while no
    /// other request is in progress.
    pub fn ask(&self, reader: Box<TaskReader>) {
        *lock(&self.slot) = Slot::Asked(reader);
        self.is_asked.store(true, Ordering::Release);
    }

    /// Takes the answer, once it is there: the reader, and whether it has looked.
    pub fn take_answer(&self) -> Option<(Box<TaskReader>, bool)> {
        if !self.is_answered.swap(false, Ordering::Acquire) {
            return None;
        }
        match std::mem::take(&mut *lock(&self.slot)) {
            Slot::Done(reader, has_looked) => Some((reader, has_looked)),
            Slot::Empty | Slot::Asked(_) => None,
        }
    }

    /// Withdraws the request to a vCPU whose thread doesn't answer any more. After that, the next look starts without a previous one.
    pub fn withdraw(&self) {
        self.is_asked.store(false, Ordering::Release);
        let mut slot = lock(&self.slot);
        self.is_answered.store(false, Ordering::Release);
        *slot = Slot::Empty;
    }

    /// Carries out a request, if there is one, by `look`, which returns whether it has looked. True if there is an answer now. Only the
    /// vCPU's thread calls this. It never waits: if the profiler holds the lock, it withdraws the request.
    pub fn carry_out(&self, look: impl FnOnce(&mut TaskReader) -> bool) -> bool {
        if !self.is_asked.load(Ordering::Acquire) {
            return false;
        }
        let Ok(mut slot) = self.slot.try_lock() else {
            return false;
        };
        self.is_asked.store(false, Ordering::Release);
        let Slot::Asked(mut reader) = std::mem::take(&mut *slot) else {
            return false;
        };
        let has_looked = look(&mut reader);
        *slot = Slot::Done(reader, has_looked);
        self.is_answered.store(true, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_request_is_performed_once_and_returned() {
        let request = TaskRequest::default();
        let look = |reader: &mut TaskReader| {
            reader.look_mut().time += 7;
            true
        };
        assert!(!request.carry_out(look), "there is no request");
        request.ask(Box::default());
        assert!(request.take_answer().is_none());
        assert!(request.carry_out(look));
        assert!(!request.carry_out(look));
        let (reader, has_looked) = request.take_answer().unwrap();
        assert!(has_looked && reader.look().time == 7);
        assert!(request.take_answer().is_none());
        request.ask(reader);
        request.withdraw();
        assert!(!request.carry_out(look) && request.take_answer().is_none());
    }

    /// The vCPU's thread is kicked once for each request, however often the profiler polls for the answer.
    #[test]
    fn no_kick_is_lost_while_the_profiler_polls() {
        const REQUESTS: u32 = 2000;
        let request = TaskRequest::default();
        let answers = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while answers.load(Ordering::SeqCst) < REQUESTS {
                    if request.take_answer().is_some() {
                        answers.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            for number in 1..=REQUESTS {
                request.ask(Box::default());
                let is_carried_out = request.carry_out(|_| true);
                if !is_carried_out {
                    // Otherwise the other thread would wait forever.
                    answers.store(REQUESTS, Ordering::SeqCst);
                }
                assert!(is_carried_out, "{number}");
                while answers.load(Ordering::SeqCst) < number {
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn a_thread_does_not_wait_for_the_profiler() {
        let request = TaskRequest::default();
        request.ask(Box::default());
        let held = lock(&request.slot);
        assert!(!request.carry_out(|_| true));
        drop(held);
        assert!(request.carry_out(|_| false));
        assert!(!request.take_answer().unwrap().1);
    }
}
