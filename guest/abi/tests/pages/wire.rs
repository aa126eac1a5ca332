//! WIRE.md.

use kvmprof_abi::commands::of_device;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs;
use kvmprof_abi::wire::{
    self, HelloReply, Kind, READABLE, Reply, ReplyFrame, Request, VERSION, device,
};

use super::{compare, reply, request, says, success};

pub const WIRE: &str = include_str!("../../WIRE.md");

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
    let read = Request::Read {
        handle,
        limit: 1024,
        flags,
    };
    let events = READABLE;
    let poll = Request::Poll {
        handle,
        events,
        flags,
    };
    let list = [2_i32, 42, 43].map(i32::to_le_bytes).concat();
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
            ("read", request(5, read)),
            ("read-reply", success(5, Reply::Read { data: b"hello" })),
            ("ioctl-number", request(3, ioctl(pcs::BUF_INCR, 5, b""))),
            ("ioctl-pointer", request(4, ioctl(pcs::PROF_LIST, 0, &list))),
            ("ioctl-reply", success(4, ioctl_reply)),
            ("poll", request(6, poll)),
            ("poll-reply", success(6, Reply::Poll { events })),
            ("cancel", request(7, Request::Cancel { tag: 5 })),
            ("cancelled-read", reply(cancelled)),
            ("cancel-reply", success(7, Reply::Cancel)),
        ],
    );
}

#[test]
fn numbers_of_the_wire() {
    for (name, value) in [
        ("max_data", wire::MAX_DATA),
        ("max_ioctl_data", wire::MAX_IOCTL_DATA),
        ("max_outstanding", wire::MAX_OUTSTANDING),
        ("max_handles", wire::MAX_HANDLES),
    ] {
        says(WIRE, &format!("{name} {value} "));
    }
    for (number, name) in [
        (wire::device::PCS, "pcs"),
        (wire::device::PRF, "prf"),
        (wire::device::STATUS, "status"),
        (wire::device::PROCESSES, "processes"),
        (wire::device::KALLSYMS, "kallsyms"),
        (wire::device::CONTROL, "control"),
        (wire::device::PROCESS_LIST, "process list"),
    ] {
        says(WIRE, &format!("- {number} {name}: "));
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
        says(WIRE, &format!(" {} {name} ", kind as u16));
    }
    says(WIRE, &format!("up to {} bytes", wire::MAX_HELLO));
    let of_calls = [Errno::EINTR, Errno::ENXIO, Errno::EBADF, Errno::EAGAIN];
    let of_devices = [Errno::EACCES, Errno::EFAULT, Errno::EBUSY, Errno::ENODEV];
    let of_limits = [Errno::EINVAL, Errno::EMFILE, Errno::ENOBUFS, Errno::ENOMEM];
    for errno in [of_calls, of_devices, of_limits].concat() {
        let (name, _) = errno.describe().unwrap();
        says(WIRE, &format!(" {} {name} ", errno.0));
    }
}

#[test]
fn commands_of_control() {
    for command in of_device(device::CONTROL) {
        let (name, number) = (command.name, command.number);
        says(WIRE, &format!("- `{name}` {number:#06x}"));
    }
}
