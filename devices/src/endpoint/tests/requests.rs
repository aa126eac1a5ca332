//! Tests of single requests.

use std::time::Duration;

use kvmprof_abi::wire::{
    HANG_UP, Kind, MAX_DATA, MAX_HANDLES, MAX_OUTSTANDING, NONBLOCKING, READABLE, Reply,
    ReplyFrame, Request, VERSION, WRITABLE, WireError,
};

use super::*;

#[test]
fn requests_before_the_hello_are_refused() {
    let mut bench = Bench::default();
    let mut endpoint = Endpoint::new(Client::Host, HelloInfo::default());
    let open = open_request(1, 0);
    let result = endpoint.receive(&encode(1, open), &mut bench);
    assert_eq!(result, Err(EndpointError::NoHello));
    assert!(bench.open.is_empty());
    let mut talk = Conversation::new();
    assert_eq!(talk.try_say(1, HELLO), Err(EndpointError::SecondHello));
}

#[test]
fn hello_has_limits_and_can_be_repeated_after_a_wrong_version() {
    let mut bench = Bench::default();
    let info = HelloInfo { vcpus: 3, hz: 250 };
    let mut endpoint = Endpoint::new(Client::Host, info);
    for (lowest, highest, version) in [(2, 9, 0), (0, 0, 0), (5, 1, 0), (1, 9, 1)] {
        let request = Request::Hello { lowest, highest };
        endpoint.receive(&encode(7, request), &mut bench).unwrap();
        let (frame, length) = ReplyFrame::decode(endpoint.output()).unwrap().unwrap();
        let Ok(Reply::Hello(hello)) = frame.result else {
            panic!("{frame:?}");
        };
        assert_eq!((frame.tag, hello.version), (7, version));
        assert_eq!((hello.lowest, hello.highest), (VERSION, VERSION));
        assert_eq!((hello.vcpus, hello.hz), (3, 250));
        assert_eq!(usize::try_from(hello.max_data).unwrap(), MAX_DATA);
        endpoint.consume(length);
    }
}

#[test]
fn a_blocked_read_does_not_delay_later_requests() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    assert_eq!(talk.read(1, handle, 10), []);
    assert_eq!(talk.read(2, handle, 10), []);
    let reversed = ioctl(handle, (3, -5), 2, b"abc");
    assert_eq!(talk.say(3, reversed), [got(3, Kind::Ioctl, -5, b"cb")]);
    assert_eq!(talk.endpoint.outstanding(), 2);
    let both = [(1, 0, 10), (2, 10, 2)]
        .map(|(tag, from, length)| got(tag, Kind::Read, 0, &counting(from, length)));
    assert_eq!(talk.release(12), both);
    assert_eq!(talk.endpoint.outstanding(), 0);
    assert_eq!(talk.read(4, handle, 0), [got(4, Kind::Read, 0, b"")]);
}

#[test]
fn an_ioctl_that_produces_data_completes_a_waiting_read() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    assert_eq!(talk.read(1, handle, 10), []);
    let answers = [
        got(2, Kind::Ioctl, 0, b""),
        got(1, Kind::Read, 0, &counting(0, 3)),
    ];
    assert_eq!(talk.say(2, ioctl(handle, (1, 3), 0, b"")), answers);
}

#[test]
fn nonblocking_applies_to_an_open_or_one_request() {
    let (mut talk, patient) = Conversation::opened(COMMON);
    let hasty = talk.open(COMMON, NONBLOCKING);
    let again = |tag| [failed(tag, Kind::Read, Errno::EAGAIN)];
    assert_eq!(talk.read(1, hasty, 10), again(1));
    let request = read_request(patient, 10, NONBLOCKING);
    assert_eq!(talk.say(2, request), again(2));
    let request = Request::Poll {
        handle: patient,
        events: READABLE,
        flags: NONBLOCKING,
    };
    assert_eq!(talk.say(3, request), [got(3, Kind::Poll, 0, &[])]);
    let unknown = read_request(patient, 10, 2);
    assert_eq!(talk.say(4, unknown), [failed(4, Kind::Read, Errno::EINVAL)]);
}

#[test]
fn poll_waits_for_the_requested_events_and_the_end() {
    let mut talk = Conversation::new();
    let handle = talk.open(COMMON, NONBLOCKING);
    let poll = |events| Request::Poll {
        handle,
        events,
        flags: 0,
    };
    assert_eq!(talk.say(1, poll(READABLE | WRITABLE)), []);
    assert_eq!(talk.say(2, poll(WRITABLE)), []);
    for unknown in [8, READABLE | 8, 1 << 31] {
        let refused = failed(3, Kind::Poll, Errno::EINVAL);
        assert_eq!(talk.say(3, poll(unknown)), [refused], "{unknown:#x}");
    }
    let ready = i64::from(READABLE);
    assert_eq!(talk.release(1), [got(1, Kind::Poll, ready, &[])]);
    talk.bench.ended = true;
    let gone = i64::from(HANG_UP);
    assert_eq!(talk.release(0), [got(2, Kind::Poll, gone, &[])]);
}

