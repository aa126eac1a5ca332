//! A recording in which every name is hostile.

use std::collections::BTreeMap;

use kvmprof_recording::file::{
    Account, BinaryFunction, BinaryInfo, Block, KernelInfo, Kind, Mapping, ProcessLabels,
    ProcessMappings, RecordingInfo, ResetInfo, SamplesEncoder, Segment, TasksEncoder, header,
};
use kvmprof_recording::tasks::{Task, TaskLook, TaskStack, TaskState};
use kvmprof_recording::{
    COMM_LENGTH, IPL_MASKED, LockOwner, LockWait, Mode, Preemption, Sample, StackEnd, StackParts,
    StackSummary, Ticks,
};

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
pub const FILES: [&str; 4] = [
    "<img src=x onerror=alert(1)>;\"'&\x1b[2J\u{202e}\nFORGED <script>alert(1)<\\script>",
    "<svg onload=alert(2)>;\"'&\x1b[2J\u{9b}2J\nFORGED",
    "<img src=x onerror=alert(3)>\x1b[2J\nFORGED boot",
    "<img src=x onerror=alert(4)>\x1b[2J\nFORGED again",
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

fn samples() -> Vec<u8> {
    let mut encoder = SamplesEncoder::default();
    let mut time = BEGAN;
    let mut add =
        |count, pid, comm: &[u8], mode, kernel: &[u64], user: &[u64], lock: Option<LockWait>| {
            let frames = [kernel, user].concat();
            let length = |frames: &[u64]| u16::try_from(frames.len()).unwrap();
            let end = |frames: &[u64], end| {
                if frames.is_empty() {
                    StackEnd::Absent
                } else {
                    end
                }
            };
            let mut name = [0; COMM_LENGTH];
            name[..comm.len()].copy_from_slice(comm);
            for _ in 0..count {
                time += PERIOD;
                let sample = Sample {
                    time,
                    pid,
                    tid: pid,
                    comm: name,
                    mode,
                    pc: frames[0],
                    ipl: if mode == Mode::Kernel { IPL_MASKED } else { 0 },
                    address_space: u64::from(pid.unsigned_abs()) << 13,
                    preemption: if mode == Mode::Kernel {
                        Preemption::Off
                    } else {
                        Preemption::On
                    },
                    lock,
                    stack: StackSummary {
                        kernel: length(kernel),
                        user: length(user),
                        host: 0,
                        kernel_end: end(kernel, StackEnd::Complete),
                        user_end: end(user, StackEnd::Truncated),
                    },
                    ..Sample::default()
                };
                encoder.push(
                    &Ticks {
                        sample: Some(sample),
                        ..Ticks::default()
                    },
                    &frames,
                );
            }
        };
    // A boot, which has an initcall.
    let boot = b"swapper/0".as_slice();
    add(5, 0, boot, Mode::Kernel, &[kernel(0)], &[], None);
    add(
        20,
        1,
        boot,
        Mode::Kernel,
        &[kernel(6), kernel(2), kernel(1)],
        &[],
        None,
    );
    add(3, 1, boot, Mode::Kernel, &[kernel(1)], &[], None);
    // Processes that run, wait for a lock, and are interrupted.
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
    for (pid, comm) in (100..).zip(COMMS) {
        add(
            7,
            pid,
            comm,
            Mode::User,
            &[],
            &[PROGRAM + 0x20, PROGRAM + 0x120],
            None,
        );
        add(
            4,
            pid,
            comm,
            Mode::Kernel,
            &[kernel(3), kernel(4), kernel(7)],
            &[PROGRAM + 0x20],
            Some(lock),
        );
        add(
            4,
            pid,
            comm,
            Mode::Kernel,
            &[kernel(7)],
            &[PROGRAM + 0x20],
            None,
        );
        add(
            2,
            pid,
            comm,
            Mode::Interrupt,
            &[MODULE + 0x10, kernel(7)],
            &[],
            None,
        );
    }
    let block = encoder.take();
    [
        Block::encode(Kind::Details, &block.details).unwrap(),
        Block::encode(Kind::Samples, &block.bytes).unwrap(),
    ]
    .concat()
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

/// A recording in which all names are hostile that a guest, its host or the author of the file can choose.
/// The guest has restarted in it if `is_restarted`.
pub fn recording(is_restarted: bool) -> Vec<u8> {
    let info = RecordingInfo {
        program: evil("program"),
        kernel: evil("kernel"),
        clock: evil("clock"),
        vcpus: 1,
        hz: 1000,
        tasks: Some(10),
        began_ns: 1_700_000_000_000_000_000,
        began_monotonic_ns: BEGAN,
        stacks: StackParts {
            kernel: true,
            user: true,
        },
        ..RecordingInfo::default()
    };
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
    let account = Account {
        ticks: 113,
        samples: 113,
        ..Account::default()
    };
    let mut bytes = header().to_vec();
    bytes.extend(Block::encode(Kind::Info, &serde_json::to_vec(&info).unwrap()).unwrap());
    bytes.extend(kernel.to_block().unwrap());
    bytes.extend(Block::encode(Kind::Symbols, symbols().as_bytes()).unwrap());
    bytes.extend(binary.to_block(&functions).unwrap());
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
        bytes.extend(mappings.to_block().unwrap());
        bytes.extend(
            ProcessLabels {
                pid,
                time: 1,
                labels,
            }
            .to_block()
            .unwrap(),
        );
    }
    bytes.extend(Block::encode(Kind::Tasks, &looks()).unwrap());
    bytes.extend(samples());
    if is_restarted {
        let time = BEGAN + 90 * PERIOD;
        bytes.extend(ResetInfo { time }.to_block().unwrap());
    }
    bytes.extend(Block::encode(Kind::End, &serde_json::to_vec(&account).unwrap()).unwrap());
    bytes
}
