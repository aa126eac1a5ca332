//! A vCPU that doesn't answer: only clients that need its answer wait for it.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_tests::{
    Boot, Clock, Guest, Machine, StoppedThread, Thread, on_kvm, status_of, threads, until,
};
use rustix::process::Signal;

/// Limit for the status's response time. A busy host delays this test, too: the fastest answer counts.
const SOON: Duration = Duration::from_millis(50);
/// Number of measured answers.
const ANSWERS: usize = 20;
/// Number of opens of pcs beside a stalled console.
const OPENS: usize = 5;
/// How long a client waits for a vCPU that doesn't answer and isn't busy with an exit (`vmm/src/profiler/clocks.rs`).
const LONGEST: Duration = Duration::from_secs(10);

/// The response times of another client's status until `stuck` ends, fastest first.
fn times_of_status(connection: &Connection, is_stuck: impl Fn() -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..ANSWERS {
        let begun = Instant::now();
        connection.snapshot(device::STATUS, 1 << 20).unwrap();
        let time = begun.elapsed();
        if is_stuck() {
            times.push(time);
        }
    }
    times.sort();
    times
}

/// The clock's start needs the thread of the vCPU, which is stopped: only the open waits.
#[test]
fn a_stopped_vcpu_holds_up_only_those_who_need_its_answer() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let opening = guest.connect();
        // Before, the vCPU may be in an exit, in which it has to answer nothing.
        until("the guest runs", || {
            (!guest.console().is_empty()).then_some(())
        });
        let vcpu = StoppedThread::stop(guest.pid(), "vcpu 0");
        std::thread::scope(|scope| {
            let stuck = scope.spawn(|| opening.open(device::PCS, 0).map(drop));
            until("the request has arrived", || {
                let is_open = guest.status().pcs().is_some_and(|pcs| pcs.open);
                // The open has a timeout, which a busy host may exceed.
                (is_open || stuck.is_finished()).then_some(())
            });
            let times = times_of_status(&guest.connect(), || !stuck.is_finished());
            println!("status beside a stuck request: {times:?}");
            assert!(times.first().is_some_and(|fastest| *fastest < SOON));
            drop(vcpu);
            stuck.join().unwrap().unwrap();
        });
        guest.stop();
    });
}

/// Opens pcs and closes it again. Returns the time of the open, and the response times of another client's status meanwhile.
fn open_beside_status(opening: &Connection, other: &Connection) -> (Duration, Vec<Duration>) {
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            let begun = Instant::now();
            let pcs = opening.open(device::PCS, 0).unwrap();
            (begun.elapsed(), pcs)
        });
        until("the request has arrived", || {
            let is_open = status_of(other).pcs().is_some_and(|pcs| pcs.open);
            (is_open || stuck.is_finished()).then_some(())
        });
        let times = times_of_status(other, || !stuck.is_finished());
        let (time, pcs) = stuck.join().unwrap();
        pcs.close().unwrap();
        (time, times)
    })
}

/// A vCPU that writes to an unread console can't answer: clients that need its answer continue without it after a short time, and others
/// don't wait. The vCPU continues when the console is read.
#[test]
fn a_stalled_console_delays_others_for_a_bounded_time() {
    on_kvm(|| {
        let (guest, mut console) = Guest::start_with_full_console(Boot::Demo, ["--hz", "1000"]);
        until("the vCPU waits for the console's reader", || {
            let vcpus = threads(guest.pid(), "vcpu 0");
            let waits = |vcpu: &Thread| vcpu.system_call == Some(libc::SYS_ppoll);
            vcpus.iter().any(waits).then_some(())
        });
        let (opening, other) = (guest.connect(), guest.connect());
        let opens: Vec<_> = (0..OPENS)
            .map(|_| open_beside_status(&opening, &other))
            .collect();
        println!("opens, each with status beside it: {opens:?}");
        assert!(opens.iter().any(|(time, _)| *time < LONGEST));
        let mut of_status = opens.iter().flat_map(|(_, times)| times);
        assert!(of_status.any(|time| *time < SOON));

        let mut said = Vec::new();
        until("the guest goes on", || {
            let mut bytes = [0; 4096];
            let count = console.read(&mut bytes).unwrap_or_default();
            said.extend_from_slice(&bytes[..count]);
            said.ends_with(b"\n").then_some(())
        });
        let mut pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        pcs.read_ticks(100);
        drop(pcs);
        guest.stop();
    });
}

