//! A thread with a seccomp filter, whose signal handlers try to evade it.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;

/// Attempts to evade the filter, successful ones, rounds of the thread, signals of which each one is counted, and the last signal.
static TOLD: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
const TRIES: usize = 0;
const ESCAPES: usize = 1;
const ROUNDS: usize = 2;
const COUNTED: usize = 3;
const ENDED: usize = 4;
/// The system calls that the filter forbids its thread.
const FORBIDDEN: [i64; 2] = [libc::SYS_socket, libc::SYS_openat];
/// A signal that the thread has blocked.
const BLOCKED: i32 = libc::SIGUSR2;
/// Looks at a thread that tries to get around its filter, without `KVMPROF_LOOKS`.
const LOOKS: &str = "1000";
/// Tries that must have been made during looks.
const TRIES_AT_LEAST: u64 = 100;
/// Every one of this number of signals must arrive.
const QUEUED: u64 = 2000;
/// Signals that threads cause themselves, which aren't blocked while vCPUs are stopped. Other processes can send them, too.
const SYNCHRONOUS: [i32; 6] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
];

fn add(index: usize) {
    TOLD[index].fetch_add(1, Ordering::SeqCst);
}

extern "C" fn try_to_get_out(_: i32) {
    // SAFETY: the name ends with a NUL; nothing else is read.
    let results = unsafe {
        [
            libc::syscall(FORBIDDEN[0], libc::AF_INET, libc::SOCK_STREAM, 0),
            libc::syscall(FORBIDDEN[1], libc::AT_FDCWD, c"/".as_ptr(), libc::O_RDONLY),
        ]
    };
    add(TRIES);
    for descriptor in results.into_iter().filter(|result| *result >= 0) {
        add(ESCAPES);
        // SAFETY: the descriptor is this function's.
        unsafe { libc::syscall(libc::SYS_close, descriptor) };
    }
}

extern "C" fn count(signal: i32) {
    add(if signal == counted() + 1 {
        ENDED
    } else {
        COUNTED
    });
}

/// The counted signal, and the last one: the kernel delivers the latter last, as its handler doesn't interrupt the other one.
fn counted() -> i32 {
    libc::SIGRTMIN() + 1
}

/// Has the filter apply these actions to [`FORBIDDEN`] and ioctl(2) of the calling thread.
fn contain(forbidden: u32, ioctl: u32) {
    let is = |number, equal| seccomp::skip(u32::try_from(number).unwrap(), equal, 0);
    seccomp::no_new_privileges().unwrap();
    let filtered = seccomp::filter(&mut [
        seccomp::load(seccomp::NUMBER),
        is(FORBIDDEN[0], 3),
        is(FORBIDDEN[1], 2),
        is(libc::SYS_ioctl, 2),
        seccomp::action(libc::SECCOMP_RET_ALLOW),
        seccomp::action(forbidden),
        seccomp::action(ioctl),
    ]);
    filtered.unwrap();
}

/// The process: one thread is filtered, and another one sends it signals.
#[test]
fn the_process() {
    let Some(what) = is_started() else {
        return;
    };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let (forbidden, ioctl) = match what.as_str() {
        "deadly" => (libc::SECCOMP_RET_KILL_PROCESS, refusal),
        "watchful" => (refusal, libc::SECCOMP_RET_KILL_PROCESS),
        _ => (refusal, refusal),
    };
    handle(libc::SIGUSR1, try_to_get_out, &[]);
    handle(counted(), count, &[counted() + 1]);
    handle(counted() + 1, count, &[]);
    let (sender, received) = channel();
    thread::spawn(move || {
        // SAFETY: the set is made before it is used.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, BLOCKED);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        }
        contain(forbidden, ioctl);
        sender.send(own_thread()).unwrap();
        loop {
            add(ROUNDS);
        }
    });
    let thread = received.recv().unwrap();
    tell(thread, TOLD.as_ptr() as u64);
    match what.as_str() {
        "counting" => {
            for _ in 0..QUEUED {
                queue(thread, counted());
            }
            queue(thread, counted() + 1);
            stdin().read_line(&mut String::new()).unwrap();
        }
        "synchronous" => {
            for signal in SYNCHRONOUS {
                handle(signal, count, &[counted() + 1]);
            }
            for (ended, signal) in (1..).zip(SYNCHRONOUS.into_iter().cycle()) {
                send(thread, signal);
                send(thread, counted() + 1);
                while TOLD[ENDED].load(Ordering::SeqCst) < ended {
                    spin_loop();
                }
            }
        }
        "quiet" => drop(stdin().read_line(&mut String::new())),
        _ => loop {
            let tries = TOLD[TRIES].load(Ordering::SeqCst);
            send(thread, libc::SIGUSR1);
            // The thread makes another system call, too.
            let spins = 2000 + tries % 7 * 300;
            (0..spins).for_each(|_| spin_loop());
        },
    }
}

/// Has `handler` handle `signal`, with the signals of `blocked` blocked during the handler.
fn handle(signal: i32, handler: extern "C" fn(i32), blocked: &[i32]) {
    // SAFETY: the structure consists of numbers, and the handlers only do what handlers may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        for signal in blocked {
            libc::sigaddset(&raw mut action.sa_mask, *signal);
        }
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

fn send(thread: i32, signal: i32) -> i64 {
    let pid = std::process::id();
    // SAFETY: it only sends a signal.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, signal) }
}

/// Sends one of the counted signals.
fn queue(thread: i32, signal: i32) {
    while send(thread, signal) != 0 {
        // The queue is full.
        thread::yield_now();
    }
    thread::sleep(Duration::from_micros(50));
}

