//! Processes whose ticks are counted elsewhere: what counts them learns here when the process ends, or executes another program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::State;
use kvmprof_introspection::{ProcessFate, ProcessInstance};

use super::{MAX_PROCESSES, ProfiledProcesses};
use crate::lock::lock;
use crate::vcpu::StoppedVcpu;

/// A search that doesn't find a process is repeated before that is believed: other vCPUs change the list meanwhile.
const SEARCHES: u32 = 2;

/// A process that is watched.
#[derive(Debug)]
pub struct WatchedProcess {
    pid: i32,
    found: Mutex<Found>,
    /// Whether an end has been found: who follows very many asks for no lock.
    has_ended: AtomicBool,
}

/// What is known of a [`WatchedProcess`].
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The process, once it was found.
    instance: Option<ProcessInstance>,
    /// Searches that have found no such process.
    missed: u32,
    end: Option<ProgramEnd>,
}

/// The end of the program that a watched process has executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramEnd {
    /// Why: [`State::Executed`] or [`State::Ended`].
    pub state: State,
    /// Ticks from this time on, in ns of CLOCK_MONOTONIC, aren't the program's.
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

    /// The end of its program, if it has been noticed. Its ticks until then have been handed over.
    pub fn end(&self) -> Option<ProgramEnd> {
        if !self.has_ended.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.found).end
    }

    /// Its program has ended, as `found` has it.
    fn end_at(&self, found: &mut Found, state: State, time: u64) {
        found.end_at(state, time);
        self.has_ended.store(true, Ordering::Release);
    }

    /// A tick at `time` has met `instance`, whose pid is this one's, in user mode.
    pub(crate) fn meet(&self, instance: &ProcessInstance, time: u64) {
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

    /// Looks at `time` whether it lives, from `vcpu`, which may run anything.
    pub(super) fn check(&self, vcpu: StoppedVcpu<'_>, time: u64) {
        // Not locked while it is looked for: ticks go on.
        let before = *lock(&self.found);
        if before.end.is_some() {
            return;
        }
        let StoppedVcpu {
            memory,
            registers,
            introspector,
        } = vcpu;
        if let Some(instance) = before.instance {
            let state = match introspector.fate(memory, registers, &instance) {
                Some(ProcessFate::Ended) => State::Ended,
                Some(ProcessFate::Executed) => State::Executed,
                Some(ProcessFate::Lives) | None => return,
            };
            self.end_at(&mut lock(&self.found), state, time);
            return;
        }
        let searched = introspector.find_process(memory, registers, self.pid);
        let mut found = lock(&self.found);
        match searched {
            Some(Some(instance)) => {
                found.instance.get_or_insert(instance);
            }
            Some(None) => {
                found.missed += 1;
                if found.missed >= SEARCHES && found.instance.is_none() {
                    self.end_at(&mut found, State::Ended, time);
                }
            }
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

impl Found {
    /// Of two vCPUs that notice an end, the one whose tick was first is right about its time.
    fn end_at(&mut self, state: State, time: u64) {
        let end = self.end.get_or_insert(ProgramEnd { state, time });
        end.time = end.time.min(time);
    }
}

/// Has a process watched until this is dropped.
#[derive(Debug)]
pub struct Watch {
    processes: Arc<ProfiledProcesses>,
    process: Arc<WatchedProcess>,
}

impl Watch {
    /// Watches process `pid`.
    ///
    /// # Errors
    /// ENOSPC when too many are watched.
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

    /// The process.
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
            // Of another vCPU, which was slower to tell.
            process.meet(&other, 30);
            process.meet(&instance(5, 1), 50);
            assert_eq!(process.end(), Some(ProgramEnd { state, time: 30 }));
        }
    }

    #[test]
    fn no_more_are_watched_than_can_be_looked_at() {
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
