//! Busy processes, a multi-threaded one, an idle one, and idle time.

use std::ops::Range;

use kvmprof_tests::linux::{Program, Stream, pcs_kind};
use kvmprof_tests::{share, standard_error};

use super::{FIRST_THREAD, Run, SECOND_THREAD};

const HZ: u64 = 80;

pub fn samples_in_each_program_are_of_its_process(run: &Run) {
    check_hog(run, "hog_one", "one is ", &run.hog_one);
    check_hog(run, "hog_two", "two is ", &run.hog_two);
}

/// A process that sleeps all the time.
pub fn work_has_no_sample_of_a_sleeper(run: &Run) {
    let stream = run.stream("work");
    let idle = run.console.number("idle is ");
    let samples = stream.samples.iter();
    let sleeping = samples.filter(|sample| sample.pid == idle).count();
    assert_eq!(sleeping, 0);
}

/// User samples in `text`, and how many of them have the pid `pid`.
fn named(stream: &Stream, text: &Range<u64>, pid: i32) -> (u64, u64) {
    let inside = || {
        stream
            .of_kind(pcs_kind::USER)
            .filter(|sample| text.contains(&sample.pc))
    };
    let right = inside().filter(|sample| sample.pid == pid).count();
    (inside().count() as u64, right as u64)
}

/// Only this process has its instructions there, whatever pid kvmprof reports.
fn check_hog(run: &Run, name: &str, said: &str, program: &Program) {
    let (stream, pid) = (run.stream("work"), run.console.number(said));
    let (inside, right) = named(&stream, &program.text, pid);
    assert!(inside >= 20, "{inside} samples of {name}");
    assert!(
        share(right, inside) >= 0.99,
        "{right} of {inside} samples of {name}"
    );
    assert_eq!(stream.names.get(&pid).map(String::as_str), Some(name));
    // Vice versa: before its exec(2) the new process runs the shell.
    let own = stream
        .of_kind(pcs_kind::USER)
        .filter(|sample| sample.pid == pid);
    let strange = own
        .filter(|sample| !program.text.contains(&sample.pc))
        .count() as u64;
    assert!(
        strange <= 2 + inside / 100,
        "{strange} samples of {name} are others'"
    );
}

/// In addition to four standard errors: sampling continues for a moment after the guest has read its account, and that
/// account, in its own clock ticks, is as inexact in the lab as kvmprof's.
const MARGIN: f64 = 0.05;

/// Each busy process's share of the time of all of them equals the guest kernel's.
pub fn work_has_the_guests_shares(run: &Run) {
    let stream = run.stream("work");
    let pids = ["one is ", "two is ", "threads are "].map(|said| run.console.number(said));
    let busy = run.console.accounts("busy");
    let times = pids.map(|pid| {
        let process = &busy.processes[&pid];
        process.user + process.kernel
    });
    let samples = pids.map(|pid| {
        let own = stream.samples.iter().filter(|sample| sample.pid == pid);
        own.count() as u64
    });
    let all: u64 = samples.iter().sum();
    for ((pid, time), sampled) in pids.into_iter().zip(times).zip(samples) {
        let (expected, observed) = (share(time, times.iter().sum()), share(sampled, all));
        let allowed = 4.0 * standard_error(expected, all) + MARGIN;
        println!("{pid}: {observed:.3} of {all}, {expected:.3} expected, {allowed:.3} allowed");
        assert!((observed - expected).abs() <= allowed, "{pid}");
    }
}

/// Both threads belong to one process; its id is the first one's.
pub fn samples_of_threads_are_of_one_process(run: &Run) {
    let stream = run.stream("work");
    let pid = run.console.number("threads are ");
    let words = |thread: &str| run.console.after(&format!("{thread} thread: ")).to_owned();
    let first = words("first");
    assert_eq!(first, format!("pid {pid} tid {pid}"));
    let second = words("second");
    assert!(
        second.starts_with(&format!("pid {pid} tid ")) && second != first,
        "{second}"
    );
    for text in [FIRST_THREAD, SECOND_THREAD] {
        let (inside, right) = named(&stream, &text, pid);
        assert!(inside >= 20, "{inside} samples in {text:x?}");
        assert!(
            share(right, inside) >= 0.99,
            "{right} of {inside} samples in {text:x?}"
        );
    }
}

/// The guest's own list of its processes, and kvmprof's.
pub fn work_has_the_processes_of_ps(run: &Run) {
    let stream = run.stream("work");
    let accounts = ["before", "after", "later"].map(|name| run.console.accounts(name));
    let listed = run.console.ps();
    let last = accounts[2].last_pid;
    for sample in &stream.samples {
        assert!(
            (0..=last).contains(&sample.pid),
            "the last pid was {last}: {sample:x?}"
        );
        let known = listed.contains_key(&sample.pid)
            || accounts
                .iter()
                .any(|accounts| accounts.processes.contains_key(&sample.pid));
        // Processes start and end between the lists; those have names.
        let named = stream
            .names
            .get(&sample.pid)
            .is_some_and(|name| !name.is_empty());
        assert!(sample.pid == 0 || known || named, "{sample:x?}");
    }
}

/// Idle time agrees with the guest kernel's. Its accounts were read shortly after the stream began and shortly before
/// it ended, and outside of it: the result has to be between them.
pub fn work_has_the_guests_idle_time(run: &Run) {
    let stream = run.stream("work");
    let [boot, before, after, later] =
        ["boot", "before", "after", "later"].map(|name| run.console.accounts(name));
    for cpu in 0..run.case.cpus {
        let ours = stream.ticks(pcs_kind::IDLE, Some(cpu)) * 100 / HZ;
        let index = usize::from(cpu);
        let least = after.idle(index) - before.idle(index);
        let most = later.idle(index) - boot.idle(index);
        println!(
            "vCPU {cpu}: idle {ours}, guest {least} to {most}, of {}",
            after.uptime - before.uptime
        );
        assert!(
            ours >= least * 95 / 100 - 20,
            "vCPU {cpu}: {ours}, not {least} to {most}"
        );
        assert!(
            ours <= most * 105 / 100 + 20,
            "vCPU {cpu}: {ours}, not {least} to {most}"
        );
    }
}