#[test]
fn cancel_answers_both_requests_and_takes_no_data() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    talk.read(1, handle, 10);
    talk.read(2, handle, 10);
    let cancel = Request::Cancel { tag: 1 };
    let both = [
        failed(1, Kind::Read, Errno::EINTR),
        got(3, Kind::Cancel, 0, &[]),
    ];
    assert_eq!(talk.say(3, cancel), both);
    assert_eq!(talk.say(4, cancel), [got(4, Kind::Cancel, 0, &[])]);
    // The cancelled read took nothing.
    assert_eq!(talk.release(5), [got(2, Kind::Read, 0, &counting(0, 5))]);
}

#[test]
fn close_answers_waiting_requests_and_frees_the_device() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    talk.read(1, handle, 10);
    let close = Request::Close { handle };
    let both = [
        failed(1, Kind::Read, Errno::EBADF),
        got(2, Kind::Close, 0, &[]),
    ];
    assert_eq!(talk.say(2, close), both);
    assert!(talk.bench.open.is_empty());
    assert_eq!(talk.say(3, close), [failed(3, Kind::Close, Errno::EBADF)]);
    let next = talk.open(EXCLUSIVE, 0);
    assert_ne!(next, handle);
    let closed = [failed(4, Kind::Read, Errno::EBADF)];
    assert_eq!(talk.read(4, handle, 1), closed);
}

#[test]
fn errors_of_open_and_write() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    for (device, minor, flags, errno) in [
        (EXCLUSIVE, 0, 0, Errno::EBUSY),
        (EXCLUSIVE, 1, 0, Errno::ENXIO),
        (77, 0, 0, Errno::ENODEV),
        (COMMON, 0, 2, Errno::EINVAL),
    ] {
        let request = Request::Open {
            device,
            minor,
            flags,
        };
        assert_eq!(talk.say(1, request), [failed(1, Kind::Open, errno)]);
    }
    let write = |handle, flags| Request::Write {
        handle,
        flags,
        data: b"data",
    };
    assert_eq!(talk.say(2, write(handle, 0)), [got(2, Kind::Write, 4, &[])]);
    let einval = [failed(2, Kind::Write, Errno::EINVAL)];
    assert_eq!(talk.say(2, write(handle, 1)), einval);
    let ebadf = [failed(2, Kind::Write, Errno::EBADF)];
    assert_eq!(talk.say(2, write(handle + 1, 0)), ebadf);
}

#[test]
fn handles_and_outstanding_requests_are_bounded() {
    let (mut talk, handle) = Conversation::opened(COMMON);
    for _ in 1..MAX_HANDLES {
        talk.open(COMMON, 0);
    }
    let request = open_request(COMMON, 0);
    assert_eq!(talk.say(1, request), [failed(1, Kind::Open, Errno::EMFILE)]);
    let most = u32::try_from(MAX_OUTSTANDING).unwrap();
    for tag in 0..most {
        assert_eq!(talk.read(tag, handle, 1), []);
    }
    let refused = [failed(most, Kind::Read, Errno::ENOBUFS)];
    assert_eq!(talk.read(most, handle, 1), refused);
    talk.endpoint.close(&mut talk.bench);
    assert!(talk.bench.open.is_empty());
    assert_eq!(talk.endpoint.open_devices(), 0);
}

#[test]
fn tag_in_use_ends_the_connection() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    talk.read(1, handle, 10);
    let result = talk.try_say(1, Request::Close { handle });
    assert_eq!(result, Err(EndpointError::TagInUse { tag: 1 }));
}

#[test]
fn an_oversized_length_is_refused_by_its_header() {
    let mut talk = Conversation::new();
    let mut bytes = encode(1, Request::Close { handle: 1 });
    bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let result = talk.endpoint.receive(&bytes, &mut talk.bench);
    assert!(matches!(
        result,
        Err(EndpointError::Malformed(WireError::BodyLength { .. }))
    ));
}

#[test]
fn a_client_that_does_not_read_stalls_only_itself() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    talk.bench.released = 1 << 20;
    let read = |tag| encode(tag, read_request(handle, 100 << 10, 0));
    let mut sent = 0;
    while talk.endpoint.wants_input() {
        talk.endpoint.receive(&read(sent), &mut talk.bench).unwrap();
        sent += 1;
    }
    assert_eq!(sent, 3, "256 KiB are the high-water mark");
    // The rest of the input waits, and takes nothing from the device.
    let more: Vec<u8> = (sent..8).flat_map(read).collect();
    talk.endpoint.receive(&more, &mut talk.bench).unwrap();
    talk.endpoint.wake(&mut talk.bench).unwrap();
    assert_eq!(talk.bench.given, 300 << 10);
    let mut data = Vec::new();
    while !talk.endpoint.output().is_empty() {
        for reply in replies(&mut talk.endpoint) {
            data.extend(reply.result.unwrap().1);
        }
        talk.endpoint.wake(&mut talk.bench).unwrap();
    }
    assert_eq!(data, counting(0, 800 << 10));
}