/// A guest whose vCPUs are kicked continuously, and which keeps them busy with the device that causes this.
#[test]
fn a_guest_that_floods_its_port_holds_nobody_up() {
    on_kvm(|| {
        let boot = Boot::Test("workload=clock-flood");
        let machine = Machine::start_with_ports(boot, 2, Clock::at(100), GuestAccess::All);
        let rounds = machine.until_port(|results| results.buffers > 3).buffers;
        let times = times_of_status(&machine.connect(), || true);
        println!("status beside a flood: {times:?}");
        assert!(times.first().is_some_and(|fastest| *fastest < SOON));
        machine.until_port(|results| results.buffers > rounds + 3);
        machine.stop();
    });
}

/// A client that disconnects while the vCPU is stuck leaves a close behind, which needs the same answer.
#[test]
fn devices_of_a_stuck_vcpu_are_closed_when_it_answers() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let pcs = guest.open();
        let vcpu = StoppedThread::stop(guest.pid(), "vcpu 0");
        drop(pcs);
        let times = times_of_status(&guest.connect(), || true);
        assert!(
            times.first().is_some_and(|fastest| *fastest < SOON),
            "{times:?}"
        );
        drop(vcpu);
        guest.until_closed();
        // The device is free again.
        drop(guest.open());
        guest.stop();
    });
}

/// The first signal requests an end in order, which waits for the stuck thread.
#[test]
fn a_second_signal_ends_it_whichever_thread_is_stuck() {
    on_kvm(|| {
        let pairs = [
            ("vcpu 0", Signal::TERM, Signal::INT),
            ("vcpu 0", Signal::TERM, Signal::TERM),
            ("events", Signal::INT, Signal::INT),
            ("events", Signal::TERM, Signal::INT),
        ];
        for (name, first, second) in pairs {
            let mut guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
            let stuck = StoppedThread::stop(guest.pid(), name);
            guest.signal(first);
            // Two equal signals might become one (signal(7)).
            until("the signal is taken", || {
                (pending(guest.pid()) & bit(first) == 0).then_some(())
            });
            guest.signal(second);
            until("it says that it ends", || {
                guest.stderr().contains("ended by force").then_some(())
            });
            // Until the thread is released, its process can't be waited for.
            drop(stuck);
            let status = guest.wait().status;
            assert_eq!(status, 1, "{name}, {first:?} and {second:?}");
        }
    });
}

/// The pending signals of process `pid` (proc(5), `ShdPnd`).
fn pending(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    u64::from_str_radix(field.unwrap().trim(), 16).unwrap()
}

/// The bit of `signal` there.
fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// Standard error isn't read, and another thread may block on it forever.
#[test]
fn a_second_signal_ends_it_although_nobody_reads_its_messages() {
    on_kvm(|| {
        let mut guest = Guest::start_unheard(Boot::Demo, ["--hz", "1000"]);
        let stuck = StoppedThread::stop(guest.pid(), "vcpu 0");
        guest.signal(Signal::TERM);
        guest.signal(Signal::INT);
        until("its other threads are gone", || {
            threads(guest.pid(), "events").is_empty().then_some(())
        });
        drop(stuck);
        assert_eq!(guest.wait().status, 1);
    });
}

/// The guest is still being started: its shared folder is served by a program that doesn't answer.
#[test]
fn a_second_signal_ends_a_start_that_waits_for_another_program() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("virtiofsd");
        let silent = UnixListener::bind(&socket).unwrap();
        let share = format!("socket={},tag=x", socket.display());
        let mut guest = Guest::launch(Boot::Demo, ["--share", &share]);
        let (_connection, _) = silent.accept().unwrap();
        // Two equal signals might become one (signal(7)).
        guest.signal(Signal::TERM);
        guest.signal(Signal::INT);
        let ran = guest.wait();
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.stderr.contains("ended by force"), "{ran:?}");
    });
}