/// Stops the vCPU until its system calls have been made this often. False if this user can't suspend filters.
fn look(vcpu: &mut TracedVcpu, times: u32) -> bool {
    let mut done = 0;
    while done < times {
        match vcpu.look(|vcpu| vcpu.registers().map(drop)) {
            Err(TraceError::Kvm(error)) => {
                assert_eq!(error.raw_os_error(), Some(libc::EBADF), "the filter saw it");
                done += 1;
            }
            Err(TraceError::Filtered { .. }) if !rustix::process::geteuid().is_root() => {
                return false;
            }
            // The host is busy.
            Err(TraceError::Slow) => {}
            other => panic!("{other:?}"),
        }
    }
    true
}

/// Without a tracer, the process is killed when a handler tries it.
#[test]
fn a_filter_kills_a_process_that_evades_it() {
    let mut process = OtherProcess::begin("filtered::the_process", "deadly");
    let status = process.child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}

/// A filter that would kill the process doesn't see the tracer's system calls, and the thread's handlers never run without the filter.
#[test]
fn signal_handlers_stay_filtered_while_vcpus_are_stopped() {
    let mut process = OtherProcess::begin("filtered::the_process", "watchful");
    let mut vcpu = process.vcpu();
    let blocked = process.status("SigBlk:");
    let [tries_before, ..] = process.told::<5>();
    let least = env::var("KVMPROF_LOOKS").unwrap_or_else(|_| LOOKS.to_owned());
    let least: u32 = least.parse().unwrap();
    let mut looks = 0;
    // On a busy host the handlers run seldom.
    while looks < least || process.told::<5>()[TRIES] < tries_before + TRIES_AT_LEAST {
        if !look(&mut vcpu, 10) {
            return;
        }
        looks += 10;
    }
    let told = process.told::<5>();
    println!("{} tries in {looks} looks", told[TRIES] - tries_before);
    assert_eq!(told[ESCAPES], 0, "of {} tries", told[TRIES]);
    // A handler may be running, which blocks its own signal.
    let own = 1 << (libc::SIGUSR1 - 1);
    let set = |hex: &str| u64::from_str_radix(hex, 16).unwrap() & !own;
    assert_eq!(set(&process.status("SigBlk:")), set(&blocked));
    assert!(process.child.try_wait().unwrap().is_none());
}

/// Signals that arrive during the tracer's system calls are delivered afterwards, each one.
#[test]
fn no_signal_is_lost_while_vcpus_are_stopped() {
    let process = OtherProcess::begin("filtered::the_process", "counting");
    let mut vcpu = process.vcpu();
    loop {
        if !look(&mut vcpu, 10) {
            return;
        }
        let told = process.told::<5>();
        if told[ENDED] == 1 {
            assert_eq!(told[COUNTED], QUEUED);
            break;
        }
    }
}

/// A signal that isn't blocked ends the stop, and is delivered.
#[test]
fn no_synchronous_signal_is_lost_while_vcpus_are_stopped() {
    let process = OtherProcess::begin("filtered::the_process", "synchronous");
    let mut vcpu = process.vcpu();
    let mut looks_ended = BTreeMap::new();
    while SYNCHRONOUS
        .iter()
        .any(|signal| looks_ended.get(signal) != Some(&20))
    {
        let looked = vcpu.look(|vcpu| {
            // The thread is stopped.
            let told = process.told::<5>();
            // The kernel delivers each one before the signal behind it.
            let expected = told[ENDED]..=told[ENDED] + 1;
            assert!(expected.contains(&told[COUNTED]), "{told:?}");
            vcpu.registers().map(drop)
        });
        match looked {
            Err(TraceError::Signal(signal)) => {
                let ended = looks_ended.entry(signal).or_insert(0);
                *ended = 20.min(*ended + 1);
            }
            Err(TraceError::Filtered { .. }) if !rustix::process::geteuid().is_root() => return,
            Err(TraceError::Kvm(_) | TraceError::Slow) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The tracer, which is killed: stops the given thread of the given process repeatedly.
#[test]
fn the_tracer() {
    let Some(what) = is_started() else {
        return;
    };
    let (pid, thread) = what.split_once(' ').unwrap();
    let [pid, thread] = [pid, thread].map(|number| number.parse::<i32>().unwrap());
    let mut vcpu = TracedVcpu::new(pid, thread, NO_DESCRIPTOR, ThreadCode::find(pid).unwrap());
    tell(own_thread(), 0);
    while look(&mut vcpu, 1) {}
}

/// A thread gets its signals back and continues, whenever the tracer is killed.
#[test]
fn a_killed_tracer_leaves_no_signal_blocked() {
    let mut process = OtherProcess::begin("filtered::the_process", "quiet");
    let expected = format!("{:016x}", 1_u64 << (BLOCKED - 1));
    assert_eq!(process.status("SigBlk:"), expected);
    let what = format!("{} {}", process.pid(), process.thread);
    for round in 0..100 {
        let mut tracer = OtherProcess::begin("filtered::the_tracer", &what);
        // At a different moment each time.
        thread::sleep(Duration::from_micros(1000 + 37 * round));
        tracer.child.kill().unwrap();
        tracer.child.wait().unwrap();
        assert_eq!(process.status("TracerPid:"), "0");
        let before = process.told::<5>()[ROUNDS];
        while process.told::<5>()[ROUNDS] == before {
            assert!(process.child.try_wait().unwrap().is_none(), "{round}");
        }
        assert_eq!(process.status("SigBlk:"), expected, "{round}");
    }
}
