//! Keeps a thread off the processors of the host that vCPUs run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Sets where the calling thread runs: on its original processors without those of vCPUs, if any are left.
#[derive(Debug)]
pub struct Elsewhere {
    // None if the host doesn't show the processors, or refuses to change them.
    allowed: Option<CpuSet>,
    current: CpuSet,
}

impl Elsewhere {
    /// The setting of the calling thread.
    pub fn of_this_thread() -> Self {
        let allowed = sched_getaffinity(None).ok();
        Self {
            current: allowed.unwrap_or_default(),
            allowed,
        }
    }

    /// Moves the thread away from these processors.
    pub fn avoid(&mut self, processors: impl Iterator<Item = usize>) {
        let Some(allowed) = self.allowed else { return };
        let mut wanted = allowed;
        for processor in processors {
            if processor < CpuSet::MAX_CPU {
                wanted.unset(processor);
            }
        }
        if wanted.count() == 0 {
            wanted = allowed;
        }
        if wanted == self.current {
            return;
        }
        match sched_setaffinity(None, &wanted) {
            Ok(()) => self.current = wanted,
            Err(error) => {
                log::debug!("The ticker runs on any processor: {error}");
                self.allowed = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_the_processor_of_another_if_there_are_more() {
        let allowed = sched_getaffinity(None).unwrap();
        let mut elsewhere = Elsewhere::of_this_thread();
        let one = (0..CpuSet::MAX_CPU).find(|processor| allowed.is_set(*processor));
        elsewhere.avoid(one.into_iter().chain([usize::MAX]));
        let left = sched_getaffinity(None).unwrap();
        assert_eq!(left.count(), (allowed.count() - 1).max(1));
        elsewhere.avoid(std::iter::empty());
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
    }
}
