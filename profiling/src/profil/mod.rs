//! profil(2) and pcsample(2): the guest's profiled processes, and the stores into their memory.
//!
//! The event thread carries out calls ([`ProfiledProcesses`]). The thread of the vCPU that takes a tick stores it, while the vCPU stands
//! still ([`VcpuStores`]). Both share each process's [`Profile`] under a lock, which is held for no longer than a store takes.
//!
//! Buffers that the device keeps are filled elsewhere. The end of their processes is detected here ([`Watch`]).

mod call;
mod inheritance;
#[cfg(test)]
mod inheritance_tests;
mod process_memory;
mod vcpu_stores;
#[cfg(test)]
mod vcpu_stores_tests;
mod watched;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kvmprof_abi::profil::{State, Status};
use kvmprof_devices::profiling::Profile;
use kvmprof_introspection::ProcessInstance;

use kvmprof_machine::lock::lock;
pub use vcpu_stores::VcpuStores;
use watched::WatchedProcess;
pub use watched::{ProgramEnd, Watch};

/// Maximum number of processes that are profiled at once.
const MAX_PROCESSES: usize = 1024;
/// Time for which an ended process is remembered, because a process that it has forked may not have run yet.
const MEMORY_OF_ENDED: Duration = Duration::from_secs(2);

/// A process that is or was profiled.
#[derive(Debug)]
struct ProfiledProcess {
    pid: i32,
    /// The bytes that identify its program; all zeros if the program is unknown.
    program: [u8; 16],
    account: Mutex<Account>,
}

/// The state of a [`ProfiledProcess`].
#[derive(Debug)]
struct Account {
    profile: Profile,
    /// The process, once a call or a tick has found it.
    instance: Option<ProcessInstance>,
    /// Whether the process executes the program of the profile: a tick has compared the bytes that identify it.
    is_checked: bool,
    /// The time of the last call that has changed the profile, in ns of the guest's CLOCK_MONOTONIC. Processes that are forked from then on,
    /// while the profile is on, are profiled too. All ones: no other process is.
    on_from: u64,
    /// Whether the process may have inherited a profile.
    is_heir: bool,
    /// Whether other processes of its family may have other profiles, or none: those that it forked before, or that have made calls.
    has_others: bool,
    /// Number of times that the process wasn't in the guest's list.
    missed: u32,
    ended: Option<Instant>,
}

impl ProfiledProcess {
    fn account(&self) -> MutexGuard<'_, Account> {
        lock(&self.account)
    }
}

impl Account {
    /// The account of a process without a profile until now. Processes that are forked after `on_from` inherit the profile.
    fn new(instance: Option<ProcessInstance>, on_from: u64) -> Self {
        Self {
            profile: Profile::default(),
            instance,
            is_checked: false,
            on_from,
            is_heir: false,
            has_others: false,
            missed: 0,
            ended: None,
        }
    }

    /// Ends the profile, because the process has ended or has executed another program. What is off isn't inherited any more.
    fn end(&mut self, state: State) {
        if !self.profile.is_on() && self.ended.is_none() {
            self.on_from = u64::MAX;
        }
        self.profile.stop(state);
        self.ended.get_or_insert_with(Instant::now);
    }
}

/// All processes that are profiled.
#[derive(Debug, Default)]
pub struct ProfiledProcesses {
    list: Mutex<Arc<[Arc<ProfiledProcess>]>>,
    watched: Mutex<Arc<[Arc<WatchedProcess>]>>,
    /// Number of changes of the lists; 0 if no process was ever profiled.
    version: AtomicU64,
    /// The version of the lists for which no process had its ticks stored. Only a call can turn that on, and sets [`UNKNOWN`].
    off_at: AtomicU64,
    /// A process that had its ticks stored at the last check, and is checked first at the next one.
    one_on: Mutex<Option<Arc<ProfiledProcess>>>,
}

/// A number that no version has.
const UNKNOWN: u64 = u64::MAX;

/// The report of a profiled process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessReport {
    /// The process's pid.
    pub pid: i32,
    /// The state and the counts of its profile.
    pub status: Status,
    /// Whether every tick is stored, and not just 100 a second.
    pub every_tick: bool,
}

impl ProfiledProcesses {
    /// The reports of all processes, in the order of their first calls.
    pub fn reports(&self) -> Vec<ProcessReport> {
        let report = |process: &Arc<ProfiledProcess>| {
            let account = process.account();
            ProcessReport {
                pid: process.pid,
                status: account.profile.status(),
                every_tick: account.profile.takes_every_tick(),
            }
        };
        self.current().iter().map(report).collect()
    }

