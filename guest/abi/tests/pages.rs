//! Compares WIRE.md, PCS.md, PRF.md, PROFIL.md, PMC.md and RECORDER.md with the code: every dump with the encoder, every number
//! with its constant.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{self, Format, Header, Msample, Psample, Record};
use kvmprof_abi::pmc::{self, CounterId};
use kvmprof_abi::prf;
use kvmprof_abi::profil::{self, Call, Function, State, Status};
use kvmprof_abi::recorder;
use kvmprof_abi::wire::{
    self, HelloReply, Kind, READABLE, Reply, ReplyFrame, Request, RequestFrame, VERSION,
};

const WIRE: &str = include_str!("../WIRE.md");
const PCS: &str = include_str!("../PCS.md");
const PRF: &str = include_str!("../PRF.md");
const PROFIL: &str = include_str!("../PROFIL.md");
const PMC: &str = include_str!("../PMC.md");
const RECORDER: &str = include_str!("../RECORDER.md");

/// The dumps of a page by name.
fn dumps(page: &str) -> BTreeMap<&str, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```hexdump ") else {
            continue;
        };
        let bytes = lines
            .by_ref()
            .take_while(|line| *line != "```")
            .flat_map(|line| line.split('#').next().unwrap().split_whitespace())
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect();
        assert_eq!(all.insert(name, bytes), None, "{name} is there twice");
    }
    all
}