#[test]
fn unrequested_input_is_bounded() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    talk.bench.released = MAX_DATA;
    let request = encode(1, read_request(handle, u32::MAX, 0));
    talk.endpoint.receive(&request, &mut talk.bench).unwrap();
    assert!(!talk.endpoint.wants_input());
    let junk = vec![0; 1 << 20];
    let results: Vec<_> = (0..6)
        .map(|_| talk.endpoint.receive(&junk, &mut talk.bench))
        .collect();
    assert_eq!(results[0], Ok(()));
    assert_eq!(results[5], Err(EndpointError::Overrun));
}

/// While a device processes an ioctl, later requests wait in order; an earlier read is answered.
#[test]
fn requests_queue_behind_one_in_progress() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    assert_eq!(talk.read(1, handle, 4), []);
    talk.bench.is_busy = true;
    let reversed = ioctl(handle, (3, 8), 1, b"xyz");
    let close = Request::Close { handle };
    let both = [encode(2, reversed), encode(3, close)].concat();
    talk.endpoint.receive(&both, &mut talk.bench).unwrap();
    assert!(!talk.endpoint.wants_input());
    assert_eq!(talk.endpoint.outstanding(), 2);
    assert_eq!(talk.release(4), [got(1, Kind::Read, 0, &counting(0, 4))]);
    assert!(talk.bench.open.len() == 1 && talk.endpoint.outstanding() == 1);
    talk.bench.is_busy = false;
    let answers = [got(2, Kind::Ioctl, 8, b"z"), got(3, Kind::Close, 0, b"")];
    assert_eq!(talk.release(0), answers);
    assert!(talk.bench.open.is_empty() && talk.endpoint.wants_input());
}

/// If a connection ends while its device is being closed, the device finishes alone, without further calls.
#[test]
fn a_closed_connection_cancels_its_requests() {
    let (mut talk, handle) = Conversation::opened(EXCLUSIVE);
    let other = talk.open(COMMON, 0);
    talk.bench.is_busy = true;
    assert_eq!(talk.say(1, Request::Close { handle }), []);
    talk.bench.is_busy = false;
    talk.endpoint.close(&mut talk.bench);
    assert_eq!(talk.endpoint.outstanding(), 0);
    let open = talk.bench.open.len();
    assert_eq!(open, 1, "{other} is closed, {handle} by itself");
}

/// Requests beyond a turn wait for the next one, in order; another client is answered in between.
#[test]
fn requests_beyond_a_turn_wait_for_other_clients() {
    let mut talk = Conversation::new();
    let open = open_request(COMMON, 0);
    let turn = u32::try_from(REQUESTS_PER_TURN).unwrap();
    let opens: Vec<u8> = (1..=3 * turn).flat_map(|tag| encode(tag, open)).collect();
    talk.endpoint.begin_turn();
    talk.endpoint.receive(&opens, &mut talk.bench).unwrap();
    let mut tags = Vec::new();
    for _ in 0..3 {
        let answered = replies(&mut talk.endpoint);
        assert_eq!(answered.len(), REQUESTS_PER_TURN);
        tags.extend(answered.iter().map(|reply| reply.tag));
        // A wake-up isn't a turn.
        talk.endpoint.wake(&mut talk.bench).unwrap();
        assert_eq!(replies(&mut talk.endpoint), []);
        let waits = tags.last() != Some(&(3 * turn));
        assert_eq!(talk.endpoint.waits_for_turn(), waits);
        assert_eq!(talk.endpoint.wants_input(), !waits);
        let mut other = Endpoint::new(Client::Host, HelloInfo::default());
        let request = [encode(1, HELLO), encode(2, open)].concat();
        other.receive(&request, &mut talk.bench).unwrap();
        assert_eq!(replies(&mut other).len(), 2);
        talk.endpoint.begin_turn();
        talk.endpoint.wake(&mut talk.bench).unwrap();
    }
    assert!(tags.into_iter().eq(1..=3 * turn));
}

/// Even costly requests delay other clients for a bounded time.
#[test]
fn a_turn_ends_after_its_time_but_serves_one_request() {
    let mut talk = Conversation::new();
    let open = open_request(COMMON, 0);
    let opens: Vec<u8> = (1..=3).flat_map(|tag| encode(tag, open)).collect();
    talk.endpoint.begin_turn();
    talk.endpoint.limit_turn(Duration::ZERO);
    talk.endpoint.receive(&opens, &mut talk.bench).unwrap();
    for tag in 1..=3 {
        let answered = replies(&mut talk.endpoint);
        assert!(answered.iter().map(|reply| reply.tag).eq([tag]));
        assert_eq!(talk.endpoint.waits_for_turn(), tag < 3);
        talk.endpoint.begin_turn();
        talk.endpoint.limit_turn(Duration::ZERO);
        talk.endpoint.wake(&mut talk.bench).unwrap();
    }
}
