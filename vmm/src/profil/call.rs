//! Calls of profil(2) and pcsample(2).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Range, State};
use kvmprof_devices::profiling::Profile;

use super::{Account, MAX_PROCESSES, ProfiledProcess, ProfiledProcesses, UNKNOWN};

impl ProfiledProcesses {
    /// Carries out `call`, with its `ranges`. Returns what the function returns.
    ///
    /// # Errors
    /// EINVAL for what the function's page refuses; ENOSPC if too many processes are profiled. Nothing has changed then.
    pub fn call(&self, call: &Call, ranges: &[Range]) -> Result<i64, Errno> {
        let result = self.carry_out(call, ranges);
        self.off_at.store(UNKNOWN, Ordering::Relaxed);
        result
    }

    fn carry_out(&self, call: &Call, ranges: &[Range]) -> Result<i64, Errno> {
        if let Some(process) = self.newest(call.pid) {
            let mut account = process.account();
            // Another program has this pid now, or another process.
            if account.ended.is_none() && process.program != call.program {
                account.end(State::Executed);
            }
            if account.ended.is_none() {
                return account.call(call, ranges);
            }
        }
        let mut account = Account {
            profile: Profile::default(),
            instance: None,
            on_from: u64::MAX,
            on_until: 0,
            ended: None,
        };
        let returned = account.call(call, ranges)?;
        if account.profile.is_on() {
            self.add(ProfiledProcess {
                pid: call.pid,
                program: call.program,
                account: Mutex::new(account),
            })?;
        }
        Ok(returned)
    }

    /// Adds a process. If the list is full, the process replaces one whose ticks aren't stored.
    ///
    /// # Errors
    /// ENOSPC if the list is full, and the ticks of all its processes are stored.
    pub(super) fn add(&self, process: ProfiledProcess) -> Result<Arc<ProfiledProcess>, Errno> {
        let process = Arc::new(process);
        let mut result = Ok(Arc::clone(&process));
        self.change(|list| {
            if list.len() >= MAX_PROCESSES {
                let mut all = list.iter();
                match all.position(|process| !process.account().profile.is_on()) {
                    Some(off) => drop(list.remove(off)),
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

impl Account {
    fn call(&mut self, call: &Call, ranges: &[Range]) -> Result<i64, Errno> {
        let was_on = self.profile.is_on();
        let returned = self.profile.call(call, ranges)?;
        if self.profile.is_on() && !was_on {
            (self.on_from, self.on_until) = (call.time, u64::MAX);
        } else if was_on && !self.profile.is_on() {
            self.on_until = call.time;
        }
        Ok(returned)
    }
}
