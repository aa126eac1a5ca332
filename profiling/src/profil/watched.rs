//! Watched processes: the ends of processes, or of their programs, for consumers that count ticks of processes elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::State;
use kvmprof_introspection::{ProcessFate, ProcessInstance};

use super::{MAX_PROCESSES, ProfiledProcesses};
use crate::sampling::StoppedVcpu;
use kvmprof_machine::lock::lock;

/// Number of searches without a result after which a process has ended: other vCPUs may change the guest's list during a search.
const SEARCHES: u32 = 2;

/// A watched process.
#[derive(Debug)]
pub struct WatchedProcess {
    pid: i32,
    found: Mutex<WatchedState>,
    /// Whether `found` has an end. Those who follow very many processes check this without a lock.
    has_ended: AtomicBool,
}

/// What is known of a [`WatchedProcess`].
#[derive(Clone, Copy, Debug, Default)]
struct WatchedState {
    /// The process, once it has been found.
    instance: Option<ProcessInstance>,
    /// Number of searches that haven't found the process.
    missed: u32,
    end: Option<ProgramEnd>,
}

/// The end of the program that a watched process has executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramEnd {
    /// The reason: [`State::Executed`] or [`State::Ended`].
    pub state: State,
    /// The time of the end, in ns of CLOCK_MONOTONIC. Ticks from then on aren't those of the program.
    pub time: u64,
}

impl WatchedProcess {
    fn new(pid: i32) -> Self {
        Self {
            pid,
            found: Mutex::default(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// The end of the process's program, if it has been detected. The program's ticks until then have been delivered.
    pub fn end(&self) -> Option<ProgramEnd> {
        if !self.has_ended.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.found).end
    }

    /// Notes in `found`, which is that of this process, that the program has ended.
    fn end_at(&self, found: &mut WatchedState, state: State, time: u64) {
        found.end_at(state, time);
        self.has_ended.store(true, Ordering::Release);
    }

    /// Notes that the guest restarts at `time`.
    pub(super) fn end_with_guest(&self, time: u64) {
        self.end_at(&mut lock(&self.found), State::Ended, time);
    }

    /// Notes that a tick at `time` has found `instance`, which has this process's pid, in user mode.
    pub fn meet(&self, instance: &ProcessInstance, time: u64) {
        let mut found = lock(&self.found);
        match found.instance {
            None => found.instance = Some(*instance),
            Some(known) if !known.is_same(instance) => {
                self.end_at(&mut found, State::Ended, time);
            }
            Some(known) if known.programs != instance.programs => {
                self.end_at(&mut found, State::Executed, time);
            }
            Some(_) => {}
        }
    }

    /// Checks at `time` whether the process lives, from `vcpu`, which may run any process.
    pub(super) fn check(&self, vcpu: StoppedVcpu<'_>, time: u64) {
        // The lock isn't held during the search, so that ticks don't wait for it.
        let before = *lock(&self.found);
        if before.end.is_some() {
            return;
        }
        let processes = vcpu.processes();
        if let Some(instance) = before.instance {
            let state = match processes.and_then(|processes| processes.fate(&instance)) {
                Some(ProcessFate::Ended) => State::Ended,
                Some(ProcessFate::Executed) => State::Executed,
                Some(ProcessFate::Lives) | None => return,
            };
            self.end_at(&mut lock(&self.found), state, time);
            return;
        }
        let searched = processes.and_then(|processes| processes.find(self.pid));
        let mut found = lock(&self.found);
        match searched {
            Some(Some(instance)) => {
                found.instance.get_or_insert(instance);
            }
            Some(None) if found.miss(before.missed) => {
                self.end_at(&mut found, State::Ended, time);
            }
            Some(None) => {}
            None => {}
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn is_found(&self) -> bool {
        lock(&self.found).instance.is_some()
    }
}

impl WatchedState {
    /// Notes that a search that began after `missed` others hasn't found the process. True if there have been enough of them.
    ///
    /// Searches of several vCPUs at the same time count as one: the same change of the guest's list can hide the process from all of them.
    fn miss(&mut self, missed: u32) -> bool {
        if self.missed == missed {
            self.missed += 1;
        }
        self.missed >= SEARCHES && self.instance.is_none()
    }

    /// Notes an end. If two vCPUs detect an end, the time of the earlier tick is right.
    fn end_at(&mut self, state: State, time: u64) {
        let end = self.end.get_or_insert(ProgramEnd { state, time });
        end.time = end.time.min(time);
    }
}

/// The watch of a process, which ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    processes: Arc<ProfiledProcesses>,
    process: Arc<WatchedProcess>,
}

impl Watch {
    /// Watches process `pid`.
    ///
    /// # Errors
    /// ENOSPC if too many processes are watched.
    pub fn begin(processes: &Arc<ProfiledProcesses>, pid: i32) -> Result<Self, Errno> {
        let process = Arc::new(WatchedProcess::new(pid));
        let mut is_full = false;
        processes.change_watched(|list| {
            is_full = list.len() >= MAX_PROCESSES;
            if !is_full {
                list.push(Arc::clone(&process));
            }
        });
        if is_full {
            return Err(Errno::ENOSPC);
        }
        Ok(Self {
            processes: Arc::clone(processes),
            process,
        })
    }

    /// The watched process.
    pub fn process(&self) -> &WatchedProcess {
        &self.process
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let process = &self.process;
        (self.processes).change_watched(|list| list.retain(|other| !Arc::ptr_eq(other, process)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(started: u64, programs: u64) -> ProcessInstance {
        let mut instance = ProcessInstance::from_pid(7);
        (instance.started, instance.programs) = (started, programs);
        instance
    }

    #[test]
    fn a_program_ends_with_the_first_tick_of_another_one() {
        for (other, state) in [
            (instance(5, 2), State::Executed),
            (instance(6, 1), State::Ended),
        ] {
            let process = WatchedProcess::new(7);
            process.meet(&instance(5, 1), 10);
            process.meet(&instance(5, 1), 20);
            assert_eq!(process.end(), None);
            process.meet(&other, 40);
            // Another vCPU has detected the end earlier, and reports it later.
            process.meet(&other, 30);
            process.meet(&instance(5, 1), 50);
            assert_eq!(process.end(), Some(ProgramEnd { state, time: 30 }));
        }
    }

    #[test]
    fn searches_at_the_same_time_count_as_one() {
        let mut found = WatchedState::default();
        let [first, second] = [found.missed; 2];
        assert!(!found.miss(first) && !found.miss(second));
        let third = found.missed;
        assert!(found.miss(third));
        found.instance = Some(instance(5, 1));
        assert!(!found.miss(found.missed));
    }

    #[test]
    fn watched_processes_are_bounded() {
        let processes = Arc::new(ProfiledProcesses::default());
        let all = (1..).map_while(|pid| Watch::begin(&processes, pid).ok());
        let mut all: Vec<Watch> = all.collect();
        assert_eq!(all.len(), MAX_PROCESSES);
        all.pop();
        assert!(Watch::begin(&processes, 1).is_ok());
        drop(all);
        assert!(processes.watched().is_empty());
    }
}
