//! The thread that reads the list of modules, and how the others ask it to.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::PhysicalMemory;

use super::super::LinuxKnowledge;
use super::Modules;

/// Least time between two readings. While a guest boots it loads many modules in a row.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// The pause after a reading is so many times as long as that was: a guest whose list changes all the time must not take
/// a processor away.
const PAUSES: u32 = 4;

/// What the thread has been asked for.
#[derive(Debug, Default)]
pub struct Watch {
    wanted: AtomicBool,
    /// How often somebody has asked who waits for it.
    asked: AtomicU64,
    /// How many of these have been answered.
    answered: AtomicU64,
    worker: OnceLock<Thread>,
}

impl Watch {
    /// Has the list read soon. Never waits.
    pub fn request(&self) {
        if !self.wanted.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Whether it has been asked for.
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
    /// Reads the list whenever that is asked for, until `stopping` is set and [`Modules::wake`] called.
    pub fn serve<M: PhysicalMemory>(
        &self,
        linux: &LinuxKnowledge,
        memory: &M,
        stopping: &AtomicBool,
    ) {
        let watch = &self.watch;
        if !self.can_be_found() || watch.worker.set(thread::current()).is_err() {
            return;
        }
        while !stopping.load(Ordering::SeqCst) {
            let asked = watch.asked.load(Ordering::Acquire);
            let is_wanted = watch.wanted.swap(false, Ordering::AcqRel);
            if !is_wanted && !watch.is_waited_for() {
                thread::park();
                continue;
            }
            let begun = Instant::now();
            self.read(linux, memory);
            watch.answered.store(asked, Ordering::Release);
            let end = Instant::now() + (begun.elapsed() * PAUSES).max(MIN_PAUSE);
            let goes_on = || stopping.load(Ordering::SeqCst) || watch.is_waited_for();
            while !goes_on() && Instant::now() < end {
                thread::park_timeout(end.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Has the list read. The result is what [`Modules::is_refreshed`] is asked by whether that has happened; `None`
    /// where nobody reads it.
    pub fn refresh(&self) -> Option<u64> {
        let watch = &self.watch;
        watch.worker.get()?;
        let number = watch.asked.fetch_add(1, Ordering::AcqRel) + 1;
        watch.wake();
        Some(number)
    }

    /// Whether the list has been read since [`Modules::refresh`] gave `number`.
    pub fn is_refreshed(&self, number: u64) -> bool {
        self.watch.answered.load(Ordering::Acquire) >= number
    }

    /// Has the thread look whether it is to stop.
    pub fn wake(&self) {
        self.watch.wake();
    }
}
