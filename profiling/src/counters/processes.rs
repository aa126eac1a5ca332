//! The counts that the vCPUs' threads make for processes, shared with the event thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kvmprof_devices::profiling::pmc::{Counted, Parent, ProcessKey};
use kvmprof_introspection::ProcessInstance;

use kvmprof_machine::lock::lock;

/// Maximum number of processes that a vCPU counts separately until the event thread takes the counts. Further ones are counted
/// together.
const CAPACITY: usize = 256;
/// Number of processes from which on the event thread should take the counts soon.
const MANY: usize = CAPACITY / 2;
/// Maximum number of ended processes that the event thread hasn't taken yet. Further ones are found again later.
const MAX_ENDED: usize = 1024;
/// Stands for the processes that are counted together.
const OTHERS: i32 = -1;

/// A process that has counters until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownProcess {
    /// Its id.
    pub pid: i32,
    /// The process; `None` until it has been seen.
    pub instance: Option<ProcessInstance>,
}

/// The counts of a vCPU for one process.
#[derive(Clone, Copy, Debug)]
pub struct CountedProcess {
    /// The process.
    pub instance: ProcessInstance,
    /// The counts.
    pub counted: Counted,
}

/// The counts for processes that haven't been taken yet, and the counters that are to be counted.
#[derive(Debug)]
pub struct ProcessCounts {
    wanted: AtomicU32,
    /// The counts, by the indexes of the vCPUs. A vCPU's thread locks its own table only for an addition, the event thread
    /// only to exchange it.
    tables: Vec<Mutex<Vec<CountedProcess>>>,
    watched: Mutex<Arc<[KnownProcess]>>,
    /// Counts the changes of the list of watched processes.
    version: AtomicU64,
    ended: Mutex<Vec<KnownProcess>>,
}

impl ProcessCounts {
    /// The counts of a guest with `vcpus` vCPUs.
    pub fn new(vcpus: usize) -> Self {
        let table = || Mutex::new(Vec::with_capacity(CAPACITY));
        Self {
            wanted: AtomicU32::new(0),
            tables: std::iter::repeat_with(table).take(vcpus).collect(),
            watched: Mutex::default(),
            version: AtomicU64::new(0),
            ended: Mutex::default(),
        }
    }

    /// Sets the bits of the counters that are to be counted.
    pub fn want(&self, counters: u32) {
        self.wanted.store(counters, Ordering::Relaxed);
    }

    /// The bits of the counters that are counted.
    pub fn wanted(&self) -> u32 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Makes the vCPUs check whether these processes still live.
    pub fn watch(&self, processes: Vec<KnownProcess>) {
        *lock(&self.watched) = processes.into();
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The watched processes, if they have changed since `version`.
    pub(super) fn watched(&self, version: &mut u64) -> Option<Arc<[KnownProcess]>> {
        let now = self.version.load(Ordering::Acquire);
        if now == *version {
            return None;
        }
        *version = now;
        Some(Arc::clone(&lock(&self.watched)))
    }

    /// Notes that a watched process has ended.
    pub fn end(&self, process: KnownProcess) {
        let mut ended = lock(&self.ended);
        // Each vCPU may detect the end.
        if ended.len() < MAX_ENDED && !ended.contains(&process) {
            ended.push(process);
        }
    }

    /// Adds to the counts of vCPU `vcpu` for a process. `parent` is called if the process is new. True if the counts
    /// should be taken soon.
    pub(super) fn add(
        &self,
        vcpu: usize,
        one: CountedProcess,
        parent: impl FnOnce() -> Option<Parent>,
    ) -> bool {
        let Some(table) = self.tables.get(vcpu) else {
            return false;
        };
        let mut table = lock(table);
        let process = one.counted.process;
        let is_it = |row: &&mut CountedProcess| row.counted.process == process;
        if let Some(row) = table.iter_mut().rev().find(is_it) {
            row.add(&one);
        } else if table.len() < CAPACITY - 1 {
            table.push(one.with_parent(parent()));
        } else {
            let others = one.of_others();
            match table.last_mut().filter(|row| row.is_of_others()) {
                Some(row) => row.add(&others),
                None => table.push(others),
            }
        }
        table.len() >= MANY
    }

    /// Takes the counts, and then returns the processes that have ended, all of whose counts have been taken.
    pub fn take(&self, mut each: impl FnMut(&CountedProcess)) -> Vec<KnownProcess> {
        // This comes first, so that all counts of these processes are in the tables.
        let ended = std::mem::take(&mut *lock(&self.ended));
        let mut spare = Vec::new();
        for table in &self.tables {
            if lock(table).is_empty() {
                continue;
            }
            if spare.capacity() == 0 {
                spare.reserve_exact(CAPACITY);
            }
            std::mem::swap(&mut *lock(table), &mut spare);
            spare.drain(..).for_each(|one| each(&one));
        }
        ended
    }
}

impl CountedProcess {
    fn with_parent(mut self, parent: Option<Parent>) -> Self {
        self.counted.parent = parent;
        self
    }