fn request(tag: u32, request: Request<'_>) -> Vec<u8> {
    let frame = RequestFrame { tag, request };
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

fn reply(frame: ReplyFrame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

fn success(tag: u32, what: Reply<'_>) -> Vec<u8> {
    reply(ReplyFrame::success(tag, what))
}

#[track_caller]
fn compare(page: &str, expected: &[(&str, Vec<u8>)]) {
    let mut found = dumps(page);
    for (name, bytes) in expected {
        let dump = found.remove(name);
        assert_eq!(dump.as_ref(), Some(bytes), "{name} should be {bytes:02x?}");
    }
    assert!(found.is_empty(), "nothing to compare with: {found:?}");
}

#[test]
fn dumps_of_requests_and_replies() {
    let handle = 1;
    let flags = 0;
    let (lowest, highest) = (VERSION, VERSION);
    let ioctl = |command, argument, data| Request::Ioctl {
        handle,
        command,
        argument,
        limit: 0,
        data,
    };
    let open = Request::Open {
        device: wire::device::PCS,
        minor: 0,
        flags,
    };
    let limit = 1024;
    let events = READABLE;
    let list: Vec<u8> = [2_i32, 42, 43]
        .into_iter()
        .flat_map(i32::to_le_bytes)
        .collect();
    let hello = Reply::Hello(HelloReply::answer(1, 1, 2, 100));
    let ioctl_reply = Reply::Ioctl {
        value: 0,
        data: b"",
    };
    let refused = ReplyFrame::failure(2, Kind::Open, Errno::EBUSY);
    let cancelled = ReplyFrame::failure(5, Kind::Read, Errno::EINTR);
    compare(
        WIRE,
        &[
            ("hello", request(1, Request::Hello { lowest, highest })),
            ("hello-reply", success(1, hello)),
            ("open-pcs", request(2, open)),
            ("open-reply", success(2, Reply::Open { handle })),
            ("open-refused", reply(refused)),
            ("close", request(9, Request::Close { handle })),
            (
                "read",
                request(
                    5,
                    Request::Read {
                        handle,
                        limit,
                        flags,
                    },
                ),
            ),
            ("read-reply", success(5, Reply::Read { data: b"hello" })),
            ("ioctl-number", request(3, ioctl(pcs::BUF_INCR, 5, b""))),
            ("ioctl-pointer", request(4, ioctl(pcs::PROF_LIST, 0, &list))),
            ("ioctl-reply", success(4, ioctl_reply)),
            (
                "poll",
                request(
                    6,
                    Request::Poll {
                        handle,
                        events,
                        flags,
                    },
                ),
            ),
            ("poll-reply", success(6, Reply::Poll { events })),
            ("cancel", request(7, Request::Cancel { tag: 5 })),
            ("cancelled-read", reply(cancelled)),
            ("cancel-reply", success(7, Reply::Cancel)),
        ],
    );
}

#[test]
fn dumps_of_records() {
    let sample = Record::Sample(Psample {
        kind: pcs::kind::USER,
        sspace: 0,
        cpu: 1,
        pid: 42,
        pc: 0x40_1000,
    });
    let merged = Record::Merged(Msample {
        kind: pcs::kind::IDLE,
        cpu: 1,
        count: 100,
    });
    let header = |format: Format| {
        let unused = u16::try_from(format.wasted_per_buffer(pcs::BSIZE)).unwrap();
        Header { unused, lost: 3 }.encode(format).to_vec()
    };
    let record = |record: Record, format| record.encode(format).to_vec();
    compare(
        PCS,
        &[
            ("native-psample", record(sample, Format::Native)),
            ("native-msample", record(merged, Format::Native)),
            ("classic-psample", record(sample, Format::Classic)),
            ("native-header", header(Format::Native)),
            ("classic-header", header(Format::Classic)),
        ],
    );
}

#[track_caller]
fn says(page: &str, text: &str) {
    assert!(page.contains(text), "the page doesn't say {text:?}");
}

#[test]
fn numbers_of_the_wire() {
    for (name, value) in [
        ("max_data", wire::MAX_DATA),
        ("max_ioctl_data", wire::MAX_IOCTL_DATA),
        ("max_outstanding", wire::MAX_OUTSTANDING),
        ("max_handles", wire::MAX_HANDLES),
    ] {
        says(WIRE, &format!("| `{name}` | {value} |"));
    }
    for (number, name) in [
        (wire::device::PCS, "pcs"),
        (wire::device::PRF, "prf"),
        (wire::device::STATUS, "status"),
        (wire::device::PROCESSES, "processes"),
        (wire::device::KALLSYMS, "kallsyms"),
    ] {
        says(WIRE, &format!("| {number} | {name} |"));
    }
    for (kind, name) in [
        (Kind::Hello, "hello"),
        (Kind::Open, "open"),
        (Kind::Read, "read"),
        (Kind::Write, "write"),
        (Kind::Ioctl, "ioctl"),
        (Kind::Poll, "poll"),
        (Kind::Cancel, "cancel"),
        (Kind::Close, "close"),
    ] {
        says(WIRE, &format!("| {} | {name} |", kind as u16));
    }
    says(WIRE, &format!("up to {} bytes", wire::MAX_HELLO));
    for errno in [
        Errno::EINTR,
        Errno::ENXIO,
        Errno::EBADF,
        Errno::EAGAIN,
        Errno::EACCES,
        Errno::EFAULT,
        Errno::EBUSY,
        Errno::ENODEV,
        Errno::EINVAL,
        Errno::EMFILE,
        Errno::ENOBUFS,
    ] {
        let (name, _) = errno.describe().unwrap();
        says(WIRE, &format!("| {} | {name} |", errno.0));
    }
}

#[test]
fn numbers_of_pcs() {
    for (name, command) in [
        ("BUF_INCR", pcs::BUF_INCR),
        ("PROF_KERNEL", pcs::PROF_KERNEL),
        ("PROF_ALL", pcs::PROF_ALL),
        ("PROF_GROUP", pcs::PROF_GROUP),
        ("PROF_LIST", pcs::PROF_LIST),
        ("PCS_FLUSH", pcs::PCS_FLUSH),
        ("PCS_SETFORMAT", pcs::PCS_SETFORMAT),
        ("PCS_SETBSIZE", pcs::PCS_SETBSIZE),
        ("PCS_GETHZ", pcs::PCS_GETHZ),
        ("PCS_SETHZ", pcs::PCS_SETHZ),
        ("PCS_STOP", pcs::PCS_STOP),
        ("PCS_GETSTAT", pcs::PCS_GETSTAT),
    ] {
        says(PCS, &format!("| `{name}` | {command:#06x} |"));
    }
    for (kind, name) in [
        (pcs::kind::KERNEL, "KERNEL"),
        (pcs::kind::USER, "USER"),
        (pcs::kind::IDLE, "IDLE"),
        (pcs::kind::MKERNEL, "MKERNEL"),
        (pcs::kind::MUSER, "MUSER"),
        (pcs::kind::KERNELI, "KERNELI"),
        (pcs::kind::MKERNELI, "MKERNELI"),
    ] {
        says(PCS, &format!("| {kind} | {name} |"));
    }
    says(PCS, &format!("more than its {}", pcs::DEF_BUFNO));
    says(PCS, &format!("more than {} in all", pcs::MAX_BUFS));
    says(PCS, &format!("1 to {} processes", pcs::MAX_LIST));
    let (least, most) = (pcs::MIN_BSIZE, pcs::MAX_BSIZE);
    says(PCS, &format!("a power of two, {least} to {most}"));
    says(PCS, &format!("{} to {} Hz", pcs::MIN_HZ, pcs::MAX_HZ));
    says(PCS, &format!("stores {} bytes", pcs::STATUS_SIZE));
    says(PCS, &format!("sequence of buffers, {} bytes", pcs::BSIZE));
    says(PCS, &format!("every {} ticks", pcs::MERGE_TICKS));
    says(PCS, &format!("below {}", pcs::UNUSED_BOUND));
    for (format, name) in [(Format::Native, "native"), (Format::Classic, "classic")] {
        says(PCS, &format!("{} {name}", format.number()));
    }
}

#[test]
fn numbers_of_prf() {
    for (name, command) in [
        ("PRF_GETSTATUS", prf::PRF_GETSTATUS),
        ("PRF_GETSIZE", prf::PRF_GETSIZE),
        ("PRF_SETSTATE", prf::PRF_SETSTATE),
        ("PRF_GETMAX", prf::PRF_GETMAX),
    ] {
        says(PRF, &format!("| `{name}` | {command:#06x} |"));
    }
    for errno in [Errno::ENOSPC, Errno::E2BIG, Errno::EBUSY, Errno::EINVAL] {
        let (name, _) = errno.describe().unwrap();
        says(PRF, &format!("| {} | {name} |", errno.0));
    }
    let (least, most) = (prf::MIN_ADDRESSES, prf::MAX_ADDRESSES);
    says(PRF, &format!("{least} to `PRF_GETMAX` addresses"));
    says(PRF, &format!("fewer than {least} addresses"));
    says(PRF, &format!("may have {most} addresses"));
    says(PRF, &format!("and {} bytes long", prf::WORD_SIZE));
    says(PRF, &format!("| {} | `{}` |", prf::ALL_VCPUS, prf::NODE));
    says(PRF, &format!("\n{} times a second", prf::RATE_HZ));
    assert_eq!((prf::STATUS_ON, prf::STATUS_LOADED), (1, 2));
    let (each, more) = (prf::read_size(1) - prf::read_size(0), prf::read_size(0));
    says(
        PRF,
        &format!("{each} bytes for each address and {more} more"),
    );
}

#[test]
fn dump_of_a_read() {
    let words: [u64; 8] = [
        0,
        0xffff_ffff_8100_0000,
        0xffff_ffff_8100_1240,
        0,
        7,
        300,
        1000,
        16,
    ];
    let bytes = words.into_iter().flat_map(u64::to_le_bytes).collect();
    assert_eq!(prf::read_size(3), 8 * words.len());
    compare(PRF, &[("read-3-addresses", bytes)]);
}

#[test]
fn numbers_of_profil() {
    for (name, command) in [
        ("PROFIL_CALL", profil::PROFIL_CALL),
        ("PROFIL_GETSTAT", profil::PROFIL_GETSTAT),
    ] {
        says(PROFIL, &format!("| `{name}` | {command:#06x} |"));
    }
    for errno in [Errno::ENXIO, Errno::EFAULT, Errno::EINVAL, Errno::ENOSPC] {
        let (name, _) = errno.describe().unwrap();
        says(PROFIL, &format!("| {} | {name} |", errno.0));
    }
    let device = wire::device::PROFIL;
    says(PROFIL, &format!("(device {device}, minor 0)"));
    says(PROFIL, &format!("`{}`", profil::NODE));
    says(PROFIL, &format!("{} times a second", profil::RATE_HZ));
    says(PROFIL, &format!("{} bytes, little-endian", Call::SIZE));
    says(
        PROFIL,
        &format!("function 3, {} bytes", profil::Range::SIZE),
    );
    says(PROFIL, &format!("stores {} bytes", Status::SIZE));
    says(PROFIL, &format!("more than {}", profil::MAX_RANGES));
    says(PROFIL, &format!("would pass {}", profil::SOLARIS_MAX_COUNT));
    says(
        PROFIL,
        &format!("longer than {} MiB", profil::MAX_KEPT >> 20),
    );
    for (number, function) in [
        (1, Function::Profil),
        (2, Function::AixProfil),
        (3, Function::AixRanges),
        (4, Function::Pcsample),
    ] {
        assert_eq!(Function::from_number(number), Some(function));
    }
    for state in State::ALL {
        says(
            PROFIL,
            &format!("| {} | {} |", state as u32, state.describe()),
        );
    }
}

#[test]
fn dumps_of_profil() {
    let call = Call {
        function: Function::Profil,
        flags: Call::KEEP,
        pid: 101,
        ranges: 0,
        buffer: 0,
        size: 0x8_0000,
        offset: 0x60_0000,
        scale: 0x4000,
        time: u64::MAX,
        program: [0; 16],
    };
    let status = Status {
        state: State::On,
        ticks: 120,
        stored: 100,
        outside: 15,
        waiting: 5,
        lost: 0,
    };
    compare(
        PROFIL,
        &[
            ("call-profil-101", call.encode().to_vec()),
            ("state", status.encode().to_vec()),
        ],
    );
}

#[test]
fn numbers_of_pmc() {
    for (name, command) in [
        ("PMC_CALL", pmc::PMC_CALL),
        ("PMC_ACCOUNT", pmc::PMC_ACCOUNT),
    ] {
        says(PMC, &format!("| `{name}` | {command:#06x} |"));
    }
    for errno in [
        Errno::EPERM,
        Errno::ENXIO,
        Errno::ENOMEM,
        Errno::EFAULT,
        Errno::EBUSY,
        Errno::ENODEV,
        Errno::EINVAL,
        Errno::EINPROGRESS,
    ] {
        let (name, _) = errno.describe().unwrap();
        says(PMC, &format!("| {} | {name} |", errno.0));
    }
    let device = wire::device::PMC;
    says(PMC, &format!("(device {device}, minor 0)"));
    says(PMC, &format!("`{}`", pmc::NODE));
    says(PMC, &format!("{} bytes, little-endian", pmc::Call::SIZE));
    says(PMC, &format!("returns {} |", pmc::COUNTERS));
    for counter in CounterId::ALL {
        let (number, name) = (counter.number(), counter.name());
        let (source, what) = (counter.source().name(), counter.description());
        says(PMC, &format!("| {number} | {name} | {source} | {what} |"));
    }
    for function in pmc::Function::ALL {
        says(PMC, &format!("\n| {} | `", function as u32));
    }
}

#[test]
fn dump_of_a_call_of_pmc() {
    let call = pmc::Call {
        flags: pmc::VALUE_FLAGS_CHILDREN,
        value: 42,
        ..pmc::Call::new(pmc::Function::Value, 101, 3)
    };
    compare(PMC, &[("call-value-101", call.encode().to_vec())]);
}

#[test]
fn numbers_of_the_recorder() {
    for (name, command) in [
        ("REC_START", recorder::REC_START),
        ("REC_STOP", recorder::REC_STOP),
        ("REC_PIDS", recorder::REC_PIDS),
        ("REC_EVENT", recorder::REC_EVENT),
    ] {
        says(RECORDER, &format!("| {name} | {command:#06x} |"));
    }
    for (name, event) in [
        ("EVENT_EXITS", recorder::EVENT_EXITS),
        ("EVENT_PORT", recorder::EVENT_PORT),
        ("EVENT_PORT_READ", recorder::EVENT_PORT_READ),
        ("EVENT_PORT_WRITE", recorder::EVENT_PORT_WRITE),
        ("EVENT_MMIO", recorder::EVENT_MMIO),
        ("EVENT_MMIO_READ", recorder::EVENT_MMIO_READ),
        ("EVENT_MMIO_WRITE", recorder::EVENT_MMIO_WRITE),
        ("EVENT_GUEST_TIME", recorder::EVENT_GUEST_TIME),
        ("EVENT_HALT", recorder::EVENT_HALT),
        ("EVENT_PAGE_FAULTS", recorder::EVENT_PAGE_FAULTS),
        ("EVENT_KVM_EXITS", recorder::EVENT_KVM_EXITS),
        ("EVENT_CYCLES", recorder::EVENT_CYCLES),
        ("EVENT_INSTRUCTIONS", recorder::EVENT_INSTRUCTIONS),
        ("EVENT_BRANCHES", recorder::EVENT_BRANCHES),
        ("EVENT_BRANCH_MISSES", recorder::EVENT_BRANCH_MISSES),
        ("EVENT_CACHE_REFERENCES", recorder::EVENT_CACHE_REFERENCES),
        ("EVENT_CACHE_MISSES", recorder::EVENT_CACHE_MISSES),
    ] {
        says(RECORDER, &format!("| {name} | {event} |"));
    }
    says(RECORDER, &format!("1 to {}", recorder::MAX_PERIOD));
    says(RECORDER, &format!("{} at least", recorder::MIN_GUEST_TIME));
    says(RECORDER, &format!("{} at least", recorder::MIN_CYCLES));
    says(RECORDER, &format!("more than {}", recorder::MAX_PIDS));
    let parts = [recorder::STACK_KERNEL, recorder::STACK_USER];
    says(
        RECORDER,
        &format!(
            "{}: the kernel's frames, {}: the user's",
            parts[0], parts[1]
        ),
    );
}

#[test]
fn account_lies_where_the_page_says() {
    let ledger = pcs::Ledger {
        ticks: 0,
        recorded: 8,
        merged: 16,
        ungathered: 24,
        stolen: 32,
        lost: 40,
        pending: 48,
        discarded: 56,
    };
    let status = pcs::Status {
        ledger,
        hz: 64,
        vcpus: 68,
        format: Format::Classic,
        buffer_size: 76,
        buffers: 80,
        modes: 84,
    };
    // Every field holds its own offset, except the format.
    let bytes = status.encode().to_vec();
    let row = |offset: usize, kind, name| says(PCS, &format!("| {offset} | {kind} | {name} |"));
    for (index, name) in [
        "ticks",
        "recorded",
        "merged",
        "ungathered",
        "stolen",
        "lost",
        "pending",
        "discarded",
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(usize::from(bytes[index * 8]), index * 8);
        row(index * 8, "u64", name);
    }
    for (index, name) in ["hz", "vcpus", "format", "bsize", "bufno", "modes"]
        .into_iter()
        .enumerate()
    {
        let offset = 64 + index * 4;
        if name == "format" {
            assert_eq!(u32::from(bytes[offset]), Format::Classic.number());
        } else {
            assert_eq!(usize::from(bytes[offset]), offset);
        }
        row(offset, "u32", name);
    }
}
