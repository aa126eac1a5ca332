//! The thread that reads the list of modules, and requests to it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::PhysicalMemory;

use super::super::LinuxKnowledge;
use super::{Clock, Modules};

/// Minimum time between two reads of the list. A booting guest loads many modules in a row.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// The pause after a read, as a multiple of the read's duration, so that a guest that changes its list all the time
/// doesn't occupy a host CPU.
const PAUSES: u32 = 4;

/// Requests to the thread.
#[derive(Debug, Default)]
pub struct Watch {
    wanted: AtomicBool,
    /// The number of requests with a waiting client.
    asked: AtomicU64,
    /// The number of such requests that have been answered.
    answered: AtomicU64,
    worker: OnceLock<Thread>,
    /// Whether the kernel has ended, and another one runs.
    has_ended: AtomicBool,
}

impl Watch {
    /// Requests a read of the list. Never waits.
    pub fn request(&self) {
        if !self.wanted.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Whether a read has been requested.
    #[cfg(test)]
    pub fn is_requested(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    fn wake(&self) {
        if let Some(worker) = self.worker.get() {
            worker.unpark();
        }
    }

    fn is_waited_for(&self) -> bool {
        self.answered.load(Ordering::Acquire) < self.asked.load(Ordering::Acquire)
    }
}

impl Modules {
    /// Reads the list on request, and that of processes ([`LinuxKnowledge::request_processes`]), until `stopping` is set and [`Modules::wake`] is called, or another kernel runs. `clock` tells the time of samples.
    pub fn serve<M: PhysicalMemory>(
        &self,
        linux: &LinuxKnowledge,
        memory: &M,
        stopping: &AtomicBool,
        clock: Clock,
    ) {
        let watch = &self.watch;
        // The first one stays, as the thread does.
        let _already = self.clock.set(clock);
        if watch.worker.set(thread::current()).is_err() {
            return;
        }
        let is_over = || stopping.load(Ordering::SeqCst) || watch.has_ended.load(Ordering::SeqCst);
        while !is_over() {
            let asked = watch.asked.load(Ordering::Acquire);
            let is_wanted = watch.wanted.swap(false, Ordering::AcqRel);
            if !is_wanted && !watch.is_waited_for() {
                thread::park();
                continue;
            }
            let begun = Instant::now();
            self.read(linux, memory);
            linux.serve_processes(memory);
            watch.answered.store(asked, Ordering::Release);
            let end = Instant::now() + (begun.elapsed() * PAUSES).max(MIN_PAUSE);
            let goes_on = || is_over() || watch.is_waited_for();
            while !goes_on() && Instant::now() < end {
                thread::park_timeout(end.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Requests a read of the list. The result is a number for [`Modules::is_refreshed`]; `None` if no thread reads the list.
    pub fn refresh(&self) -> Option<u64> {
        let watch = &self.watch;
        watch.worker.get()?;
        let number = watch.asked.fetch_add(1, Ordering::AcqRel) + 1;
        watch.wake();
        Some(number)
    }

    /// Whether the list has been read since [`Modules::refresh`] returned `number`.
    pub fn is_refreshed(&self, number: u64) -> bool {
        self.watch.answered.load(Ordering::Acquire) >= number
    }

    /// Ends the work of the thread: another kernel runs.
    pub(crate) fn end(&self) {
        self.watch.has_ended.store(true, Ordering::SeqCst);
        self.watch.wake();
    }

    /// Makes the thread check whether to stop.
    pub fn wake(&self) {
        self.watch.wake();
    }
}
