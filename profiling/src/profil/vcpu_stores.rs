//! Stores that a vCPU's thread makes at its ticks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvmprof_abi::profil::{RATE_HZ, State};
use kvmprof_devices::profiling::Phase;
use kvmprof_introspection::{ProcessFate, ProcessInstance};
use kvmprof_recording::{Mode, Sample};

use super::{ProfiledProcess, ProfiledProcesses, WatchedProcess};
use crate::sampling::{SEARCH_PERIOD, StoppedVcpu, in_turn};

/// Maximum number of watched processes that are checked at a request to a vCPU, because each may take a search.
const MAX_LOOKS: usize = 16;

/// Stores the ticks of one vCPU at which a profiled process is in user mode.
#[derive(Debug)]
pub struct VcpuStores {
    processes: Arc<ProfiledProcesses>,
    phase: Phase,
    /// The version of the lists below.
    version: u64,
    list: Arc<[Arc<ProfiledProcess>]>,
    watched: Arc<[Arc<WatchedProcess>]>,
    /// The process of the last tick in user mode, and its profile if it has one.
    last: Option<(ProcessInstance, Option<Arc<ProfiledProcess>>)>,
    ticks: u64,
}

/// The profile of the process of a tick.
enum ProfileLookup {
    /// The profile; `None` if the process isn't profiled.
    Known(Option<Arc<ProfiledProcess>>),
    /// What the process is can't be read at the moment.
    Unknown,
}

impl VcpuStores {
    /// The stores of a vCPU for `processes`.
    pub fn new(processes: Arc<ProfiledProcesses>) -> Self {
        Self {
            processes,
            phase: Phase::new(0, RATE_HZ),
            version: 0,
            list: Arc::default(),
            watched: Arc::default(),
            last: None,
            ticks: 0,
        }
    }

    /// Notes that the clock runs at `hz` ticks a second from now on.
    pub fn set_hz(&mut self, hz: u32) {
        self.phase = Phase::new(hz, RATE_HZ);
    }

    /// Notes that `ticks` ticks have passed without a sample.
    pub fn pass(&mut self, ticks: u64) {
        self.phase.pass(ticks);
    }

    /// Stores a tick that has taken `sample` on `vcpu`, and checks one process in turn.
    pub fn tick(&mut self, sample: &Sample, vcpu: StoppedVcpu<'_>) {
        let is_counted = self.phase.pass(1) == 1;
        self.follow();
        if self.list.is_empty() && self.watched.is_empty() {
            return;
        }
        self.ticks += 1;
        self.check_one(vcpu);
        self.check_watched(vcpu, sample.time);
        if sample.mode != Mode::User {
            return;
        }
        let instance = (vcpu.introspector).instance(vcpu.memory, vcpu.registers, sample.pid);
        let Some(instance) = instance else {
            return;
        };
        let watched = self.watched.iter();
        for process in watched.filter(|process| process.pid() == instance.pid) {
            process.meet(&instance, sample.time);
        }
        if self.list.is_empty() {
            return;
        }
        let process = match &self.last {
            Some((last, process)) if *last == instance => process.clone(),
            _ => match self.find(&instance, vcpu) {
                ProfileLookup::Known(process) => process,
                // It may be readable at the next tick.
                ProfileLookup::Unknown => {
                    self.last = None;
                    return;
                }
            },
        };
        if let Some(process) = &process {
            let mut memory = vcpu;
            let profile = &mut process.account().profile;
            if is_counted || profile.takes_every_tick() {
                profile.tick(sample.pc, &mut memory);
            } else {
                profile.try_waiting(&mut memory);
            }
        }
        self.last = Some((instance, process));
    }

    /// Whether processes are watched. They have to be checked from time to time, even if there are no ticks.
    pub fn are_watching(&mut self) -> bool {
        self.follow();
        !self.watched.is_empty()
    }

    /// Checks at `time` whether watched processes still live, a few in turn. `vcpu` may have been halted for long.
    pub fn look(&mut self, vcpu: StoppedVcpu<'_>, time: u64) {
        for _ in 0..self.watched.len().min(MAX_LOOKS) {
            self.ticks += 1;
            if let Some((process, _)) = in_turn(&self.watched, self.ticks) {
                process.check(vcpu, time);
            }
        }
    }

    /// Updates the lists of processes.
    fn follow(&mut self) {
        let version = self.processes.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.list = self.processes.current();
            self.watched = self.processes.watched();
            self.last = None;
        }
    }

    /// The profile of the process that the vCPU runs.
    fn find(&self, instance: &ProcessInstance, vcpu: StoppedVcpu<'_>) -> ProfileLookup {
        let origin = vcpu.processes().and_then(|processes| processes.origin());
        let newest = self.list.iter().rev();
        for process in newest.filter(|process| process.pid == instance.pid) {
            let mut account = process.account();
            if account.ended.is_some() {
                continue;
            }
            let known = account.instance;
            let is_known = known.is_none_or(|known| known.is_same(instance));
            let is_checked = account.is_checked || process.program == [0; 16];
            if is_known && !is_checked && origin.is_none() {
                // The process's program can't be determined now. It may be another one.
                return ProfileLookup::Unknown;
            }
            let has_executed = known.is_some_and(|known| known.programs != instance.programs)
                || origin.is_some_and(|origin| !process.has_program(&origin.program));
            if !is_known {
                account.end(State::Ended);
            } else if has_executed {
                account.end(State::Executed);
            } else {
                account.instance = Some(*instance);
                account.is_checked = true;
                return ProfileLookup::Known(Some(Arc::clone(process)));
            }
        }
        match origin {
            Some(origin) => {
                ProfileLookup::Known((self.processes).find_forked(&self.list, instance, &origin))
            }
            None => ProfileLookup::Unknown,
        }
    }

    /// Checks whether one of the processes still lives, in turn.
    fn check_one(&self, vcpu: StoppedVcpu<'_>) {
        let Some((process, round)) = in_turn(&self.list, self.ticks) else {
            return;
        };
        let mut account = process.account();
        if account.ended.is_some() {
            return;
        }
        match vcpu.fate(process.pid, account.instance.as_ref(), round) {
            Some(ProcessFate::Ended) => account.end(State::Ended),
            Some(ProcessFate::Executed) => account.end(State::Executed),
            Some(ProcessFate::Lives) | None => {}
        }
    }

    /// Checks at `time` whether one of the watched processes still lives, in turn.
    fn check_watched(&self, vcpu: StoppedVcpu<'_>, time: u64) {
        if let Some((process, round)) = in_turn(&self.watched, self.ticks)
            && (process.is_found() || round.is_multiple_of(SEARCH_PERIOD))
        {
            process.check(vcpu, time);
        }
    }
}

impl ProfiledProcess {
    /// Whether the process's program can be the one with these bytes.
    fn has_program(&self, program: &[u8; 16]) -> bool {
        self.program == [0; 16] || self.program == *program
    }
}
