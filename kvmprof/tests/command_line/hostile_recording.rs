//! A recording in which every name is hostile.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_recording::exits::{
    Counts, ExitInterval, Exits, Histogram, HostGuest, HostTimes, OfFunction, OfProcess, OfReason,
    OfThread, OfWait, ReasonName,
};
use kvmprof_recording::file::{
    BinaryFunction, BinaryInfo, Block, KernelInfo, Kind, Mapping, ProcessLabels, ProcessMappings,
    RecordingInfo, ResetInfo, Segment, TasksEncoder,
};
use kvmprof_recording::tasks::{Task, TaskLook, TaskStack, TaskState};
use kvmprof_recording::{
    COMM_LENGTH, FaultKind, IPL_MASKED, LockOwner, LockWait, MemoryFault, Mode, Preemption, Sample,
    StackEnd, comm_of,
};

use super::recordings::Written;

/// A line that begins with this comes from a name.
pub const FORGED: &str = "FORGED";

/// A name with everything that acts in HTML, in a script, in SVG, in folded stacks, in tables and on a
/// terminal.
pub fn evil(of: &str) -> String {
    format!(
        "{of}</script></style></title></text>--><img src=x onerror=\"alert(1);location='http://127.0.0.1:9/{of}'\">\
         <script>alert('{of}');fetch('http://127.0.0.1:9/')</script><svg/onload=alert(1)>'\"&lt;;]]>{{}}`\\\
         \x1b[2J\x1b]0;x\x07\u{9b}2J\u{202e}\u{2028}\u{200b}\r\n{FORGED} {of} 7\t\x7f\n"
    )
}

/// The same without the characters that end a name in a symbol table.
fn evil_symbol(of: &str) -> String {
    evil(of).replace([' ', '\r', '\n', '\t'], "/")
}

/// Names of threads, which are short.
const COMMS: [&[u8; COMM_LENGTH]; 5] = [
    b"<svg onload=a()>",
    b"</script><b>\x1b[2J",
    b"\nFORGED;x 7\t\"'&\0",
    b"\x1b]0;x\x07\xc2\x9b2J\xe2\x80\xae\0\0\0",
    b"</title>--></g>;",
];

/// Names of files of recordings.
pub const FILES: [&str; 5] = [
    "<img src=x onerror=alert(1)>;\"'&\x1b[2J\u{202e}\nFORGED <script>alert(1)<\\script>",
    "<svg onload=alert(2)>;\"'&\x1b[2J\u{9b}2J\nFORGED",
    "<img src=x onerror=alert(3)>\x1b[2J\nFORGED boot",
    "<img src=x onerror=alert(4)>\x1b[2J\nFORGED again",
    "<img src=x onerror=alert(5)>\x1b[2J\nFORGED faults",
];

const SYMBOLS: [&str; 6] = [
    "start_kernel",
    "kernel_init",
    "do_one_initcall",
    "native_queued_spin_lock_slowpath",
    "_raw_spin_lock",
    "last",
];
const BASE: u64 = 0xffff_ffff_8100_0000;
const MODULE: u64 = 0xffff_ffff_c000_1000;
const PROGRAM: u64 = 0x40_1000;
const BEGAN: u64 = 5_000_000_000;
const PERIOD: u64 = 1_000_000;

/// An address in the function of this number: first those of [`SYMBOLS`], then two hostile ones.
fn kernel(number: u64) -> u64 {
    BASE + number * 0x1000 + 0x10
}

fn symbols() -> String {
    let names = SYMBOLS.map(str::to_owned).into_iter();
    let names = names.chain([
        evil_symbol("initcall"),
        evil_symbol("function"),
        "_end".to_owned(),
    ]);
    let lines = (0..)
        .zip(names)
        .map(|(number, name)| format!("{:x} T {name}\n", kernel(number) - 0x10));
    let module = format!(
        "{MODULE:x} t {}\t[{}]\n",
        evil_symbol("of a module"),
        evil_symbol("module")
    );
    lines.collect::<String>() + &module
}

