//! What a vCPU's thread stores at its ticks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use kvmprof_abi::profil::{RATE_HZ, State};
use kvmprof_devices::profiling::Phase;
use kvmprof_introspection::{ProcessFate, ProcessInstance, ProcessOrigin};
use kvmprof_recording::{Mode, Sample};

use super::process_memory::StoppedProcess;
use super::{Account, ProfiledProcess, ProfiledProcesses, WatchedProcess};
use crate::vcpu::{SEARCH_PERIOD, StoppedVcpu, in_turn};

/// Maximum number of watched processes that are looked at when a vCPU is asked something: each may take a search.
const MAX_LOOKS: usize = 16;

/// Stores the ticks of one vCPU that find a profiled process in user mode.
#[derive(Debug)]
pub struct VcpuStores {
    processes: Arc<ProfiledProcesses>,
    phase: Phase,
    /// The list of processes as of this version.
    version: u64,
    list: Arc<[Arc<ProfiledProcess>]>,
    watched: Arc<[Arc<WatchedProcess>]>,
    /// The process of the last tick in user mode, and its profile if it has one.
    last: Option<(ProcessInstance, Option<Arc<ProfiledProcess>>)>,
    ticks: u64,
}

impl VcpuStores {
    /// Stores ticks of `processes`.
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

    /// The clock runs at `hz` ticks a second from now on.
    pub fn set_hz(&mut self, hz: u32) {
        self.phase = Phase::new(hz, RATE_HZ);
    }

    /// So many ticks have passed that took no sample.
    pub fn pass(&mut self, ticks: u64) {
        self.phase.pass(ticks);
    }

    /// A tick has found `sample` on `vcpu`.
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
            _ => self.find(&instance, vcpu),
        };
        if let Some(process) = &process {
            let mut memory = StoppedProcess {
                memory: vcpu.memory,
                registers: vcpu.registers,
                introspector: vcpu.introspector,
            };
            let profile = &mut process.account().profile;
            if is_counted || profile.takes_every_tick() {
                profile.tick(sample.pc, &mut memory);
            } else {
                profile.try_waiting(&mut memory);
            }
        }
        self.last = Some((instance, process));
    }

    /// Whether processes are watched, which are to be looked at now and then also while no tick comes.
    pub fn are_watching(&mut self) -> bool {
        self.follow();
        !self.watched.is_empty()
    }

    /// Looks at `time` whether watched processes live, a few in turn, from `vcpu`, which may have been halted for long.
    pub fn look(&mut self, vcpu: StoppedVcpu<'_>, time: u64) {
        for _ in 0..self.watched.len().min(MAX_LOOKS) {
            self.ticks += 1;
            if let Some((process, _)) = in_turn(&self.watched, self.ticks) {
                process.check(vcpu, time);
            }
        }
    }

    /// Takes the newest lists of processes.
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
    fn find(
        &self,
        instance: &ProcessInstance,
        vcpu: StoppedVcpu<'_>,
    ) -> Option<Arc<ProfiledProcess>> {
        let origin = vcpu.introspector.origin(vcpu.memory, vcpu.registers);
        let newest = self.list.iter().rev();
        for process in newest.filter(|process| process.pid == instance.pid) {
            let mut account = process.account();
            if account.ended.is_some() {
                continue;
            }
            let known = account.instance;
            let is_known = known.is_none_or(|known| known.is_same(instance));
            if is_known && known.is_none() && origin.is_none() && process.program != [0; 16] {
                // Its program can't be told now. Until it can, this may be another one.
                return None;
            }
            let has_executed = known.is_some_and(|known| known.programs != instance.programs)
                || origin.is_some_and(|origin| !process.has_program(&origin.program));
            if !is_known {
                account.end(State::Ended);
            } else if has_executed {
                account.end(State::Executed);
            } else {
                account.instance = Some(*instance);
                return Some(Arc::clone(process));
            }
        }
        self.find_forked(instance, &origin?)
    }

    /// The profile of a process that a profiled one has forked, which hasn't run before. Its parent has to be that one: other
    /// processes with the same program may have other rights.
    fn find_forked(
        &self,
        instance: &ProcessInstance,
        origin: &ProcessOrigin,
    ) -> Option<Arc<ProfiledProcess>> {
        let ProcessOrigin { program, parent } = origin;
        if *program == [0; 16] {
            return None;
        }
        let has_forked = |process: &&Arc<ProfiledProcess>| {
            let account = process.account();
            let is_parent = match &account.instance {
                Some(known) => known.is_same(parent),
                // No tick has met the one that was on under this pid; who was started before is the same.
                None => parent.started <= account.on_from,
            };
            process.pid == parent.pid
                && process.program == *program
                && is_parent
                && account.was_on_at(instance.started)
        };
        let relative = self.list.iter().find(has_forked)?;
        let account = relative.account();
        let forked = ProfiledProcess {
            pid: instance.pid,
            program: *program,
            account: Mutex::new(Account {
                profile: account.profile.fork(),
                instance: Some(*instance),
                on_from: instance.started,
                on_until: u64::MAX,
                ended: None,
            }),
        };
        drop(account);
        self.processes.add(forked).ok()
    }

    /// Looks whether one of the processes still lives, in turn.
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

    /// Looks at `time` whether one of the watched processes still lives, in turn.
    fn check_watched(&self, vcpu: StoppedVcpu<'_>, time: u64) {
        if let Some((process, round)) = in_turn(&self.watched, self.ticks)
            && (process.is_found() || round.is_multiple_of(SEARCH_PERIOD))
        {
            process.check(vcpu, time);
        }
    }
}

impl ProfiledProcess {
    /// Whether its program can be the one with these bytes.
    fn has_program(&self, program: &[u8; 16]) -> bool {
        self.program == [0; 16] || self.program == *program
    }
}
