//! The socket device.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use kvmprof_devices::virtio::vsock::{
    BUFFER, CONNECTIONS_MAX, HEADER_SIZE, HOST_CID, Header, Host, Operation, Readiness,
    SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, Stream, TYPE_STREAM, Transfer, Vsock,
};
use proptest::prelude::*;

use crate::driver::Driver;
use crate::driver::{NEEDS_RESET, STATUS};

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const CID: u32 = 7;
/// Who listens on the host.
const LISTENER: u32 = 80;
const ROOM: u32 = 1 << 20;

/// The host's end of a connection as the test sees it.
#[derive(Default)]
struct End {
    /// What it will send, and whether nothing follows.
    coming: VecDeque<u8>,
    sent_all: bool,
    /// What it was sent, and whether nothing follows.
    taken: Vec<u8>,
    told_end: bool,
    /// Bytes that it has room for.
    room: usize,
    deaf: bool,
    dropped: bool,
}

struct Pipe {
    name: u64,
    end: Rc<RefCell<End>>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.end.borrow_mut().dropped = true;
    }
}

impl Stream for Pipe {
    fn name(&self) -> u64 {
        self.name
    }

    fn read(&mut self, buffer: &mut [u8]) -> Transfer {
        let mut end = self.end.borrow_mut();
        let count = end.coming.len().min(buffer.len());
        if count == 0 {
            return if end.sent_all {
                Transfer::Ended
            } else {
                Transfer::Later
            };
        }
        for (byte, value) in buffer.iter_mut().zip(end.coming.drain(..count)) {
            *byte = value;
        }
        Transfer::Bytes(count)
    }

    fn write(&mut self, bytes: &[u8]) -> Transfer {
        let mut end = self.end.borrow_mut();
        if end.deaf {
            return Transfer::Ended;
        }
        let count = end.room.min(bytes.len());
        if count == 0 {
            return Transfer::Later;
        }
        end.room -= count;
        end.taken.extend(&bytes[..count]);
        Transfer::Bytes(count)
    }

    fn end_writing(&mut self) {
        self.end.borrow_mut().told_end = true;
    }
}

#[derive(Default)]
struct Ends {
    last_name: u64,
    by_name: BTreeMap<u64, Rc<RefCell<End>>>,
}

impl Ends {
    fn add(&mut self) -> Pipe {
        self.last_name += 1;
        let end = End {
            room: usize::MAX,
            ..End::default()
        };
        let end = Rc::new(RefCell::new(end));
        self.by_name.insert(self.last_name, Rc::clone(&end));
        Pipe {
            name: self.last_name,
            end,
        }
    }
}

impl Host for Ends {
    type Stream = Pipe;

    fn connect(&mut self, port: u32) -> Option<Pipe> {
        (port == LISTENER).then(|| self.add())
    }
}

