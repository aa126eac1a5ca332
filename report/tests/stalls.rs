//! Stalls in recordings with known ticks.

use std::path::Path;

use crate::shared::recordings::{Written, stack_of};
use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_recording::{IPL_MASKED, Mode, Sample, StackEnd, StackParts, Ticks, comm_of};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::profile::{Profile, Selection, TableStyle};
use kvmprof_report::stalls::{self, Running, StallWatcher, Stalls, StretchRow, WaitKind};
use kvmprof_report::symbolize::Resolver;

const BASE: u64 = 0xffff_ffff_8100_0000;
const FUNCTION: u64 = 0x100;
const FUNCTIONS: [&str; 7] = [
    "native_queued_spin_lock_slowpath",
    "_raw_spin_lock",
    "change_inode",
    "do_syscall_64",
    "receive_packet",
    "copy_page",
    "clear_page",
];
/// A tick of 1000 Hz, in ns.
const PERIOD: u64 = 1_000_000;

/// A run of a vCPU's ticks that ends with a sample, `at` this many ticks after the start.
struct Run {
    vcpu: u16,
    at: u64,
    stolen: u64,
    pid: i32,
    mode: Mode,
    has_interrupts_off: bool,
    /// Innermost first.
    stack: &'static [&'static str],
}

/// A sample in the kernel.
const SAMPLE: Run = Run {
    vcpu: 0,
    at: 0,
    stolen: 0,
    pid: 5,
    mode: Mode::Kernel,
    has_interrupts_off: false,
    stack: &["do_syscall_64"],
};

/// The stack of a lock's wait for `change_inode`.
const WAITING: &[&str] = &[
    "native_queued_spin_lock_slowpath",
    "_raw_spin_lock",
    "change_inode",
    "do_syscall_64",
];

fn address(function: &str) -> u64 {
    let number = FUNCTIONS.iter().position(|name| *name == function);
    BASE + u64::try_from(number.unwrap()).unwrap() * FUNCTION + 8
}

impl Run {
    fn push_to(&self, written: &mut Written) {
        let frames: Vec<u64> = self.stack.iter().map(|name| address(name)).collect();
        let sample = Sample {
            time: self.at * PERIOD,
            vcpu: self.vcpu,
            pid: self.pid,
            tid: self.pid,
            comm: comm_of(&format!("program {}", self.pid)),
            mode: self.mode,
            pc: frames[0],
            ipl: IPL_MASKED * u8::from(self.has_interrupts_off),
            stack: stack_of(frames.len(), 0, StackEnd::Absent),
            ..Sample::default()
        };
        let ticks = Ticks {
            stolen: self.stolen,
            ..sample.into()
        };
        written.push(&ticks, &frames);
    }
}

fn stalls(runs: &[Run]) -> Stalls {
    read(runs).1
}

fn read(runs: &[Run]) -> (Profile, Stalls) {
    let symbols = FUNCTIONS.map(|name| format!("{:x} T {name}\n", address(name) - 8));
    let mut written = Written::with_symbols(&symbols.concat());
    (written.info.vcpus, written.info.began_monotonic_ns) = (3, 0);
    written.info.stacks = StackParts {
        kernel: true,
        user: false,
    };
    let mut runs: Vec<&Run> = runs.iter().collect();
    runs.sort_by_key(|run| run.at);
    runs.iter().for_each(|run| run.push_to(&mut written));
    let recording = Recording::from_bytes(Path::new("test"), written.finish().0).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let mut watcher = StallWatcher::default();
    let all = Selection::default();
    let profile = Profile::read_with(&recording, all, resolver, &Unobserved, &mut watcher).unwrap();
    let stalls = Stalls::new(&profile, watcher, 10, &OutputBudget::new(u64::MAX)).unwrap();
    (profile, stalls)
}

