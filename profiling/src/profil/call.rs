//! Calls of profil(2) and pcsample(2).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Range, State};
use kvmprof_introspection::{ListedProcess, ProcessInstance};

use super::{Account, MAX_PROCESSES, ProfiledProcess, ProfiledProcesses, UNKNOWN};

impl ProfiledProcesses {
    /// Carries out `call`, with its `ranges`. Returns what the function returns. `all` are the guest's processes now: none in guests in which
    /// a process is its pid, `None` if they are unknown.
    ///
    /// # Errors
    /// EINVAL for what the function's page refuses; ENOSPC if too many processes are profiled to turn on another one. No profile has changed
    /// then.
    pub fn call(
        &self,
        call: &Call,
        ranges: &[Range],
        all: Option<&[ListedProcess]>,
    ) -> Result<i64, Errno> {
        let result = self.carry_out(call, ranges, all);
        self.off_at.store(UNKNOWN, Ordering::Relaxed);
        result
    }

    fn carry_out(
        &self,
        call: &Call,
        ranges: &[Range],
        all: Option<&[ListedProcess]>,
    ) -> Result<i64, Errno> {
        // The caller, and those that it has forked, inherit what is on until now.
        self.settle(all.unwrap_or_default());
        let caller = Caller::find(call, all);
        if let Some(process) = self.newest(call.pid) {
            // Another program has this pid now, or another process.
            if call.program != [0; 16] && process.program != call.program {
                let mut account = process.account();
                if account.ended.is_none() {
                    account.end(State::Executed);
                }
            }
            if let Some(result) = self.call_of(&process, call, ranges, caller) {
                return result;
            }
        }
        let mut account = Account::new(caller.instance, call.time);
        account.is_heir = caller.may_be_heir;
        let returned = account.call(call, ranges, caller)?;
        // A process that may have inherited a profile is remembered, or a tick would give it what it has turned off.
        let is_needed = account.profile.is_on() || caller.may_be_heir && !self.current().is_empty();
        if !is_needed {
            return Ok(returned);
        }
        let process = Arc::new(ProfiledProcess {
            pid: call.pid,
            program: call.program,
            account: Mutex::new(account),
        });
        let added = match self.add(Arc::clone(&process)) {
            Err(_) if !process.account().profile.is_on() => {
                self.disinherit(call);
                return Ok(returned);
            }
            added => added?,
        };
        if !Arc::ptr_eq(&added, &process) {
            // A tick has found it meanwhile.
            return self.call_of(&added, call, ranges, caller).unwrap_or(Ok(0));
        }
        self.note_divergence(&process);
        Ok(returned)
    }

    /// Carries out `call` of `process`; `None` if that has ended.
    fn call_of(
        &self,
        process: &Arc<ProfiledProcess>,
        call: &Call,
        ranges: &[Range],
        caller: Caller,
    ) -> Option<Result<i64, Errno>> {
        let mut account = process.account();
        if account.ended.is_some() {
            return None;
        }
        let result = account.call(call, ranges, caller);
        drop(account);
        self.note_divergence(process);
        Some(result)
    }

    /// Notes that `process` has called: what it forks from now on isn't profiled as others of its family are.
    fn note_divergence(&self, process: &Arc<ProfiledProcess>) {
        if process.program == [0; 16] {
            return;
        }
        for other in self.current().iter() {
            if other.program == process.program && !Arc::ptr_eq(other, process) {
                other.account().has_others = true;
            }
        }
    }

    /// Adds a process. If one with its pid has been added already, returns that. If the list is full, the process replaces one that
    /// has ended, or else one that is off and hasn't inherited anything.
    ///
    /// # Errors
    /// ENOSPC if the list is full, and there is none to be replaced.
    pub(super) fn add(&self, process: Arc<ProfiledProcess>) -> Result<Arc<ProfiledProcess>, Errno> {
        let mut result = Ok(Arc::clone(&process));
        self.change(|list| {
            let mut newest = list.iter().rev();
            let is_it = |other: &&Arc<ProfiledProcess>| {
                other.pid == process.pid && other.account().ended.is_none()
            };
            if let Some(known) = newest.find(is_it) {
                result = Ok(Arc::clone(known));
                return;
            }
            if list.len() >= MAX_PROCESSES {
                let has_ended = |one: &Arc<ProfiledProcess>| one.account().ended.is_some();
                let is_off = |one: &Arc<ProfiledProcess>| {
                    let account = one.account();
                    !account.profile.is_on() && !account.is_heir
                };
                let ended = list.iter().position(has_ended);
                match ended.or_else(|| list.iter().position(is_off)) {
                    Some(index) => drop(list.remove(index)),
                    None => {
                        result = Err(Errno::ENOSPC);
                        return;
                    }
                }
            }
            list.push(process);
        });
        result
    }
}

/// The process that has made a call.
#[derive(Clone, Copy, Debug)]
struct Caller {
    /// `None` if it isn't in the list of the guest's processes.
    instance: Option<ProcessInstance>,
    /// Whether a tick would give it a profile that it doesn't have yet: it has its parent's memory, or it is unknown which process has forked
    /// it.
    may_be_heir: bool,
    /// Whether it has forked other processes, or that is unknown.
    has_others: bool,
}

impl Caller {
    fn find(call: &Call, all: Option<&[ListedProcess]>) -> Self {
        let listed = all.unwrap_or_default();
        // If it was started later than the call was made, the caller has ended.
        let is_it =
            |one: &&ListedProcess| one.process.pid == call.pid && one.process.started <= call.time;
        let caller = listed.iter().find(is_it);
        let instance = caller.map(|one| one.process);
        let is_unknown = instance.is_none() && (all.is_none() || !listed.is_empty());
        let has_forked = |one: &ListedProcess| instance.is_some_and(|it| it.is_same(&one.parent));
        Self {
            instance,
            may_be_heir: is_unknown || caller.is_some_and(|one| one.shares_memory),
            has_others: is_unknown || listed.iter().any(has_forked),
        }
    }
}

impl Account {
    fn call(&mut self, call: &Call, ranges: &[Range], caller: Caller) -> Result<i64, Errno> {
        let has_effect = self.profile.is_changed_by(call, ranges)?;
        let returned = self.profile.call(call, ranges)?;
        self.instance = self.instance.or(caller.instance);
        if has_effect {
            // Processes that were forked before have what was on until now.
            self.on_from = call.time;
            self.has_others = caller.has_others;
        }
        Ok(returned)
    }
}
