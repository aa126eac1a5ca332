//! Filters that report calls which aren't allowed, and let them be made: another thread answers for each of them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::call_name;

/// The time between two looks for new threads, in ns.
const LOOK_NS: i64 = 10_000_000;

/// The thread that answers.
pub(super) struct Watch(Sender<OwnedFd>);

impl Watch {
    /// Starts the thread, which ends with the process.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn start() -> io::Result<Self> {
        let (sender, new) = channel();
        let builder = thread::Builder::new().name("system calls".into());
        builder.spawn(move || {
            let mut listeners: Vec<OwnedFd> = Vec::new();
            let mut seen = BTreeSet::new();
            loop {
                listeners.extend(new.try_iter());
                serve(&mut listeners, &mut seen);
            }
        })?;
        Ok(Self(sender))
    }

    /// From now on the thread answers for `listener`, too.
    ///
    /// # Errors
    /// The thread that answers is gone.
    pub fn add(&self, listener: OwnedFd) -> io::Result<()> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.send(listener).map_err(gone)
    }
}

/// Answers the calls that wait, or waits for one for a short time.
fn serve(listeners: &mut Vec<OwnedFd>, seen: &mut BTreeSet<String>) {
    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: LOOK_NS,
    };
    let mut fds: Vec<PollFd<'_>> = listeners
        .iter()
        .map(|listener| PollFd::new(listener, PollFlags::IN))
        .collect();
    if poll(&mut fds, Some(&wait)).is_err() {
        return;
    }
    let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
    for (listener, events) in listeners.iter().zip(&events) {
        if events.contains(PollFlags::IN) {
            answer(listener, seen);
        }
    }
    // Its thread has ended.
    let mut events = events.into_iter();
    listeners.retain(|_| {
        let events = events.next().unwrap_or(PollFlags::empty());
        events.contains(PollFlags::IN) || !events.contains(PollFlags::HUP)
    });
}

/// Reports one call and continues it.
fn answer(listener: &OwnedFd, seen: &mut BTreeSet<String>) {
    // SAFETY: zeroes are a valid notification, as the kernel asks for; it and the answer are as large as the requests say.
    unsafe {
        let mut call: libc::seccomp_notif = std::mem::zeroed();
        if libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut call) != 0 {
            // The thread is gone, or a signal has interrupted its call.
            return;
        }
        let line = describe(&call);
        let answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags: CONTINUE,
        };
        libc::ioctl(listener.as_raw_fd(), SEND, &raw const answer);
        if seen.insert(line.clone()) {
            log::warn!("Not allowed by the sandbox: {line}");
        }
    }
}

fn describe(call: &libc::seccomp_notif) -> String {
    let name = fs::read_to_string(format!("/proc/self/task/{}/comm", call.pid));
    let name = name.unwrap_or_else(|_| call.pid.to_string());
    let name: String = name.chars().filter(|it| !it.is_ascii_digit()).collect();
    let number = call.data.nr;
    let known = call_name(number.into()).unwrap_or("unknown");
    let [first, second, third, ..] = call.data.args;
    let what = format!("thread {}, call {number} ({known})", name.trim());
    // The tables look at the arguments of these calls.
    match i64::from(number) {
        libc::SYS_ioctl => format!("{what}, request 0x{second:x}"),
        libc::SYS_openat => format!("{what}, flags 0o{third:o}"),
        libc::SYS_bpf | libc::SYS_prctl | libc::SYS_socket | libc::SYS_kill | libc::SYS_tgkill => {
            format!("{what}, first argument {first}")
        }
        libc::SYS_fcntl | libc::SYS_fallocate | libc::SYS_prlimit64 => {
            format!("{what}, second argument {second}")
        }
        libc::SYS_perf_event_open => {
            format!("{what}, second argument {second}, third argument {third}")
        }
        libc::SYS_mmap | libc::SYS_mprotect | libc::SYS_madvise => {
            format!("{what}, third argument {third}")
        }
        _ => what,
    }
}

/// `SECCOMP_IOCTL_NOTIF_RECV` (kernel: include/uapi/linux/seccomp.h).
const RECEIVE: libc::c_ulong = 0xc050_2100;
/// `SECCOMP_IOCTL_NOTIF_SEND`.
const SEND: libc::c_ulong = 0xc018_2101;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;