struct Bench {
    driver: Driver<Vsock<Pipe>>,
    host: Ends,
    /// What the guest was sent, beyond what was looked at.
    received: VecDeque<(Header, Vec<u8>)>,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            driver: Driver::running(Vsock::new(CID), 0),
            host: Ends::default(),
            received: VecDeque::new(),
        };
        bench.provide(8);
        bench
    }

    fn provide(&mut self, buffers: usize) {
        for _ in 0..buffers {
            self.driver.provide(RECEIVE, 0x1000);
        }
    }

    /// Serves it until it has nothing to do, with as many buffers as it wants.
    fn serve(&mut self) {
        loop {
            let memory = self.driver.memory.clone();
            let more = self.driver.device.serve(&memory, &mut self.host);
            self.driver.take(TRANSMIT);
            let packets = self.driver.take(RECEIVE);
            self.provide(packets.len());
            let idle = packets.is_empty() && !more;
            for packet in packets {
                let header = Header::decode(packet[..HEADER_SIZE].try_into().unwrap());
                let data = packet[HEADER_SIZE..].to_vec();
                assert_eq!(header.length as usize, data.len());
                assert_eq!(
                    (header.source_cid, header.destination_cid),
                    (HOST_CID, CID.into())
                );
                self.received.push_back((header, data));
            }
            if idle {
                return;
            }
        }
    }

    fn send(&mut self, header: Header, data: &[u8]) {
        let packet = [&header.encode()[..], data].concat();
        self.driver.send(TRANSMIT, &packet);
        self.serve();
    }

    fn say(&mut self, ports: (u32, u32), operation: Operation, flags: u32, data: &[u8]) {
        self.send(
            Header {
                flags,
                length: u32::try_from(data.len()).unwrap(),
                ..packet(ports, operation)
            },
            data,
        );
    }

    fn next(&mut self) -> (Header, Vec<u8>) {
        self.received.pop_front().expect("a packet for the guest")
    }

    /// The next packet is this one, without data.
    fn expect(&mut self, ports: (u32, u32), operation: Operation) -> Header {
        let (header, data) = self.next();
        assert_eq!(header.operation, operation as u16, "{header:?}");
        assert_eq!((header.destination_port, header.source_port), ports);
        assert!(data.is_empty());
        header
    }

    fn nothing_more(&self) {
        assert!(self.received.is_empty(), "{:?}", self.received);
    }

    fn connected(&mut self, guest_port: u32) -> ((u32, u32), Rc<RefCell<End>>) {
        let ports = (guest_port, LISTENER);
        self.say(ports, Operation::Request, 0, &[]);
        self.expect(ports, Operation::Response);
        let last = self.host.last_name;
        (ports, Rc::clone(&self.host.by_name[&last]))
    }

    fn ready(&mut self, name: u64, hung_up: bool) {
        let ready = Readiness {
            input: true,
            room: true,
            hung_up,
        };
        self.driver.device.ready(name, ready);
        self.serve();
    }

    fn connections(&self) -> usize {
        self.driver.device.device().connections()
    }
}

fn packet(ports: (u32, u32), operation: Operation) -> Header {
    Header {
        source_cid: CID.into(),
        destination_cid: HOST_CID,
        source_port: ports.0,
        destination_port: ports.1,
        kind: TYPE_STREAM,
        operation: operation as u16,
        room: ROOM,
        ..Header::default()
    }
}

#[test]
fn bytes_go_both_ways_and_both_ends_agree_on_the_end() {
    let mut bench = Bench::new();
    let (ports, end) = bench.connected(5000);
    bench.say(ports, Operation::Data, 0, b"hello");
    assert_eq!(end.borrow().taken, b"hello");
    end.borrow_mut().coming.extend(b"answer");
    bench.ready(1, false);
    let (header, data) = bench.next();
    assert_eq!(
        (header.operation, data.as_slice()),
        (Operation::Data as u16, &b"answer"[..])
    );
    assert_eq!((header.forwarded, header.room as usize), (5, BUFFER));
    // The guest says no more, but listens.
    bench.say(ports, Operation::Shutdown, SHUTDOWN_SEND, &[]);
    assert!(end.borrow().told_end);
    end.borrow_mut().coming.extend(b"rest");
    end.borrow_mut().sent_all = true;
    bench.ready(1, true);
    assert_eq!(bench.next().1, b"rest");
    let header = bench.expect(ports, Operation::Shutdown);
    assert_eq!(header.flags, SHUTDOWN_BOTH);
    assert_eq!(bench.connections(), 1);
    bench.say(ports, Operation::Shutdown, SHUTDOWN_BOTH, &[]);
    bench.expect(ports, Operation::Reset);
    bench.nothing_more();
    assert_eq!(bench.connections(), 0);
    assert!(end.borrow().dropped);
    let counts = bench.driver.device.device().counts();
    assert_eq!((counts.sent_bytes, counts.received_bytes), (5, 10));
    assert_eq!(
        counts.malformed + counts.unknown + counts.credit_violations,
        0
    );
}