/// A wait counts as beside stolen ticks while the host doesn't run another vCPU, unless that is halted.
#[test]
fn waits_beside_stolen_ticks_have_the_other_vcpus_activity() {
    let wait = |at| Run {
        at,
        stack: WAITING,
        ..SAMPLE
    };
    let on = |vcpu, at| Run {
        vcpu,
        at,
        pid: 6,
        ..SAMPLE
    };
    let found = stalls(&[
        // vCPU 1 runs in copy_page, and then not, from 10 to 15 ms.
        Run {
            stack: &["copy_page"],
            ..on(1, 10)
        },
        Run {
            stolen: 4,
            ..on(1, 15)
        },
        on(1, 40),
        // vCPU 2 halts, and isn't run from 18 to 22 ms.
        Run {
            mode: Mode::Idle,
            pid: 0,
            ..on(2, 18)
        },
        Run {
            stolen: 3,
            ..on(2, 22)
        },
        wait(11),
        wait(12),
        wait(14),
        wait(20),
        // Its own ticks that are stolen aren't another vCPU's.
        Run {
            stolen: 5,
            ..wait(26)
        },
    ]);
    let [row] = &found.waits[..] else {
        panic!("{:?}", found.waits);
    };
    assert_eq!(
        (row.kind, row.function.as_str()),
        (WaitKind::SpinLock, "change_inode")
    );
    assert_eq!((row.samples, row.beside_stolen), (5, 3));
    let holder = Running {
        process: "program 6".to_owned(),
        function: "copy_page".to_owned(),
        module: "[kernel]".to_owned(),
    };
    assert_eq!(row.stolen_from, Some(holder));
}

/// Waits for locks in an interrupt count as in a system call; those of user code and halted vCPUs
/// don't.
#[test]
fn waits_in_interrupts_are_counted() {
    let of_mode = |at, mode| Run {
        at,
        mode,
        stack: &["native_queued_spin_lock_slowpath", "receive_packet"],
        ..SAMPLE
    };
    let found = stalls(&[
        of_mode(1, Mode::Interrupt),
        of_mode(2, Mode::Idle),
        Run {
            at: 3,
            stack: WAITING,
            ..SAMPLE
        },
        of_mode(4, Mode::Interrupt),
    ]);
    let rows: Vec<(&str, u64)> = (found.waits.iter())
        .map(|row| (row.function.as_str(), row.samples))
        .collect();
    assert_eq!(rows, [("receive_packet", 2), ("change_inode", 1)]);
}

/// The rows of stretches with interrupts off, of samples with these stacks.
fn stretches(stacks: &[&'static [&'static str]]) -> Vec<StretchRow> {
    let runs: Vec<Run> = (1..)
        .zip(stacks)
        .map(|(at, stack)| Run {
            at,
            stack,
            has_interrupts_off: true,
            ..SAMPLE
        })
        .collect();
    stalls(&runs).interrupts_off
}

#[test]
fn a_stretch_has_its_first_stack_and_common_frames() {
    let copying: &[&str] = &["copy_page", "change_inode", "do_syscall_64"];
    let clearing: &[&str] = &["clear_page", "change_inode", "do_syscall_64"];
    let said = |stacks: &[_]| {
        let rows = stretches(stacks);
        let [row] = &rows[..] else {
            panic!("{rows:?}");
        };
        assert_eq!(row.first.function, stacks[0][0]);
        assert_eq!(row.stack, stacks[0]);
        row.common.clone()
    };
    let elsewhere: &[&str] = &["copy_page", "do_syscall_64", "change_inode"];
    for (stacks, common) in [
        (&[copying, copying][..], Some("copy_page")),
        (&[copying, clearing, copying], Some("change_inode")),
        (
            &[clearing, &["do_syscall_64"], copying],
            Some("do_syscall_64"),
        ),
        // The same function called elsewhere is another call.
        (&[copying, elsewhere], None),
    ] {
        assert_eq!(said(stacks).as_deref(), common);
    }
}

/// A single sample has no length: its row would be 0.000 ms long.
#[test]
fn stretches_of_one_sample_are_counted_and_not_listed() {
    let off = |at| Run {
        at,
        has_interrupts_off: true,
        ..SAMPLE
    };
    let on = |at| Run { at, ..SAMPLE };
    let runs = [on(1), off(2), off(3), on(4), off(6), on(7), off(9), on(13)];
    let (profile, found) = read(&runs);
    assert_eq!(found.interrupts_off.len(), 3);
    let mut out = Vec::new();
    stalls::print(&profile, &found, TableStyle::default(), &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = out.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.contains("AT MOST"))
        .unwrap();
    let row = lines[at + 1];
    assert!(row.starts_with("     1.000 ms     3.000 ms"), "{out}");
    let others = "  2 with one sample each: how long they took isn't known, at most 6.000 ms";
    assert_eq!(lines[at + 2], others);
    assert!(!out.contains(" 0.000 ms"), "{out}");
}
