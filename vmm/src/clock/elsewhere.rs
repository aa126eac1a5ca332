//! Keeps a thread off the processors of the host that vCPUs run on.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The index of a thread's processor among the fields behind its name (proc_pid_stat(5), field 39).
const PROCESSOR: usize = 36;

/// Where the calling thread runs: on the processors that it had at first, without those of vCPUs if any are left.
#[derive(Debug)]
pub struct Elsewhere {
    // None where the host doesn't say, or refuses to change it.
    allowed: Option<CpuSet>,
    current: CpuSet,
}

impl Elsewhere {
    /// For the calling thread.
    pub fn of_this_thread() -> Self {
        let allowed = sched_getaffinity(None).ok();
        Self {
            current: allowed.unwrap_or_default(),
            allowed,
        }
    }

    /// Leaves the processors that these threads of this process run on, or ran on last.
    pub fn avoid(&mut self, threads: impl Iterator<Item = libc::pid_t>) {
        let Some(allowed) = self.allowed else { return };
        let mut wanted = allowed;
        for processor in threads.filter_map(processor_of) {
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

/// The processor that thread `tid` of this process runs on, or ran on last.
fn processor_of(tid: libc::pid_t) -> Option<usize> {
    parse(&fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<usize> {
    // The name may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(PROCESSOR)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_processor_is_behind_its_name() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("1 (a) b) {}", fields.join(" "));
        assert_eq!(parse(&stat), Some(39));
        assert_eq!(parse("1 (short) S 1"), None);
        // SAFETY: gettid has no arguments and cannot fail.
        assert!(processor_of(unsafe { libc::gettid() }).is_some());
    }

    #[test]
    fn a_thread_leaves_the_processor_of_another_if_there_are_more() {
        let allowed = sched_getaffinity(None).unwrap();
        let mut elsewhere = Elsewhere::of_this_thread();
        // SAFETY: gettid has no arguments and cannot fail.
        elsewhere.avoid(std::iter::once(unsafe { libc::gettid() }));
        let left = sched_getaffinity(None).unwrap();
        assert_eq!(left.count(), (allowed.count() - 1).max(1));
        elsewhere.avoid(std::iter::empty());
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
    }
}
