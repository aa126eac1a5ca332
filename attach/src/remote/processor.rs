//! The processor that two threads share while a vCPU stands still.
//!
//! One of them sleeps whenever the other one works. Where both may run on one processor only, that is a switch from one to the other; otherwise the host's kernel
//! wakes up the processor that the vCPU has left, which takes longer, on a host that is a guest itself several times as long.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The calling thread stays on one processor until this is dropped.
#[derive(Debug)]
pub struct ProcessorPin {
    /// Where it might run before.
    before: CpuSet,
    /// The number of the processor.
    pub processor: usize,
}

impl ProcessorPin {
    /// Stays where the thread is. `None` if it can't.
    pub fn here() -> Option<Self> {
        Self::at(sched_getcpu())
    }

    /// Goes to this processor. `None` if the thread may not run there.
    pub fn at(processor: usize) -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        (processor < CpuSet::MAX_CPU && before.is_set(processor)).then_some(())?;
        let mut one = CpuSet::new();
        one.set(processor);
        sched_setaffinity(None, &one).ok()?;
        Some(Self { before, processor })
    }
}

impl Drop for ProcessorPin {
    fn drop(&mut self) {
        // The processors that it may use may have become others meanwhile: then it may use those.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_on_its_processor_until_released() {
        let before = sched_getaffinity(None).unwrap();
        let pin = ProcessorPin::here().unwrap();
        let now = sched_getaffinity(None).unwrap();
        assert_eq!((now.count(), sched_getcpu()), (1, pin.processor));
        drop(pin);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        assert!(ProcessorPin::at(usize::MAX).is_none());
        let absent = (0..CpuSet::MAX_CPU).find(|number| !before.is_set(*number));
        assert!(absent.is_none_or(|number| ProcessorPin::at(number).is_none()));
    }
}