#[test]
fn somebody_on_the_host_connects_to_the_guest() {
    let mut bench = Bench::new();
    let pipe = bench.host.add();
    let end = Rc::clone(&pipe.end);
    end.borrow_mut().coming.extend(b"early");
    bench.driver.device.accept(pipe, 52);
    bench.serve();
    let (header, _) = bench.next();
    assert_eq!(header.operation, Operation::Request as u16);
    assert_eq!(header.destination_port, 52);
    bench.nothing_more();
    let ports = (52, header.source_port);
    bench.say(ports, Operation::Response, 0, &[]);
    let greeting = format!("OK {}\n", header.source_port);
    assert_eq!(end.borrow().taken, greeting.as_bytes());
    let (header, data) = bench.next();
    assert_eq!((data.as_slice(), header.forwarded), (&b"early"[..], 0));

    // One that the guest refuses.
    let pipe = bench.host.add();
    let end = Rc::clone(&pipe.end);
    bench.driver.device.accept(pipe, 53);
    bench.serve();
    let (header, _) = bench.next();
    bench.say((53, header.source_port), Operation::Reset, 0, &[]);
    assert!(end.borrow().dropped && end.borrow().taken.is_empty());
    let counts = bench.driver.device.device().counts();
    assert_eq!((counts.host_connections, counts.host_refused), (1, 1));
}

#[test]
fn credit_is_kept_in_both_directions() {
    let mut bench = Bench::new();
    let (ports, end) = bench.connected(1);
    // The guest has room for 10 bytes.
    let update = Header {
        room: 10,
        ..packet(ports, Operation::CreditUpdate)
    };
    bench.send(update, &[]);
    end.borrow_mut().coming.extend([7; 25]);
    bench.ready(1, false);
    assert_eq!(bench.next().1.len(), 10);
    bench.expect(ports, Operation::CreditRequest);
    bench.nothing_more();
    bench.ready(1, false);
    bench.nothing_more();
    bench.send(
        Header {
            forwarded: 4,
            ..update
        },
        &[],
    );
    assert_eq!(bench.next().1.len(), 4);
    bench.expect(ports, Operation::CreditRequest);
    // Nonsense is no credit: more was taken than was sent.
    bench.send(
        Header {
            forwarded: 100,
            ..update
        },
        &[],
    );
    bench.expect(ports, Operation::CreditRequest);
    bench.send(
        Header {
            room: ROOM,
            forwarded: 14,
            ..update
        },
        &[],
    );
    assert_eq!(bench.next().1.len(), 11);

    // And the host's end takes nothing: the guest may send as much as the buffer holds, and is told when there is room again.
    end.borrow_mut().room = 0;
    let piece = vec![1; 4000];
    for _ in 0..BUFFER / piece.len() {
        bench.say(ports, Operation::Data, 0, &piece);
    }
    bench.nothing_more();
    bench.say(ports, Operation::CreditRequest, 0, &[]);
    assert_eq!(bench.expect(ports, Operation::CreditUpdate).forwarded, 0);
    end.borrow_mut().room = usize::MAX;
    bench.ready(1, false);
    assert_eq!(
        bench.expect(ports, Operation::CreditUpdate).forwarded,
        64_000
    );
    assert_eq!(end.borrow().taken.len(), 64_000);
    end.borrow_mut().room = 0;
    for _ in 0..BUFFER / piece.len() {
        bench.say(ports, Operation::Data, 0, &piece);
    }
    assert_eq!(bench.connections(), 1);
    bench.say(ports, Operation::Data, 0, &piece);
    bench.expect(ports, Operation::Reset);
    assert_eq!(bench.connections(), 0);
    assert_eq!(bench.driver.device.device().counts().credit_violations, 1);
}

