//! The counting of a vCPU's thread for processes.

use std::sync::Arc;

use kvmprof_abi::pmc::{COUNTERS, CounterId, CounterSource};
use kvmprof_devices::profiling::pmc::{Counted, Parent, ProcessKey};
use kvmprof_introspection::{ProcessFate, ProcessInstance};

use super::processes::{CountedProcess, KnownProcess, ProcessCounts};
use super::sources::{Source, VcpuSources};
use crate::sampling::{GuestExit, StoppedVcpu, in_turn};

/// Maximum number of searches for processes at one request to a vCPU.
const MAX_SEARCHES: usize = 16;

/// Counts the events of one vCPU, on its thread, for the process that runs there.
///
/// KVM's counters are read at each exit that the guest causes and at each tick. Other counters whose values grow by themselves are
/// read only at ticks: some processes cause more exits than others, and would be charged for the others' time.
#[derive(Debug)]
pub struct VcpuCounting {
    vcpu: usize,
    sources: Arc<VcpuSources>,
    counts: Arc<ProcessCounts>,
    /// The values at the last reading, of the counters whose bits are set in `known`.
    last: [u64; COUNTERS],
    known: u32,
    version: u64,
    watched: Arc<[KnownProcess]>,
    ticks: u64,
}

impl VcpuCounting {
    /// The counting for the vCPU with this index, into `counts`.
    pub fn new(vcpu: usize, sources: Arc<VcpuSources>, counts: Arc<ProcessCounts>) -> Self {
        Self {
            vcpu,
            sources,
            counts,
            last: [0; COUNTERS],
            known: 0,
            version: 0,
            watched: Arc::default(),
            ticks: 0,
        }
    }

    /// Opens the requested counters of the processor. Call this when the vCPU was kicked.
    pub fn open_asked_for(&self) {
        self.sources.open_asked_for();
    }

    /// Whether anything is counted for processes.
    pub fn is_on(&self) -> bool {
        self.counts.wanted() != 0
    }

    /// Counts `exit` for process `pid` with the name `comm`. True if the counts should be taken soon.
    pub fn exited(
        &mut self,
        exit: GuestExit,
        pid: i32,
        comm: [u8; 16],
        vcpu: StoppedVcpu<'_>,
    ) -> bool {
        let counts = self.passed(|id| match Source::of(id) {
            Source::Exits(kind) => Some(u64::from(kind == exit)),
            _ if id.source() == CounterSource::Kvm => None,
            _ => Some(0),
        });
        self.add(pid, comm, counts, vcpu)
    }

    /// Counts a tick, which has found process `pid` with the name `comm`. True if the counts should be taken soon.
    pub fn tick(&mut self, pid: i32, comm: [u8; 16], vcpu: StoppedVcpu<'_>) -> bool {
        self.check_one(vcpu);
        if !self.is_on() {
            self.known = 0;
            return false;
        }
        let counts = self.passed(|id| match Source::of(id) {
            Source::Exits(_) => Some(0),
            Source::Ticks | Source::Interrupted => Some(1),
            Source::CpuTime | Source::Kvm(_) | Source::Hardware(_) => None,
        });
        self.add(pid, comm, counts, vcpu)
    }

    /// The growth of each counter since the last reading. `count` returns it, or `None` for a counter whose value has to
    /// be read.
    fn passed(&mut self, count: impl Fn(CounterId) -> Option<u64>) -> [u64; COUNTERS] {
        let wanted = self.counts.wanted();
        self.known &= wanted;
        let mut counts = [0; COUNTERS];
        let places = counts.iter_mut().zip(&mut self.last);
        for (id, (passed, last)) in CounterId::ALL.into_iter().zip(places) {
            if wanted & id.bit() == 0 {
                continue;
            }
            if let Some(count) = count(id) {
                *passed = count;
            } else if let Some(value) = self.sources.value_on_thread(id) {
                if self.known & id.bit() != 0 {
                    *passed = value.saturating_sub(*last);
                }
                *last = value;
                self.known |= id.bit();
            }
        }
        counts
    }

    fn add(
        &self,
        pid: i32,
        comm: [u8; 16],
        counts: [u64; COUNTERS],
        vcpu: StoppedVcpu<'_>,
    ) -> bool {
        if counts.iter().all(|count| *count == 0) {
            return false;
        }
        let processes = vcpu.processes();
        let instance = (processes.as_ref())
            .and_then(|processes| processes.running())
            .unwrap_or(ProcessInstance::from_pid(pid));
        let counted = Counted {
            process: process_key(&instance),
            parent: None,
            comm,
            counts,
        };
        let parent = || {
            let (parent, may_have_adopted) = processes.as_ref()?.parent()?;
            Some(Parent {
                key: process_key(&parent),
                may_have_adopted,
            })
        };
        let one = CountedProcess { instance, counted };
        self.counts.add(self.vcpu, one, parent)
    }

    /// Whether processes have counters, so that their ends have to be detected.
    pub fn are_watching(&mut self) -> bool {
        self.follow();
        !self.watched.is_empty()
    }

    /// Checks whether the processes that have counters still live. Some need a search, such as those that have never been seen: only a part
    /// of these is checked.
    pub fn look(&self, vcpu: StoppedVcpu<'_>) {
        let mut searches = 0;
        let processes = vcpu.processes();
        for process in self.watched.iter() {
            let instance = process.instance.as_ref();
            let lives = |instance| processes.as_ref()?.lives(instance);
            match instance.and_then(lives) {
                Some(true) => {}
                Some(false) => self.counts.end(*process),
                None if searches < MAX_SEARCHES => {
                    searches += 1;
                    self.check(process, 0, vcpu);
                }
                None => {}
            }
        }
    }

    /// Takes the newest list of processes.
    fn follow(&mut self) {
        if let Some(watched) = self.counts.watched(&mut self.version) {
            self.watched = watched;
        }
    }

    fn check(&self, process: &KnownProcess, turns: u64, vcpu: StoppedVcpu<'_>) {
        let fate = vcpu.fate(process.pid, process.instance.as_ref(), turns);
        if fate == Some(ProcessFate::Ended) {
            self.counts.end(*process);
        }
    }

    /// Checks whether one of the processes, in turn, still lives.
    fn check_one(&mut self, vcpu: StoppedVcpu<'_>) {
        self.follow();
        self.ticks += 1;
        if let Some((process, turns)) = in_turn(&self.watched, self.ticks) {
            self.check(process, turns, vcpu);
        }
    }
}

/// The key of a process.
pub fn process_key(instance: &ProcessInstance) -> ProcessKey {
    ProcessKey {
        pid: instance.pid,
        started: instance.started,
    }
}