    fn of_others(mut self) -> Self {
        self.instance = ProcessInstance::from_pid(OTHERS);
        self.counted.process = ProcessKey {
            pid: OTHERS,
            started: 0,
        };
        self.counted.comm = Default::default();
        self
    }

    fn is_of_others(&self) -> bool {
        self.counted.process.pid == OTHERS
    }

    fn add(&mut self, more: &Self) {
        self.instance = more.instance;
        self.counted.comm = more.counted.comm;
        for (sum, count) in self.counted.counts.iter_mut().zip(more.counted.counts) {
            *sum = sum.saturating_add(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(pid: i32, count: u64) -> CountedProcess {
        let mut counted = Counted {
            process: ProcessKey { pid, started: 1 },
            ..Counted::default()
        };
        counted.counts[3] = count;
        CountedProcess {
            instance: ProcessInstance::from_pid(pid),
            counted,
        }
    }

    #[test]
    fn counts_are_summed_up_until_they_are_taken() {
        let counts = ProcessCounts::new(2);
        let parent = Parent {
            key: ProcessKey { pid: 1, started: 0 },
            may_have_adopted: true,
        };
        for _ in 0..3 {
            assert!(!counts.add(0, one(5, 10), || Some(parent)));
            assert!(!counts.add(1, one(5, 1), || None));
        }
        assert!(!counts.add(2, one(5, 1), || None), "there is no such vCPU");
        let mut taken = Vec::new();
        let ended = counts.take(|one| taken.push(one.counted));
        assert!(ended.is_empty());
        let all = taken.iter().map(|one| (one.parent, one.counts[3]));
        assert_eq!(all.collect::<Vec<_>>(), [(Some(parent), 30), (None, 3)]);
        counts.take(|_| panic!("they were taken"));
    }

    #[test]
    fn too_many_processes_are_counted_together() {
        let counts = ProcessCounts::new(1);
        for pid in 0..1000 {
            let is_urgent = counts.add(0, one(pid, 1), || None);
            assert_eq!(is_urgent, pid >= 127);
        }
        let mut taken = Vec::new();
        counts.take(|one| taken.push((one.counted.process.pid, one.counted.counts[3])));
        assert_eq!(taken.len(), CAPACITY);
        assert_eq!(taken.last(), Some(&(OTHERS, 1000 - 255)));
    }

    #[test]
    fn each_process_ends_once() {
        let counts = ProcessCounts::new(1);
        let process = KnownProcess {
            pid: 5,
            instance: None,
        };
        let mut version = 0;
        assert!(counts.watched(&mut version).is_none());
        counts.watch(vec![process]);
        assert_eq!(*counts.watched(&mut version).unwrap(), [process]);
        assert!(counts.watched(&mut version).is_none());
        counts.end(process);
        counts.end(process);
        assert_eq!(counts.take(|_| {}), [process]);
        assert!(counts.take(|_| {}).is_empty());
    }
}
