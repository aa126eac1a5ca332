//! The socket device.

use std::rc::Rc;

use kvmprof_devices::virtio::vsock::{
    BUFFER, CONNECTIONS_MAX, HEADER_SIZE, Header, Operation, Readiness, SHUTDOWN_BOTH,
    SHUTDOWN_RECEIVE, SHUTDOWN_SEND,
};

use super::driver::{NEEDS_RESET, STATUS};
use super::vsock_bench::{Bench, LISTENER, RECEIVE, ROOM, TRANSMIT, packet};

#[test]
fn bytes_pass_in_both_directions_until_both_ends_close() {
    let mut bench = Bench::new();
    let (ports, end) = bench.connected(5000);
    bench.say(ports, Operation::Data, 0, b"hello");
    assert_eq!(end.borrow().taken, b"hello");
    end.borrow_mut().coming.extend(b"answer");
    bench.ready(1, false);
    let (header, data) = bench.next();
    assert_eq!(data, b"answer");
    assert_eq!(header.operation, Operation::Data as u16);
    assert_eq!((header.forwarded, header.room as usize), (5, BUFFER));
    // The guest stops sending, but still receives.
    bench.say(ports, Operation::Shutdown, SHUTDOWN_SEND, &[]);
    assert!(end.borrow().saw_end);
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
    let faults = counts.malformed + counts.unknown + counts.credit_violations;
    assert_eq!(faults, 0);
}

#[test]
fn a_host_program_connects_to_the_guest() {
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
    bench.credit(ports, 10, 0);
    end.borrow_mut().coming.extend([7; 25]);
    bench.ready(1, false);
    assert_eq!(bench.next().1.len(), 10);
    bench.expect(ports, Operation::CreditRequest);
    bench.nothing_more();
    bench.ready(1, false);
    bench.nothing_more();
    bench.credit(ports, 10, 4);
    assert_eq!(bench.next().1.len(), 4);
    bench.expect(ports, Operation::CreditRequest);
    // Impossible credit counts as none: more was received than was sent.
    bench.credit(ports, 10, 100);
    bench.expect(ports, Operation::CreditRequest);
    bench.credit(ports, ROOM, 14);
    assert_eq!(bench.next().1.len(), 11);

    // And the host's end reads nothing: the guest may send as much as the buffer holds, and gets an update when there is room
    // again.
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
    let update = bench.expect(ports, Operation::CreditUpdate);
    let taken = end.borrow().taken.len();
    assert_eq!((update.forwarded, taken), (64_000, 64_000));
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
fn a_shutdown_of_the_host_end_is_sent_to_the_guest() {
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
fn invalid_packets_end_only_their_connection() {
    let ports = (1, LISTENER);
    let plain = |operation| packet(ports, operation);
    let changed = |operation, change: fn(&mut Header)| {
        let mut header = plain(operation);
        change(&mut header);
        header
    };
    let data = |change| changed(Operation::Data, change);
    for (header, bytes) in [
        (plain(Operation::Request), &b""[..]),
        (plain(Operation::Response), b""),
        (data(|it| it.operation = 0), b""),
        (data(|it| it.operation = 8), b""),
        (data(|it| it.length = 9), b"short"),
        (data(|it| it.length = u32::MAX), b"short"),
    ] {
        let mut bench = Bench::new();
        let (_, end) = bench.connected(1);
        let (other, other_end) = bench.connected(2);
        bench.send(header, bytes);
        bench.expect(ports, Operation::Reset);
        assert!(end.borrow().dropped, "{header:?}");
        bench.say(other, Operation::Data, 0, b"alive");
        assert_eq!(other_end.borrow().taken, b"alive");
        let counts = bench.driver.device.device().counts();
        let left = bench.connections();
        assert_eq!((counts.malformed, left), (1, 1), "{header:?}");
    }
    let mut bench = Bench::new();
    // A packet with a false source address is dropped.
    let request = |change| changed(Operation::Request, change);
    for header in [
        request(|it| it.source_cid = 9),
        request(|it| it.destination_cid = 3),
        request(|it| it.source_cid |= 1 << 32),
    ] {
        bench.send(header, &[]);
        bench.nothing_more();
    }
    bench.driver.send(TRANSMIT, &[1; HEADER_SIZE - 1]);
    bench.serve();
    bench.nothing_more();
    assert_eq!(bench.driver.device.device().counts().malformed, 4);
    // Of no connection, or of an unknown type; a reset isn't answered.
    bench.say(ports, Operation::Data, 0, b"x");
    bench.expect(ports, Operation::Reset);
    bench.say(ports, Operation::Reset, 0, &[]);
    bench.send(request(|it| it.kind = 2), &[]);
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
    // The host's end of one closes, and the guest doesn't answer.
    bench.host.by_name[&8].borrow_mut().sent_all = true;
    bench.ready(8, true);
    bench.expect((7, LISTENER), Operation::Shutdown);
    bench.say((most, LISTENER), Operation::Request, 0, &[]);
    bench.expect((7, LISTENER), Operation::Reset);
    bench.expect((most, LISTENER), Operation::Response);
    assert_eq!(bench.connections(), CONNECTIONS_MAX);
}

/// Programs of the host that connect and disconnect at once, while the guest offers no buffers.
#[test]
fn clients_unknown_to_the_guest_leave_no_state() {
    let mut bench = Bench::new();
    // Without the buffers.
    bench.driver.start(0);
    for _ in 0..3 * CONNECTIONS_MAX {
        hang_up_at_once(&mut bench);
    }
    assert_eq!(bench.connections(), CONNECTIONS_MAX);
    bench.provide(8);
    bench.serve();
    assert_eq!(bench.received.len(), CONNECTIONS_MAX);
    for (header, _) in &bench.received {
        assert_eq!(header.operation, Operation::Request as u16);
    }
}

/// The same after connections that the guest knows; it is notified of the end of each.
#[test]
fn connections_are_evicted_only_while_the_guest_takes_answers() {
    let mut bench = Bench::new();
    for _ in 0..CONNECTIONS_MAX {
        hang_up_at_once(&mut bench);
        bench.serve();
    }
    let (requests, _): (Vec<_>, Vec<_>) = bench.received.drain(..).unzip();
    assert_eq!(requests.len(), CONNECTIONS_MAX);
    for _ in 0..3 * CONNECTIONS_MAX {
        hang_up_at_once(&mut bench);
    }
    bench.serve();
    let is_reset = |(header, _): &&(Header, _)| header.operation == Operation::Reset as u16;
    let resets = bench.received.iter().filter(is_reset).count();
    assert_eq!(resets, 64);
    let counts = bench.driver.device.device().counts();
    assert_eq!(counts.host_refused, 3 * CONNECTIONS_MAX as u64);
    // All can be served again.
    bench.received.clear();
    hang_up_at_once(&mut bench);
    bench.serve();
    let operations = bench.received.iter().map(|(header, _)| header.operation);
    assert!(operations.eq([Operation::Reset, Operation::Request].map(|it| it as u16)));
}

/// A program of the host connects and disconnects.
fn hang_up_at_once(bench: &mut Bench) {
    let pipe = bench.host.add();
    let ready = Readiness {
        hung_up: true,
        ..Readiness::default()
    };
    let name = pipe.name;
    bench.driver.device.accept(pipe, 52);
    bench.driver.device.ready(name, ready);
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
    // Its own resets are sent, and the device continues.
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
    // Handles of closed ends are ignored, and so is a connection before there is a driver.
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
    // Use up the valid ones.
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