/// A boot, which has an initcall, and processes that run, wait for a lock, and are interrupted.
fn add_samples(written: &mut Written) {
    for (count, pid, stack) in [
        (5, 0, &[kernel(0)][..]),
        (20, 1, &[kernel(6), kernel(2), kernel(1)]),
        (3, 1, &[kernel(1)]),
    ] {
        let boot = in_kernel(pid, comm_of("swapper/0"));
        written.samples_like(&boot, count, (stack, &[]));
    }
    let owner = LockOwner {
        pid: 103,
        tid: 103,
        comm: *COMMS[2],
        vcpu: None,
    };
    let lock = LockWait {
        address: kernel(5),
        owner: Some(owner),
    };
    written.user_parts_end(StackEnd::Truncated);
    for (pid, comm) in (100..).zip(COMMS) {
        let user = [PROGRAM + 0x20, PROGRAM + 0x120];
        let running = in_kernel(pid, *comm);
        let waiting = Sample {
            lock: Some(lock),
            ..running
        };
        let outside = |mode| {
            let mut sample = running;
            (sample.mode, sample.ipl, sample.preemption) = (mode, 0, Preemption::On);
            sample
        };
        let wait = [kernel(3), kernel(4), kernel(7)];
        written.samples_like(&outside(Mode::User), 7, (&[], &user));
        written.samples_like(&waiting, 4, (&wait, &user[..1]));
        written.samples_like(&running, 4, (&[kernel(7)], &user[..1]));
        let interrupted = [MODULE + 0x10, kernel(7)];
        written.samples_like(&outside(Mode::Interrupt), 2, (&interrupted, &[]));
    }
}

/// A sample in the kernel with interrupts off.
fn in_kernel(pid: i32, comm: [u8; COMM_LENGTH]) -> Sample {
    Sample {
        pid,
        tid: pid,
        comm,
        mode: Mode::Kernel,
        ipl: IPL_MASKED,
        address_space: u64::from(pid.unsigned_abs()) << 13,
        preemption: Preemption::Off,
        ..Sample::default()
    }
}

fn looks() -> Vec<u8> {
    let mut encoder = TasksEncoder::default();
    for number in 1..=3 {
        let task = |pid, comm: &[u8; COMM_LENGTH]| Task {
            pid,
            tid: pid,
            comm: *comm,
            state: TaskState::Uninterruptible,
            switches: 7,
            stack: TaskStack::Known {
                first: 0,
                count: 2,
                scheduler: 0,
                end: StackEnd::Complete,
            },
            ..Task::default()
        };
        let look = TaskLook {
            time: BEGAN + number * 10 * PERIOD,
            is_complete: true,
            tasks: (100..)
                .zip(COMMS)
                .map(|(pid, comm)| task(pid, comm))
                .collect(),
            frames: vec![kernel(7), MODULE + 0x10],
            ..TaskLook::default()
        };
        encoder.push(&look, |_| true);
    }
    encoder.take()
}

/// Exits for a reason with a hostile name, of the guest's processes, while two guests of the host and a program of the host took the vCPU's time.
fn exits() -> ExitInterval {
    const REASON: u32 = 30;
    const VMM: u32 = 9000;
    let exits = Exits {
        count: 5,
        time: 5 * PERIOD,
    };
    let processes = (100..).zip(COMMS).map(|(pid, name)| OfProcess {
        reason: REASON,
        process: Some(pid),
        name: *name,
        exits,
    });
    let waits = (VMM + 1..).zip(COMMS).map(|(thread, name)| OfWait {
        thread: VMM,
        other_thread: thread,
        other_process: thread,
        name: *name,
        turns: exits,
    });
    let guest = |process, name: Option<&str>| HostGuest {
        process,
        name: name.map(evil),
        program: evil("VMM"),
        vcpus: BTreeSet::from([process]),
        is_counted: process == VMM,
    };
    ExitInterval {
        begin: BEGAN,
        end: BEGAN + 100 * PERIOD,
        vcpus: 1,
        knows_processes: true,
        names: BTreeMap::from([(
            REASON,
            ReasonName {
                name: evil("reason"),
                is_halt: false,
            },
        )]),
        softirqs: BTreeMap::from([(1, evil("softirq"))]),
        containers: BTreeMap::from([(100, evil("container"))]),
        host: HostTimes {
            throttled: exits,
            stolen: PERIOD,
            processors: 1,
        },
        guests: vec![
            guest(VMM, Some("guest")),
            guest(VMM + 1, Some("other guest")),
            guest(VMM + 2, None),
        ],
        missing: vec![evil("tracepoint")],
        counts: Counts {
            isa: 1,
            reasons: vec![OfReason {
                reason: REASON,
                vcpu: 0,
                exits,
                longest: PERIOD,
                left: exits,
                histogram: Histogram::default(),
            }],
            functions: vec![OfFunction {
                reason: REASON,
                process: Some(100),
                address: kernel(7),
                exits,
            }],
            processes: processes.collect(),
            threads: vec![OfThread {
                thread: VMM,
                vcpu: 0,
                waits: exits,
                migrations: 3,
            }],
            waits: waits.collect(),
            left_kvm: 5,
            ..Counts::default()
        },
    }
}

