//! Stalls in recordings with known ticks.

use std::path::Path;

use kvmprof_recording::file::{
    Block, Kind, Recording, RecordingInfo, SamplesEncoder, Unobserved, header,
};
use kvmprof_recording::{
    COMM_LENGTH, IPL_MASKED, Mode, Sample, StackEnd, StackParts, StackSummary, Ticks,
};
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
    idle: u64,
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
    idle: 0,
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
    fn encode(&self, encoder: &mut SamplesEncoder) {
        let frames: Vec<u64> = self.stack.iter().map(|name| address(name)).collect();
        let mut comm = [0; COMM_LENGTH];
        let name = format!("program {}", self.pid);
        comm[..name.len()].copy_from_slice(name.as_bytes());
        let sample = Sample {
            time: self.at * PERIOD,
            vcpu: self.vcpu,
            pid: self.pid,
            tid: self.pid,
            comm,
            mode: self.mode,
            pc: frames[0],
            ipl: if self.has_interrupts_off {
                IPL_MASKED
            } else {
                0
            },
            stack: StackSummary {
                kernel: u16::try_from(frames.len()).unwrap(),
                kernel_end: StackEnd::Complete,
                ..StackSummary::default()
            },
            ..Sample::default()
        };
        let ticks = Ticks {
            vcpu: self.vcpu,
            idle: self.idle,
            stolen: self.stolen,
            sample: Some(sample),
            ..Ticks::default()
        };
        encoder.push(&ticks, &frames);
    }
}

fn stalls(runs: &[Run]) -> Stalls {
    read(runs).1
}

fn read(runs: &[Run]) -> (Profile, Stalls) {
    let info = RecordingInfo {
        vcpus: 3,
        hz: 1000,
        clock: "thread".to_owned(),
        stacks: StackParts {
            kernel: true,
            user: false,
        },
        ..RecordingInfo::default()
    };
    let symbols: String = (0..)
        .zip(FUNCTIONS)
        .map(|(number, name)| format!("{:x} T {name}\n", BASE + number * FUNCTION))
        .collect();
    let mut encoder = SamplesEncoder::default();
    let mut runs: Vec<&Run> = runs.iter().collect();
    runs.sort_by_key(|run| run.at);
    runs.iter().for_each(|run| run.encode(&mut encoder));
    let mut bytes = header().to_vec();
    for (kind, contents) in [
        (Kind::Info, serde_json::to_vec(&info).unwrap()),
        (Kind::Symbols, symbols.into_bytes()),
        (Kind::Samples, encoder.take().bytes),
    ] {
        bytes.extend(Block::encode(kind, &contents).unwrap());
    }
    let recording = Recording::from_bytes(Path::new("test"), bytes).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let mut watcher = StallWatcher::default();
    let profile = Profile::read_with(
        &recording,
        Selection::default(),
        resolver,
        &Unobserved,
        &mut watcher,
    );
    let profile = profile.unwrap();
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
        (row.kind, row.function.as_str(), row.module.as_str()),
        (WaitKind::SpinLock, "change_inode", "[kernel]")
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
    assert_eq!(said(&[copying, copying]).as_deref(), Some("copy_page"));
    let common = said(&[copying, clearing, copying]);
    assert_eq!(common.as_deref(), Some("change_inode"));
    let common = said(&[clearing, &["do_syscall_64"], copying]);
    assert_eq!(common.as_deref(), Some("do_syscall_64"));
    // The same function called elsewhere is another call.
    let elsewhere: &[&str] = &["copy_page", "do_syscall_64", "change_inode"];
    assert_eq!(said(&[copying, elsewhere]), None);
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
    assert!(
        lines[at + 1].starts_with("     1.000 ms     3.000 ms"),
        "{out}"
    );
    let others = "  2 with one sample each: how long they took isn't known, at most 6.000 ms";
    assert_eq!(lines[at + 2], others);
    assert!(!out.contains(" 0.000 ms"), "{out}");
}
