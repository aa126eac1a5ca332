//! A process that opens events for kvmprof's threads. What a thread may need for it, CAP_SYS_ADMIN, is far too much for a thread that runs a guest.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};

use kvmprof_sandbox::process;
use rustix::process::{Pid, getpid};
use rustix::thread::CapabilitySet;

use super::refusal::{needed, own_rights, paranoid};
use super::{Event, HardwareEvent};
use kvmprof_machine::helper::{self, Helper};

/// Length of a request in bytes: what to count, its number, the period, the thread.
const REQUEST_BYTES: usize = 24;
/// What threads of kvmprof keep for events, unless they become another user (`kvmprof_sandbox`).
const KEPT: CapabilitySet = CapabilitySet::PERFMON;

/// The process's connection, for all threads of this process. There is one such process at most.
static OPENER: OnceLock<Weak<Helper>> = OnceLock::new();

/// The connection to the process. The process ends when this is dropped.
#[derive(Debug)]
pub struct EventOpener {
    _helper: Arc<Helper>,
}

impl EventOpener {
    /// Forks the process, if this process may open events and its threads may not once they are contained. It opens the events that kvmprof counts, for threads
    /// of kvmprof alone. If they become another user (`is_another_user`), it opens no others than those of the threads' own run time. The process keeps
    /// CAP_PERFMON and CAP_SYS_ADMIN. `is_counted` says whether kvmprof counts the tracepoint that perf knows by a number.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn fork(
        is_another_user: bool,
        is_counted: fn(u64) -> bool,
    ) -> io::Result<Option<Self>> {
        let kept = if is_another_user {
            CapabilitySet::empty()
        } else {
            KEPT
        };
        if !is_needed(paranoid(), own_rights(), kept) {
            return Ok(None);
        }
        let server = Server {
            process: getpid(),
            run_time_only: is_another_user,
            is_counted,
        };
        let serve = || {
            process::keep_event_rights()?;
            Ok(move |request: &[u8]| server.answer(request))
        };
        // SAFETY: by this function's own condition.
        let helper = Arc::new(unsafe { Helper::fork(c"kvmprof-perf", serve) }?);
        let _ = OPENER.set(Arc::downgrade(&helper));
        Ok(Some(Self { _helper: helper }))
    }
}

/// Whether a process with these `rights` may open events, and a thread with the `kept` ones among them may not.
fn is_needed(paranoid: Option<i32>, rights: CapabilitySet, kept: CapabilitySet) -> bool {
    let needed = paranoid.and_then(needed);
    needed
        .is_some_and(|(enough, _)| rights.intersects(enough) && !(rights & kept).intersects(enough))
}

/// The connection, as long as its owner keeps it.
fn helper() -> Option<Arc<Helper>> {
    OPENER.get()?.upgrade()
}

/// The rights of the process, if there is one.
pub(super) fn rights() -> Option<CapabilitySet> {
    helper()?;
    Some(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN)
}

/// Has the process open `event` for thread `tid`; 0 is the calling thread. `None` if there is no such process.
pub(super) fn open(event: Event, period: u64, tid: libc::pid_t) -> Option<io::Result<File>> {
    let helper = helper()?;
    let tid = match tid {
        0 => rustix::thread::gettid().as_raw_pid(),
        tid => tid,
    };
    Some(match helper.ask_for_one(&encode(event, period, tid)) {
        Ok(file) => Ok(File::from(file)),
        // The answer's text is the error's number.
        Err(error) => Err(match error.to_string().parse() {
            Ok(number) => io::Error::from_raw_os_error(number),
            Err(_) => error,
        }),
    })
}

fn encode(event: Event, period: u64, tid: libc::pid_t) -> [u8; REQUEST_BYTES] {
    let (what, number) = match event {
        Event::TaskClock => (0_u32, 0),
        Event::CpuClock => (1, 0),
        Event::BpfOutput => (2, 0),
        Event::Tracepoint(number) => (3, number),
        Event::Hardware(event) => (4, event as u64),
        // The process opens none of them.
        Event::Function { .. } => (5, 0),
    };
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&what.to_le_bytes());
    request[4..8].copy_from_slice(&tid.to_le_bytes());
    request[8..16].copy_from_slice(&number.to_le_bytes());
    request[16..].copy_from_slice(&period.to_le_bytes());
    request
}

