//! What forked processes inherit.
//!
//! A process that is forked while its parent's profile is on has that profile, too, with its own copy of the buffer. kvmprof isn't notified
//! of forks: the process is found by its first tick in user mode, or in the kernel's list of processes before any process makes a call. A
//! call can turn off an inherited profile, or change what others inherit, so all processes that were forked before it get theirs first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kvmprof_abi::profil::{Call, State};
use kvmprof_introspection::{ListedProcess, ProcessInstance, ProcessOrigin};

use super::{Account, ProfiledProcess, ProfiledProcesses};

/// Number of calls at which a process wasn't in the guest's list, after which it has ended: others may change the list while it is read.
const MISSES: u32 = 2;

impl ProfiledProcesses {
    /// Gives the processes in `all`, those of the guest, what they have inherited, and ends the profiles of processes that have ended or
    /// have executed another program. Without any process, nothing is known of them.
    pub(super) fn settle(&self, all: &[ListedProcess]) {
        let list = self.current();
        if all.is_empty() || list.is_empty() {
            return;
        }
        let mut profiled: BTreeMap<i32, Vec<Arc<ProfiledProcess>>> = BTreeMap::new();
        for process in list.iter() {
            profiled
                .entry(process.pid)
                .or_default()
                .push(Arc::clone(process));
        }
        let mut missing: BTreeMap<i32, Vec<Arc<ProfiledProcess>>> = profiled.clone();
        // A parent comes before those that it has forked.
        for one in all {
            missing.remove(&one.process.pid);
            let own = profiled.get(&one.process.pid);
            if own.is_some_and(|own| own.iter().any(|own| own.is_still(&one.process))) {
                continue;
            }
            // What has its parent's memory has no profile of its own, unless it asks for one: the parent's call turns off both.
            if one.shares_memory {
                continue;
            }
            let mut parents = profiled.get(&one.parent.pid).into_iter().flatten();
            let heir = parents.find_map(|parent| Some((parent, parent.heir(one)?)));
            let Some((parent, heir)) = heir else {
                continue;
            };
            match self.add(Arc::new(heir)) {
                Ok(added) => profiled.entry(added.pid).or_default().push(added),
                // Without room for it the process isn't profiled, and not later either: nobody remembers what it turns off.
                Err(_) => parent.account().disinherit(one.process.started),
            }
        }
        for process in missing.values().flatten() {
            process.account().miss();
        }
    }

    /// Notes that the caller of `call` has turned its profile off, and there is no room to remember that: no process of its family that was
    /// started until then inherits one any more.
    pub(super) fn disinherit(&self, call: &Call) {
        let (own, unknown) = (call.program, [0; 16]);
        for process in self.current().iter() {
            if own == unknown || process.program == unknown || process.program == own {
                process.account().disinherit(call.time);
            }
        }
    }

    /// Adds the profile of a process that a profiled process has forked, and that hasn't run before. The profiled process has to be its
    /// parent: other processes with the same program may have other rights. A process with its parent's memory has its parent's profile.
    pub(super) fn find_forked(
        &self,
        list: &[Arc<ProfiledProcess>],
        instance: &ProcessInstance,
        origin: &ProcessOrigin,
    ) -> Option<Arc<ProfiledProcess>> {
        if origin.program == [0; 16] {
            return None;
        }
        let one = ListedProcess {
            process: *instance,
            parent: origin.parent,
            may_be_adopted: origin.may_be_adopted,
            shares_memory: origin.shares_memory,
        };
        let of_program = list.iter().filter(|other| other.program == origin.program);
        let mut heirs = of_program.filter_map(|other| Some((other, other.heir(&one)?)));
        let (parent, heir) = heirs.next()?;
        if one.shares_memory {
            // A call of its own may have come after `list` was read.
            let own = self.newest(instance.pid);
            let own = own.filter(|own| own.account().ended.is_none());
            return Some(own.unwrap_or_else(|| Arc::clone(parent)));
        }
        let added = self.add(Arc::new(heir)).ok()?;
        // A call of the process may have come first, or another vCPU.
        let known = added.account().instance;
        let is_it =
            known.is_none_or(|known| known.is_same(instance)) && added.program == origin.program;
        is_it.then_some(added)
    }
}

impl ProfiledProcess {
    /// Whether this is the profile of `process`, or was: what has ended isn't inherited again. If the process has executed another program
    /// since, or is another one with the pid, the profile ends.
    fn is_still(&self, process: &ProcessInstance) -> bool {
        let mut account = self.account();
        if account.ended.is_some() {
            let is_it = |known: ProcessInstance| {
                known.is_same(process) && known.programs == process.programs
            };
            return account.instance.is_some_and(is_it);
        }
        account.missed = 0;
        match account.instance {
            Some(known) if !known.is_same(process) => account.end(State::Ended),
            Some(known) if known.programs != process.programs => account.end(State::Executed),
            Some(_) | None => return true,
        }
        false
    }

    /// The profile that `one` has inherited from this process, if this is the process that has forked it.
    fn heir(&self, one: &ListedProcess) -> Option<Self> {
        let account = self.account();
        let is_parent = match account.instance {
            // A program that the child has executed since counts, too.
            Some(known) => known.is_same(&one.parent) && known.programs == one.process.programs,
            // A process that was started before the profile is that process.
            None => one.parent.started <= account.on_from,
        };
        // Another process of the family, which isn't profiled, may have forked it and ended.
        let is_sure = !(one.may_be_adopted && account.has_others);
        // What was on at the end of the process was on until then.
        let is_on = account.profile.is_inherited() || account.ended.is_some();
        let is_heir = self.pid == one.parent.pid
            && is_parent
            && is_sure
            && is_on
            && account.on_from <= one.process.started;
        is_heir.then(|| Self {
            pid: one.process.pid,
            program: self.program,
            account: Mutex::new(Account {
                profile: account.profile.fork(),
                is_heir: true,
                ..Account::new(Some(one.process), one.process.started)
            }),
        })
    }
}

impl Account {
    /// Notes that processes that were started until `time`, in ns of the guest's CLOCK_MONOTONIC, inherit nothing.
    fn disinherit(&mut self, time: u64) {
        self.on_from = self.on_from.max(time.saturating_add(1));
    }

    /// Notes that the process wasn't in the guest's list.
    fn miss(&mut self) {
        self.missed += 1;
        if self.missed >= MISSES && self.ended.is_none() {
            self.end(State::Ended);
        }
    }
}