    /// The newest profile of process `pid`.
    fn newest(&self, pid: i32) -> Option<Arc<ProfiledProcess>> {
        let list = self.current();
        let mut newest = list.iter().rev();
        newest.find(|process| process.pid == pid).cloned()
    }

    /// The state and the counts of the newest profile of process `pid`.
    pub fn status(&self, pid: i32) -> Option<Status> {
        Some(self.newest(pid)?.account().profile.status())
    }

    /// Whether ticks of any process are stored.
    pub fn any_is_on(&self) -> bool {
        let version = self.version.load(Ordering::Acquire);
        if self.off_at.load(Ordering::Relaxed) == version {
            return false;
        }
        let is_on = |process: &Arc<ProfiledProcess>| process.account().profile.is_on();
        let mut one_on = lock(&self.one_on);
        if !one_on.as_ref().is_some_and(is_on) {
            *one_on = self.current().iter().find(|one| is_on(one)).cloned();
        }
        if one_on.is_none() {
            self.off_at.store(version, Ordering::Relaxed);
        }
        one_on.is_some()
    }

    /// Forgets processes that ended some time ago.
    pub fn forget_ended(&self) {
        if self.version.load(Ordering::Relaxed) == 0 {
            return;
        }
        let is_old = |process: &ProfiledProcess| {
            let ended = process.account().ended;
            ended.is_some_and(|ended| ended.elapsed() >= MEMORY_OF_ENDED)
        };
        if self.current().iter().any(|process| is_old(process)) {
            self.change(|list| list.retain(|process| !is_old(process)));
        }
    }

    /// Turns all profiles off, because other ticks are made than those by which they were turned on.
    pub fn stop(&self) {
        for process in self.current().iter() {
            process.account().profile.stop(State::OtherTicks);
        }
    }

    /// Ends all profiles, because the guest has ended. Nobody inherits them.
    pub fn end(&self) {
        for process in self.current().iter() {
            let mut account = process.account();
            account.end(State::Ended);
            account.on_from = u64::MAX;
        }
    }

    /// Ends all profiles and watches, because the guest restarts at `time`, in ns of CLOCK_MONOTONIC: other processes may have their ids.
    pub fn restart(&self, time: u64) {
        self.end();
        for process in self.watched().iter() {
            process.end_with_guest(time);
        }
    }

    fn current(&self) -> Arc<[Arc<ProfiledProcess>]> {
        Arc::clone(&lock(&self.list))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<ProfiledProcess>>)) {
        change_list(&self.list, change);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn watched(&self) -> Arc<[Arc<WatchedProcess>]> {
        Arc::clone(&lock(&self.watched))
    }

    fn change_watched(&self, change: impl FnOnce(&mut Vec<Arc<WatchedProcess>>)) {
        change_list(&self.watched, change);
        self.version.fetch_add(1, Ordering::Release);
    }
}

fn change_list<T: Clone>(list: &Mutex<Arc<[T]>>, change: impl FnOnce(&mut Vec<T>)) {
    let mut list = lock(list);
    let mut changed = list.to_vec();
    change(&mut changed);
    *list = changed.into();
}

#[cfg(test)]
mod tests {
    use kvmprof_abi::profil::{Call, Function};

    use super::*;

    /// Calls pcsample of process `pid` for this many samples; 0 turns it off.
    fn pcsample(processes: &ProfiledProcesses, pid: i32, samples: u64) {
        let call = Call {
            buffer: 0x1000,
            size: samples,
            time: 1,
            ..Call::new(Function::Pcsample, pid)
        };
        processes.call(&call, &[], Some(&[])).unwrap();
    }

    /// The result of the last check isn't used after a change.
    #[test]
    fn profiling_is_on_while_one_profile_is() {
        let processes = ProfiledProcesses::default();
        for _ in 0..2 {
            assert!(!processes.any_is_on());
            pcsample(&processes, 1, 10);
            assert!(processes.any_is_on());
            pcsample(&processes, 2, 10);
            pcsample(&processes, 1, 0);
            assert!(processes.any_is_on());
            pcsample(&processes, 2, 0);
            assert!(!processes.any_is_on());
            // The process is in the list already.
            pcsample(&processes, 1, 10);
            assert!(processes.any_is_on());
            processes.stop();
        }
        assert!(!processes.any_is_on());
        // A vCPU's thread has found a forked process.
        let mut account = Account::new(None, 0);
        pcsample(&processes, 3, 10);
        std::mem::swap(
            &mut account.profile,
            &mut processes.newest(3).unwrap().account().profile,
        );
        assert!(!processes.any_is_on());
        processes
            .add(Arc::new(ProfiledProcess {
                pid: 4,
                program: [0; 16],
                account: Mutex::new(account),
            }))
            .unwrap();
        assert!(processes.any_is_on());
    }
}