/// The event, its period and its thread; `None` for what no thread of kvmprof asks for.
fn decode(request: &[u8]) -> Option<(Event, u64, libc::pid_t)> {
    let request: &[u8; REQUEST_BYTES] = request.try_into().ok()?;
    let half = |at| request.get(at..at + 4)?.try_into().ok();
    let whole = |at| {
        Some(u64::from_le_bytes(
            request.get(at..at + 8)?.try_into().ok()?,
        ))
    };
    let number = whole(8)?;
    let event = match u32::from_le_bytes(half(0)?) {
        0 => Event::TaskClock,
        1 => Event::CpuClock,
        2 => Event::BpfOutput,
        3 => Event::Tracepoint(number),
        4 => {
            let mut all = HardwareEvent::ALL.into_iter();
            Event::Hardware(all.find(|event| *event as u64 == number)?)
        }
        _ => return None,
    };
    Some((event, whole(16)?, i32::from_le_bytes(half(4)?)))
}

/// The process's side.
struct Server {
    /// The process whose threads are served.
    process: Pid,
    run_time_only: bool,
    /// Whether kvmprof counts the tracepoint that perf knows by this number.
    is_counted: fn(u64) -> bool,
}

impl Server {
    fn answer(&self, request: &[u8]) -> helper::Answer {
        let opened = match decode(request) {
            Some((event, period, tid)) if self.serves(event, tid) => event.open_here(period, tid),
            _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
        };
        match opened {
            Ok(event) => Ok(vec![OwnedFd::from(event)]),
            Err(error) => Err(number_of(&error).to_string()),
        }
    }

    fn serves(&self, event: Event, tid: libc::pid_t) -> bool {
        let is_served = match event {
            Event::TaskClock | Event::CpuClock | Event::BpfOutput => true,
            Event::Tracepoint(number) => !self.run_time_only && (self.is_counted)(number),
            Event::Hardware(_) => !self.run_time_only,
            Event::Function { .. } => false,
        };
        is_served && has_thread(self.process, tid)
    }
}

/// Whether `process` has the thread `tid`.
pub(crate) fn has_thread(process: Pid, tid: libc::pid_t) -> bool {
    if tid <= 0 {
        return false;
    }
    // It sends no signal. A thread of another user is found, but may not be signalled.
    // SAFETY: a plain system call.
    let found = unsafe { libc::syscall(libc::SYS_tgkill, process.as_raw_pid(), tid, 0) };
    found == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

fn number_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_needed_where_its_rights_suffice_and_its_threads_do_not() {
        let (none, all) = (CapabilitySet::empty(), CapabilitySet::all());
        for (paranoid, rights, kept, needed) in [
            // Root on Debian, and on other systems.
            (3, all, KEPT, true),
            (2, all, KEPT, false),
            (-1, all, KEPT, false),
            // With --user.
            (3, all, none, true),
            (2, all, none, true),
            (1, all, none, false),
            // Others than root.
            (3, KEPT, KEPT, false),
            (2, none, KEPT, false),
            (3, none, none, false),
        ] {
            let said = is_needed(Some(paranoid), rights, kept);
            assert_eq!(said, needed, "{paranoid} {rights:?} {kept:?}");
        }
        assert!(!is_needed(None, all, none));
    }

    #[test]
    fn requests_decode_to_what_was_encoded_or_are_refused() {
        let events = [
            Event::TaskClock,
            Event::CpuClock,
            Event::BpfOutput,
            Event::Tracepoint(1234),
            Event::Hardware(HardwareEvent::BranchMisses),
        ];
        for event in events {
            let request = encode(event, u64::MAX, 77);
            assert_eq!(decode(&request), Some((event, u64::MAX, 77)));
            assert_eq!(decode(&request[1..]), None);
        }
        let mut unknown = encode(Event::Hardware(HardwareEvent::Cycles), 1, 1);
        unknown[8] = 6;
        assert_eq!(decode(&unknown), None);
        unknown[0] = 5;
        assert_eq!(decode(&unknown), None);
    }

    #[test]
    fn only_threads_of_kvmprof_are_counted_and_only_what_kvmprof_counts() {
        let own = rustix::thread::gettid().as_raw_pid();
        let server = |run_time_only| Server {
            process: getpid(),
            run_time_only,
            is_counted: |_| false,
        };
        let cycles = Event::Hardware(HardwareEvent::Cycles);
        assert!(server(false).serves(cycles, own) && !server(true).serves(cycles, own));
        assert!(server(true).serves(Event::TaskClock, own));
        for other in [1, 0, -1, i32::MAX] {
            assert!(!server(false).serves(Event::TaskClock, other), "{other}");
        }
        // No tracepoint has this number.
        let server = server(false);
        assert!(!server.serves(Event::Tracepoint(u64::MAX), own));
        let refused = server.answer(&encode(Event::Tracepoint(u64::MAX), 1, own));
        assert_eq!(refused.unwrap_err(), libc::EPERM.to_string());
        let refused = server.answer(&encode(Event::TaskClock, 1, 1));
        assert_eq!(refused.unwrap_err(), "1");
    }
}