/// A recording without samples, of a guest with these symbols, whose program, kernel and clock have hostile names.
fn written() -> Written {
    let mut written = Written::with_symbols(&symbols());
    written.info = RecordingInfo {
        program: evil("program"),
        kernel: evil("kernel"),
        clock: evil("clock"),
        ..written.info
    };
    written
}

/// A recording of the faults of guest memory of processes and a container with hostile names.
pub fn faults() -> Vec<u8> {
    let mut written = written();
    written.info.event = Some("page-faults:1".parse().unwrap());
    for (pid, comm) in (100..).zip(COMMS) {
        let labels = BTreeMap::from([("container".to_owned(), evil("container"))]);
        let labels = ProcessLabels {
            pid,
            time: 1,
            labels,
        };
        written.guest.push(labels.to_block().unwrap());
        let sample = Sample {
            fault: Some(MemoryFault {
                address: u64::from(pid.unsigned_abs()) << 12,
                slot: Some(0),
                kind: FaultKind::FirstTouch,
                time: PERIOD,
            }),
            ..in_kernel(pid, *comm)
        };
        written.samples_like(&sample, 3, (&[kernel(7)], &[]));
    }
    written.finish().0
}

/// A recording in which all names are hostile that a guest, its host or the author of the file can choose.
/// The guest has restarted in it if `is_restarted`.
pub fn recording(is_restarted: bool) -> Vec<u8> {
    let mut written = written();
    written.info.tasks = Some(10);
    let kernel = KernelInfo {
        release: evil("release"),
        build_id: evil("build id"),
        slide: 0,
        gaps: vec![evil("gap")],
    };
    let binary = BinaryInfo {
        id: 3,
        file: evil("file"),
        build_id: evil("build id of a file"),
        segments: vec![Segment {
            offset: 0,
            address: PROGRAM,
            length: 0x1000,
        }],
        source: evil("source"),
        ..BinaryInfo::default()
    };
    let function = |address, name: &str| BinaryFunction {
        address,
        length: 0x100,
        name: name.to_owned(),
    };
    let functions = [
        function(PROGRAM, &evil_symbol("user function")),
        function(PROGRAM + 0x100, "_ZN3</script>3<b>E"),
    ];
    let blocks = [kernel.to_block(), binary.to_block(&functions)];
    written.guest.extend(blocks.map(Option::unwrap));
    for (pid, value) in (100_i32..).zip([
        "user",
        "<script>alert(1)</script>",
        "\x1b[2J\u{202e}\nFORGED;x 7",
    ]) {
        let mappings = ProcessMappings {
            address_space: u64::from(pid.unsigned_abs()) << 13,
            pid,
            name: evil("process"),
            time: 1,
            mappings: vec![Mapping {
                begin: PROGRAM,
                end: PROGRAM + 0x1000,
                offset: 0,
                file: evil("file"),
                binary: Some(3),
            }],
            ..ProcessMappings::default()
        };
        let labels = BTreeMap::from([
            (evil("key"), evil("value")),
            ("user".to_owned(), value.to_owned()),
        ]);
        let labels = ProcessLabels {
            pid,
            time: 1,
            labels,
        };
        let blocks = [mappings.to_block(), labels.to_block()];
        written.guest.extend(blocks.map(Option::unwrap));
    }
    written
        .guest
        .push(Block::encode(Kind::Tasks, &looks()).unwrap());
    written.guest.push(exits().to_block().unwrap());
    if is_restarted {
        let time = BEGAN + 90 * PERIOD;
        written.guest.push(ResetInfo { time }.to_block().unwrap());
    }
    add_samples(&mut written);
    written.finish().0
}
