//! A restart of a guest whose kernel is known: no thread looks at a vCPU while what was found of the kernel is forgotten.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use kvmprof_machine::lock::lock;
use kvmprof_profiling::clock::monotonic_ns;
use kvmprof_profiling::profiler::RestartTimes;
use kvmprof_profiling::sampling::VcpuShared;

/// The restarts of a guest, which the threads that sample its vCPUs and the one that watches its kernel share.
#[derive(Debug, Default)]
pub struct Restart {
    times: Arc<RestartTimes>,
    is_requested: AtomicBool,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Meeting {
    /// The number of threads that sample.
    threads: usize,
    /// How many of them stand still.
    suspended: usize,
}

/// A thread that samples. It leaves the meeting when this is dropped.
#[derive(Debug)]
pub struct SamplingThread {
    restart: Arc<Restart>,
}

impl Restart {
    /// The guest's restarts, for the profiler.
    pub fn times(&self) -> Arc<RestartTimes> {
        Arc::clone(&self.times)
    }

    /// Adds a thread that samples.
    pub fn join(self: &Arc<Self>) -> SamplingThread {
        lock(&self.meeting).threads += 1;
        SamplingThread {
            restart: Arc::clone(self),
        }
    }

    /// Has `forget` called while no thread samples one of `vcpus`. Returns without that if `stopping` is set.
    pub fn carry_out(
        &self,
        vcpus: &[Arc<VcpuShared>],
        stopping: &AtomicBool,
        forget: impl FnOnce(),
    ) {
        self.is_requested.store(true, Ordering::SeqCst);
        for vcpu in vcpus {
            vcpu.kicker.kick();
        }
        let is_waiting = |meeting: &mut Meeting| {
            meeting.suspended < meeting.threads && !stopping.load(Ordering::SeqCst)
        };
        let meeting = (self.changed)
            .wait_while(lock(&self.meeting), is_waiting)
            .unwrap_or_else(PoisonError::into_inner);
        if stopping.load(Ordering::SeqCst) {
            return;
        }
        forget();
        self.times.add(monotonic_ns());
        self.is_requested.store(false, Ordering::SeqCst);
        drop(meeting);
        self.changed.notify_all();
    }

    /// Wakes the waiting threads, once `stopping` is set.
    pub fn wake(&self) {
        drop(lock(&self.meeting));
        self.changed.notify_all();
    }
}

impl SamplingThread {
    /// Whether this thread has to stand still.
    pub fn is_to_wait(&self) -> bool {
        self.restart.is_requested.load(Ordering::SeqCst)
    }

    /// Stands still until the guest's kernel was forgotten, or `stopping` is set.
    pub fn wait(&self, stopping: &AtomicBool) {
        let Restart {
            is_requested,
            meeting,
            changed,
            ..
        } = &*self.restart;
        let mut meeting = lock(meeting);
        meeting.suspended += 1;
        changed.notify_all();
        let is_waiting = |_: &mut Meeting| {
            is_requested.load(Ordering::SeqCst) && !stopping.load(Ordering::SeqCst)
        };
        let mut meeting = changed
            .wait_while(meeting, is_waiting)
            .unwrap_or_else(PoisonError::into_inner);
        meeting.suspended -= 1;
    }
}

impl Drop for SamplingThread {
    fn drop(&mut self) {
        lock(&self.restart.meeting).threads -= 1;
        self.restart.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    #[test]
    fn no_thread_samples_while_the_kernel_is_forgotten() {
        const ROUNDS: u32 = 200;
        let restart = Arc::<Restart>::default();
        let (stopping, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let sampling = AtomicU32::new(0);
        let mut forgotten = 0;
        thread::scope(|scope| {
            for number in 0..3 {
                let thread = restart.join();
                let (stopping, ended, sampling) = (&stopping, &ended, &sampling);
                scope.spawn(move || {
                    while !stopping.load(Ordering::SeqCst) {
                        if thread.is_to_wait() {
                            thread.wait(stopping);
                        }
                        sampling.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        sampling.fetch_sub(1, Ordering::SeqCst);
                        if number == 0 && ended.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                });
            }
            for round in 0..ROUNDS {
                // From then on there is a thread less.
                ended.store(round > ROUNDS / 2, Ordering::SeqCst);
                restart.carry_out(&[], &stopping, || {
                    assert_eq!(sampling.load(Ordering::SeqCst), 0);
                    forgotten += 1;
                });
            }
            stopping.store(true, Ordering::SeqCst);
            restart.wake();
        });
        assert_eq!(forgotten, ROUNDS);
        assert_eq!(lock(&restart.meeting).threads, 0);
    }

    #[test]
    fn the_end_is_waited_for_by_nobody() {
        let restart = Arc::<Restart>::default();
        let busy = restart.join();
        let stopping = AtomicBool::new(false);
        thread::scope(|scope| {
            let carried_out = scope.spawn(|| restart.carry_out(&[], &stopping, || unreachable!()));
            while !busy.is_to_wait() {
                thread::yield_now();
            }
            stopping.store(true, Ordering::SeqCst);
            restart.wake();
            assert!(carried_out.join().is_ok());
            busy.wait(&stopping);
        });
    }
}