#[test]
fn an_end_that_takes_nothing_more_is_told_to_the_guest() {
    let mut bench = Bench::new();
    let (ports, end) = bench.connected(1);
    end.borrow_mut().deaf = true;
    bench.say(ports, Operation::Data, 0, b"lost");
    let header = bench.expect(ports, Operation::Shutdown);
    assert_eq!((header.flags, header.forwarded), (SHUTDOWN_RECEIVE, 4));
    end.borrow_mut().coming.extend(b"still");
    end.borrow_mut().sent_all = true;
    bench.ready(1, false);
    assert_eq!(bench.next().1, b"still");
    let header = bench.expect(ports, Operation::Shutdown);
    assert_eq!(header.flags, SHUTDOWN_BOTH);
    bench.say(ports, Operation::Reset, 0, &[]);
    assert_eq!(bench.connections(), 0);
}

#[test]
fn packets_without_sense_cost_their_connection_only() {
    let ports = (1, LISTENER);
    let data = |header: Header, bytes: &[u8]| (header, bytes.to_vec());
    let plain = |operation| packet(ports, operation);
    let cases = [
        data(plain(Operation::Request), &[]),
        data(plain(Operation::Response), &[]),
        data(
            Header {
                operation: 0,
                ..plain(Operation::Data)
            },
            &[],
        ),
        data(
            Header {
                operation: 8,
                ..plain(Operation::Data)
            },
            &[],
        ),
        data(
            Header {
                length: 9,
                ..plain(Operation::Data)
            },
            b"short",
        ),
        data(
            Header {
                length: u32::MAX,
                ..plain(Operation::Data)
            },
            b"short",
        ),
    ];
    for (header, bytes) in cases {
        let mut bench = Bench::new();
        let (_, end) = bench.connected(1);
        let (other, other_end) = bench.connected(2);
        bench.send(header, &bytes);
        bench.expect(ports, Operation::Reset);
        assert!(end.borrow().dropped, "{header:?}");
        bench.say(other, Operation::Data, 0, b"alive");
        assert_eq!(other_end.borrow().taken, b"alive");
        let counts = bench.driver.device.device().counts();
        assert_eq!(
            (counts.malformed, bench.connections()),
            (1, 1),
            "{header:?}"
        );
    }
    let mut bench = Bench::new();
    // No address of a packet that lies about its own is believed.
    for header in [
        Header {
            source_cid: 9,
            ..plain(Operation::Request)
        },
        Header {
            destination_cid: 3,
            ..plain(Operation::Request)
        },
        Header {
            source_cid: u64::from(CID) | 1 << 32,
            ..plain(Operation::Request)
        },
    ] {
        bench.send(header, &[]);
        bench.nothing_more();
    }
    bench.driver.send(TRANSMIT, &[1; HEADER_SIZE - 1]);
    bench.serve();
    bench.nothing_more();
    assert_eq!(bench.driver.device.device().counts().malformed, 4);
    // Of no connection, or of a type that there isn't; a reset isn't answered.
    bench.say(ports, Operation::Data, 0, b"x");
    bench.expect(ports, Operation::Reset);
    bench.say(ports, Operation::Reset, 0, &[]);
    bench.send(
        Header {
            kind: 2,
            ..plain(Operation::Request)
        },
        &[],
    );
    assert_eq!(bench.next().0.kind, 2);
    bench.say((1, LISTENER + 1), Operation::Request, 0, &[]);
    bench.expect((1, LISTENER + 1), Operation::Reset);
    bench.nothing_more();
    let counts = bench.driver.device.device().counts();
    assert_eq!((counts.unknown, counts.guest_refused), (3, 1));
}

#[test]
fn connections_are_bounded_and_those_that_are_over_give_way() {
    let mut bench = Bench::new();
    let most = u32::try_from(CONNECTIONS_MAX).unwrap();
    for port in 0..most {
        bench.connected(port);
    }
    bench.say((most, LISTENER), Operation::Request, 0, &[]);
    bench.expect((most, LISTENER), Operation::Reset);
    let pipe = bench.host.add();
    bench.driver.device.accept(pipe, 9);
    bench.serve();
    bench.nothing_more();
    let counts = bench.driver.device.device().counts();
    assert_eq!((counts.guest_refused, counts.host_refused), (1, 1));
    // The host's end of one goes, and the guest doesn't answer.
    bench.host.by_name[&8].borrow_mut().sent_all = true;
    bench.ready(8, true);
    bench.expect((7, LISTENER), Operation::Shutdown);
    bench.say((most, LISTENER), Operation::Request, 0, &[]);
    bench.expect((7, LISTENER), Operation::Reset);
    bench.expect((most, LISTENER), Operation::Response);
    assert_eq!(bench.connections(), CONNECTIONS_MAX);
}

