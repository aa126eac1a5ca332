//! profil(2) and pcsample(2): the processes of the guest that are profiled, and the stores into their memory.
//!
//! The event thread carries out calls ([`ProfiledProcesses`]). A tick is stored by the thread of the vCPU that takes it,
//! while the vCPU stands still ([`VcpuStores`]). Both share each process's [`Profile`], under a lock that nobody holds for
//! longer than a store takes.
//!
//! Buffers that the device keeps are filled elsewhere; when their processes end is noticed here ([`Watch`]).

mod call;
mod process_memory;
mod vcpu_stores;
mod watched;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kvmprof_abi::profil::{State, Status};
use kvmprof_devices::profiling::Profile;
use kvmprof_introspection::ProcessInstance;

use crate::lock::lock;
pub use vcpu_stores::VcpuStores;
use watched::WatchedProcess;
pub use watched::{ProgramEnd, Watch};

/// Maximum number of processes that are profiled at once.
const MAX_PROCESSES: usize = 1024;
/// How long a process is remembered that has ended: a process that it has forked may not have run yet.
const MEMORY_OF_ENDED: Duration = Duration::from_secs(2);

/// A process that is profiled, or was.
#[derive(Debug)]
struct ProfiledProcess {
    pid: i32,
    /// The bytes that tell its program from others; all zeros when unknown.
    program: [u8; 16],
    account: Mutex<Account>,
}

/// What changes of a [`ProfiledProcess`].
#[derive(Debug)]
struct Account {
    profile: Profile,
    /// The process, once a tick has met it.
    instance: Option<ProcessInstance>,
    /// When the profile was turned on and off, in ns of the guest's CLOCK_MONOTONIC: processes that were forked in between
    /// are profiled too.
    on_from: u64,
    on_until: u64,
    ended: Option<Instant>,
}

impl ProfiledProcess {
    fn account(&self) -> MutexGuard<'_, Account> {
        lock(&self.account)
    }
}

impl Account {
    /// The process has ended, or has executed another program.
    fn end(&mut self, state: State) {
        self.profile.stop(state);
        self.ended.get_or_insert_with(Instant::now);
    }

    fn was_on_at(&self, time: u64) -> bool {
        (self.on_from..self.on_until).contains(&time)
    }
}

/// All processes that are profiled.
#[derive(Debug, Default)]
pub struct ProfiledProcesses {
    list: Mutex<Arc<[Arc<ProfiledProcess>]>>,
    watched: Mutex<Arc<[Arc<WatchedProcess>]>>,
    /// Counts the changes of the lists; 0: nothing was ever profiled.
    version: AtomicU64,
    /// The version at which no tick of any process was stored. Only calls have them stored: they make it [`UNKNOWN`].
    off_at: AtomicU64,
    /// One whose ticks were stored when somebody looked: the next one looks there first.
    one_on: Mutex<Option<Arc<ProfiledProcess>>>,
}

/// No version.
const UNKNOWN: u64 = u64::MAX;

/// A profiled process for reports.
#[derive(Clone, Copy, Debug)]
pub struct ProcessReport {
    /// Its id.
    pub pid: i32,
    /// Its profile's state and account.
    pub status: Status,
    /// Whether every tick is stored, or 100 a second.
    pub every_tick: bool,
}

impl ProfiledProcesses {
    /// All of them, in the order of their first calls.
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

    /// The state and the account of the newest profile of process `pid`.
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

    /// Forgets processes that have ended some time ago.
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

    /// Turns all profiles off.
    pub fn stop(&self) {
        for process in self.current().iter() {
            process.account().profile.stop(State::Off);
        }
    }

    /// The guest has ended.
    pub fn end(&self) {
        for process in self.current().iter() {
            process.account().end(State::Ended);
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

    /// pcsample of process `pid`, for so many samples; none: off.
    fn pcsample(processes: &ProfiledProcesses, pid: i32, samples: u64) {
        let call = Call {
            function: Function::Pcsample,
            flags: 0,
            pid,
            ranges: 0,
            buffer: 0x1000,
            size: samples,
            offset: 0,
            scale: 0,
            time: 1,
            program: [0; 16],
        };
        processes.call(&call, &[]).unwrap();
    }

    /// What was found the last time doesn't outlast what changes it.
    #[test]
    fn any_is_on_while_one_is() {
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
            // One that is in the list already.
            pcsample(&processes, 1, 10);
            assert!(processes.any_is_on());
            processes.stop();
        }
        assert!(!processes.any_is_on());
        // A vCPU's thread has found one that was forked.
        let mut account = Account {
            profile: Profile::default(),
            instance: None,
            on_from: 0,
            on_until: 1,
            ended: None,
        };
        pcsample(&processes, 3, 10);
        std::mem::swap(
            &mut account.profile,
            &mut processes.newest(3).unwrap().account().profile,
        );
        assert!(!processes.any_is_on());
        processes
            .add(ProfiledProcess {
                pid: 4,
                program: [0; 16],
                account: Mutex::new(account),
            })
            .unwrap();
        assert!(processes.any_is_on());
    }
}
