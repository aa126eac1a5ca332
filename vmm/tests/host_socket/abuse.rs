//! What clients must not be able to do to others.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use kvmprof_abi::wire::{HEADER_LENGTH, MAX_BODY, Request, RequestFrame, VERSION, device};
use kvmprof_client::{ClientError, Connection};
use kvmprof_vmm::host_socket::MAX_CONNECTIONS;

use crate::bench::{Bench, PLENTY};

fn encode(tag: u32, request: Request<'_>) -> Vec<u8> {
    let frame = RequestFrame { tag, request };
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

fn hello() -> Vec<u8> {
    let (lowest, highest) = (VERSION, VERSION);
    encode(0, Request::Hello { lowest, highest })
}

/// A header that announces `length` bytes of kind `kind`.
fn header(length: u32, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LENGTH];
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[8..10].copy_from_slice(&kind.to_le_bytes());
    bytes
}

/// A connection that speaks bytes, with the hello behind it.
fn raw(bench: &Bench) -> UnixStream {
    let mut stream = UnixStream::connect(bench.path()).unwrap();
    stream.write_all(&hello()).unwrap();
    stream.read_exact(&mut [0; 48]).unwrap();
    stream
}

#[test]
fn malformed_frames_end_their_connection_and_no_other() {
    let bench = Bench::start();
    let witness = bench.connect();
    let pcs = witness.open(device::PCS, 0).unwrap();
    let too_long = u32::try_from(MAX_BODY).unwrap() + 1;
    for (name, bytes) in [
        ("oversized length", header(too_long, 4)),
        ("largest length", header(u32::MAX, 4)),
        ("short body", header(3, 2)),
        ("kind 0", header(0, 0)),
        ("unknown kind", header(0, 9)),
        ("a reply", header(0, 0x8008)),
        ("second hello", hello()),
        (
            "text",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        ),
        ("all ones", vec![0xff; 4096]),
    ] {
        let mut stream = raw(&bench);
        // The server may close before it has read everything.
        let _ = stream.write_all(&bytes);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{name}");
        assert!(pcs.try_read(1).is_err_and(|error| error.errno().is_some()));
    }
    bench.until(|state| state.clients == 1);
}

#[test]
fn half_frame_and_disconnect() {
    let bench = Bench::start();
    let mut stream = raw(&bench);
    let open = Request::Open {
        device: device::PCS,
        minor: 0,
        flags: 0,
    };
    stream.write_all(&encode(1, open)).unwrap();
    stream.read_exact(&mut [0; 20]).unwrap();
    stream.write_all(&header(1000, 4)).unwrap();
    stream.write_all(&[0; 10]).unwrap();
    assert_eq!(bench.look().open, 1);
    drop(stream);
    let state = bench.until(|state| state.clients == 0);
    assert_eq!(state.open, 0);
}

#[test]
fn frame_that_arrives_byte_by_byte_counts() {
    let bench = Bench::start();
    let mut stream = UnixStream::connect(bench.path()).unwrap();
    for byte in hello() {
        stream.write_all(&[byte]).unwrap();
        bench.look();
    }
    let mut reply = [0; 48];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[16..18], VERSION.to_le_bytes());
}

#[test]
fn slow_reader_stalls_nobody_else_and_gets_everything() {
    const READS: u32 = 40;
    const LIMIT: u32 = 1 << 20;
    let bench = Bench::start();
    let mut slow = raw(&bench);
    let open = Request::Open {
        device: PLENTY,
        minor: 0,
        flags: 0,
    };
    slow.write_all(&encode(1, open)).unwrap();
    let mut reply = [0; 20];
    slow.read_exact(&mut reply).unwrap();
    let handle = u32::from_le_bytes(reply[16..].try_into().unwrap());
    for tag in 0..READS {
        let read = Request::Read {
            handle,
            limit: LIMIT,
            flags: 0,
        };
        slow.write_all(&encode(tag, read)).unwrap();
    }
    let other = bench.connect();
    for _ in 0..20 {
        other.snapshot(device::STATUS, 1000).unwrap();
    }
    let mut data = vec![0; HEADER_LENGTH + usize::try_from(LIMIT).unwrap()];
    for tag in 0..READS {
        slow.read_exact(&mut data).unwrap();
        assert_eq!(data[..4], LIMIT.to_le_bytes());
        assert_eq!(data[4..8], tag.to_le_bytes());
        assert!(data[HEADER_LENGTH..].iter().all(|byte| *byte == 0x55));
    }
}

#[test]
fn stalled_client_that_goes_is_noticed() {
    let bench = Bench::start();
    let connection = bench.connect();
    let plenty = connection.open(PLENTY, 0).unwrap();
    drop((plenty, connection));
    let mut slow = raw(&bench);
    let open = Request::Open {
        device: PLENTY,
        minor: 0,
        flags: 0,
    };
    slow.write_all(&encode(1, open)).unwrap();
    let mut reply = [0; 20];
    slow.read_exact(&mut reply).unwrap();
    let handle = u32::from_le_bytes(reply[16..].try_into().unwrap());
    for tag in 0..8 {
        let read = Request::Read {
            handle,
            limit: 4 << 20,
            flags: 0,
        };
        slow.write_all(&encode(tag, read)).unwrap();
    }
    drop(slow);
    let state = bench.until(|state| state.clients == 0);
    assert_eq!(state.open, 0);
}

#[test]
fn too_many_clients_are_turned_away() {
    let bench = Bench::start();
    let all: Vec<Connection> = (0..MAX_CONNECTIONS).map(|_| bench.connect()).collect();
    let error = Connection::connect(bench.path()).err().unwrap();
    assert!(matches!(error, ClientError::TurnedAway { .. }), "{error}");
    drop(all);
    bench.until(|state| state.clients == 0);
    bench.connect().open(device::PCS, 0).unwrap();
}