/// Answers need buffers of the guest. Without them its packets wait, and the device keeps a bounded number of answers.
#[test]
fn a_flood_waits_until_the_guest_takes_answers() {
    let mut bench = Bench::new();
    let memory = bench.driver.memory.clone();
    let mut taken = 0;
    for round in 0..100 {
        for packet_number in 0..16 {
            let header = packet((round * 16 + packet_number, 1), Operation::Data);
            bench.driver.send(TRANSMIT, &header.encode());
        }
        bench.driver.device.serve(&memory, &mut bench.host);
        let now = bench.driver.take(TRANSMIT).len();
        taken += now;
        if now < 16 {
            break;
        }
    }
    assert!((16..200).contains(&taken), "{taken}");
    // Its own resets, and the device goes on.
    bench.driver.start(0);
    bench.provide(8);
    bench.connected(1);
}

#[test]
fn a_reset_ends_all_connections() {
    let mut bench = Bench::new();
    let (_, end) = bench.connected(1);
    bench.driver.start(0);
    assert!(end.borrow().dropped);
    assert_eq!(bench.connections(), 0);
    // Names of ends that are gone mean nothing, and neither does a connection before there is a driver.
    bench.ready(1, true);
    bench.driver.write(STATUS, 0);
    let pipe = bench.host.add();
    let end = Rc::clone(&pipe.end);
    bench.driver.device.accept(pipe, 9);
    assert!(end.borrow().dropped);
    bench.driver.start(0);
    bench.provide(8);
    bench.connected(1);
}

#[test]
fn a_buffer_that_is_too_short_for_a_header_breaks_the_device() {
    let mut bench = Bench::new();
    bench.connected(1);
    let memory = bench.driver.memory.clone();
    // Use up the good ones.
    for _ in 0..16 {
        bench.driver.provide(RECEIVE, 43);
        let header = packet((3, 1), Operation::Data);
        bench.driver.send(TRANSMIT, &header.encode());
        bench.driver.device.serve(&memory, &mut bench.host);
        bench.driver.take(TRANSMIT);
        if bench.driver.read(STATUS) & NEEDS_RESET != 0 {
            break;
        }
    }
    assert_ne!(bench.driver.read(STATUS) & NEEDS_RESET, 0);
    assert_eq!(bench.connections(), 0);
    bench.driver.start(0);
    bench.provide(8);
    bench.connected(1);
}

proptest! {
    /// Whatever a guest says, what it has is bounded, and a connection can be made afterwards.
    #[test]
    fn any_packets(
        packets in prop::collection::vec(
            (0..4_u32, 79..82_u32, 0..9_u16, 0..3_u16, any::<u32>(), any::<[u32; 2]>(), 0..600_usize, 0..8_u8),
            1..120,
        ),
    ) {
        let mut bench = Bench::new();
        for (from, to, operation, kind, flags, [room, forwarded], length, lie) in packets {
            let header = Header {
                source_cid: if lie == 1 { 1 } else { CID.into() },
                length: if lie == 2 { flags } else { u32::try_from(length).unwrap() },
                kind: if lie == 3 { kind } else { TYPE_STREAM },
                operation,
                flags,
                room,
                forwarded,
                ..packet((from, to), Operation::Data)
            };
            bench.send(header, &vec![lie; length]);
            for end in bench.host.by_name.values() {
                end.borrow_mut().coming.extend([1; 10]);
            }
            let last = bench.host.last_name;
            bench.ready(last, lie == 4);
            prop_assert!(bench.connections() <= 4);
            bench.received.clear();
        }
        bench.driver.start(0);
        bench.provide(8);
        bench.connected(9);
    }
}
