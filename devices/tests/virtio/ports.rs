//! Tests of the transfer on ports.

use kvmprof_abi::wire::Request;
use kvmprof_devices::endpoint::{REQUESTS_PER_TURN, TURN_TIME};
use kvmprof_devices::virtio::console::ConsoleSize;
use vm_memory::{Bytes, GuestAddress};

use super::console::{
    CONSOLE_PORT, CONTROL, ConsoleDriver, DEVICE_READY, PORT_ADD, PORT_NAME, PORT_OPEN, PORT_READY,
    RECEIVE_1, RESIZE, TRANSMIT_1, hello, open_exclusive, request,
};
use super::driver::{Descriptor, NEXT, STATUS, queue_addresses};

/// A command of the device that was opened first.
fn ioctl(tag: u32, command: u32) -> Vec<u8> {
    let wanted = Request::Ioctl {
        handle: 1,
        command,
        argument: 0,
        limit: 0,
        data: &[],
    };
    request(tag, wanted)
}

fn message(port: u32, event: u16, value: u16) -> (u32, u16, u16, Vec<u8>) {
    (port, event, value, Vec::new())
}

#[test]
fn ports_are_announced_and_named() {
    let mut driver = ConsoleDriver::new();
    driver.start();
    driver.provide(CONTROL, 16);
    driver.control(0, DEVICE_READY, 1);
    driver.serve();
    let added = [0, 1, 2].map(|port| message(port, PORT_ADD, 1));
    assert_eq!(driver.messages(), added);
    driver.control(0, PORT_READY, 1);
    driver.control(2, PORT_READY, 1);
    driver.serve();
    let ready = [
        message(0, CONSOLE_PORT, 1),
        message(0, PORT_OPEN, 1),
        // Open first: a program that waits for the name may use the port at once.
        message(2, PORT_OPEN, 1),
        (2, PORT_NAME, 1, b"kvmprof.1".to_vec()),
    ];
    assert_eq!(driver.messages(), ready);
}

#[test]
fn messages_wait_for_buffers_in_bounded_memory() {
    let mut driver = ConsoleDriver::new();
    driver.start();
    for _ in 0..100 {
        driver.control(0, DEVICE_READY, 1);
        driver.control(1, PORT_READY, 1);
        driver.serve();
        driver.take(CONTROL + 1);
    }
    driver.provide(CONTROL, 16);
    driver.serve();
    // The three ports, and two messages of the one that was ready.
    assert_eq!(driver.messages().len(), 5);
}

#[test]
fn requests_are_answered_for_any_fragmentation() {
    let mut driver = ConsoleDriver::running();
    // One chain of single bytes, then one for each other byte.
    let bytes = hello();
    let (first, rest) = bytes.split_at(10);
    for (index, byte) in (0u16..).zip(first) {
        let address = queue_addresses(TRANSMIT_1)[3] + u64::from(index);
        let place = GuestAddress(address);
        driver.memory.write_obj(*byte, place).unwrap();
        let flags = if index < 9 { NEXT } else { 0 };
        let descriptor = Descriptor::new(address, 1, flags, index + 1);
        driver.describe(TRANSMIT_1, index, descriptor);
    }
    driver.offer(TRANSMIT_1, 0);
    driver.serve();
    for byte in rest {
        driver.send(TRANSMIT_1, &[*byte]);
        driver.serve();
    }
    assert_eq!(driver.received(RECEIVE_1).len(), 48);
    assert_eq!(driver.take(TRANSMIT_1).len(), 1 + rest.len());
}

#[test]
fn data_sent_with_or_before_the_opening_is_read() {
    let mut driver = ConsoleDriver::new();
    driver.start();
    driver.provide(RECEIVE_1, 4);
    driver.send(TRANSMIT_1, &hello());
    driver.serve();
    assert!(driver.take(TRANSMIT_1).is_empty());
    driver.control(1, PORT_OPEN, 1);
    driver.serve();
    assert_eq!(driver.received(RECEIVE_1).len(), 48);
}

#[test]
fn data_sent_before_the_closing_is_handled() {
    let mut driver = ConsoleDriver::running();
    driver.send(TRANSMIT_1, &hello());
    driver.send(TRANSMIT_1, &open_exclusive());
    driver.send(TRANSMIT_1, &ioctl(3, 42));
    driver.control(1, PORT_OPEN, 0);
    driver.serve();
    assert_eq!(driver.backend.ioctls, [42]);
    assert!(driver.backend.open.is_empty());
    assert_eq!(driver.take(TRANSMIT_1).len(), 3);
}

#[test]
fn a_reset_during_a_request_frees_everything() {
    let mut driver = ConsoleDriver::running();
    driver.send(TRANSMIT_1, &hello());
    driver.send(TRANSMIT_1, &open_exclusive());
    driver.send(TRANSMIT_1, &open_exclusive()[..5]);
    driver.serve();
    assert_eq!(driver.backend.open.len(), 1);
    driver.write(STATUS, 0);
    driver.serve();
    assert!(driver.backend.open.is_empty());
    driver.start();
    driver.open_ports();
    assert!(driver.is_answered(TRANSMIT_1));
}

#[test]
fn a_reset_and_a_new_driver_between_two_turns_still_free_everything() {
    let mut driver = ConsoleDriver::with_open_device();
    driver.start();
    driver.open_ports();
    assert!(driver.backend.open.is_empty());
    driver.send(TRANSMIT_1, &hello());
    driver.send(TRANSMIT_1, &open_exclusive());
    driver.serve();
    assert_eq!(driver.backend.open.len(), 1);
}

#[test]
fn a_port_with_invalid_data_is_hung_up_until_the_guest_closes() {
    let mut driver = ConsoleDriver::with_open_device();
    driver.send(TRANSMIT_1, &[0xff; 64]);
    driver.send(TRANSMIT_1, b"and more of that");
    driver.serve();
    assert_eq!(driver.messages(), [message(1, PORT_OPEN, 0)]);
    assert!(driver.backend.open.is_empty());
    assert!(driver.is_answered(TRANSMIT_1 + 2));
    // A driver may wait for its buffers, even if their contents are dropped.
    assert_eq!(driver.take(TRANSMIT_1).len(), 4);
    driver.send(TRANSMIT_1, b"still more");
    driver.serve();
    assert_eq!(driver.take(TRANSMIT_1).len(), 1);
    assert!(driver.messages().is_empty());
    // Opening it again without closing changes nothing.
    driver.control(1, PORT_OPEN, 1);
    driver.serve();
    assert!(driver.messages().is_empty());
    driver.control(1, PORT_OPEN, 0);
    driver.serve();
    assert_eq!(driver.messages(), [message(1, PORT_OPEN, 1)]);
    driver.received(RECEIVE_1);
    driver.control(1, PORT_OPEN, 1);
    assert!(driver.is_answered(TRANSMIT_1));
    let faults = driver.device.device().faults();
    assert_eq!(faults.ports[1].1.protocol, 1);
    assert_eq!(faults.ports[1].1.queue, 0);
}

#[test]
fn a_guest_that_reads_no_replies_is_stalled() {
    let mut driver = ConsoleDriver::with_open_device();
    driver.take(TRANSMIT_1);
    driver.received(RECEIVE_1);
    // The replies, of 64 KiB each, find 6 KiB of buffers.
    let read = Request::Read {
        handle: 1,
        limit: 64 << 10,
        flags: 0,
    };
    for tag in 10..22 {
        driver.send(TRANSMIT_1, &request(tag, read));
        driver.serve();
    }
    let taken = driver.take(TRANSMIT_1).len();
    assert!((4..12).contains(&taken), "{taken} requests were taken");
    let mut bytes = driver.received(RECEIVE_1).len();
    // A client that reads them gets them all.
    for _ in 0..300 {
        driver.provide(RECEIVE_1, 8);
        driver.serve();
        bytes += driver.received(RECEIVE_1).len();
    }
    assert_eq!(bytes, 12 * (16 + (64 << 10)));
}

#[test]
fn the_console_carries_bytes_in_both_directions() {
    let mut driver = ConsoleDriver::running();
    driver.send(1, b"login: ");
    driver.terminal.0.lock().unwrap().typed = b"root\n".to_vec();
    driver.serve();
    assert_eq!(driver.terminal.0.lock().unwrap().shown, b"login: ");
    assert_eq!(driver.received(0), b"root\n");
}

#[test]
fn the_console_gets_its_size() {
    let mut driver = ConsoleDriver::running();
    driver.device.device_mut().resize(ConsoleSize {
        columns: 80,
        rows: 25,
    });
    driver.serve();
    assert_eq!(driver.messages(), [(0, RESIZE, 0, vec![80, 0, 25, 0])]);
    // A driver that starts later gets it too.
    driver.start();
    driver.provide(CONTROL, 16);
    driver.control(0, PORT_READY, 1);
    driver.serve();
    let size = (0, RESIZE, 0, vec![80, 0, 25, 0]);
    assert_eq!(driver.messages()[1], size);
}

#[test]
fn a_driver_without_multiport_has_an_open_console() {
    let mut driver = ConsoleDriver::new();
    driver.start_with(0);
    driver.send(1, b"hello");
    driver.serve();
    assert_eq!(driver.terminal.0.lock().unwrap().shown, b"hello");
    driver.write(STATUS, 0);
    driver.serve();
    assert!(!driver.terminal.0.lock().unwrap().open);
}

#[test]
fn one_turn_is_bounded_and_others_have_theirs() {
    let mut driver = ConsoleDriver::running();
    // Each chain is 4 MiB of guest memory, and there are as many as fit.
    let endless = Descriptor::new(0, 4 << 20, 0, 0);
    for index in 0..16 {
        driver.describe(1, index, endless);
        driver.offer(1, index);
    }
    driver.send(TRANSMIT_1, &hello());
    assert!(driver.serve_once());
    assert!(driver.terminal.0.lock().unwrap().shown.len() <= 128 << 10);
    assert_eq!(driver.received(RECEIVE_1).len(), 48);
    driver.serve();
    assert_eq!(driver.take(1).len(), 16);
    assert_eq!(driver.terminal.0.lock().unwrap().shown.len(), 64 << 20);
}

/// Sends the commands 0 to 199 on port 1, several to a chain.
fn send_commands(driver: &mut ConsoleDriver) {
    driver.send(TRANSMIT_1, &hello());
    driver.send(TRANSMIT_1, &open_exclusive());
    for chain in 0..10 {
        let commands = (20 * chain..20 * chain + 20).map(|it| ioctl(3 + it, it));
        driver.send(TRANSMIT_1, &commands.collect::<Vec<_>>().concat());
    }
}

#[test]
fn a_turn_is_over_after_its_time_and_goes_on_when_others_have_had_theirs() {
    let mut driver = ConsoleDriver::running();
    driver.backend.takes = 2 * TURN_TIME;
    send_commands(&mut driver);
    driver.send(TRANSMIT_1 + 2, &hello());
    assert!(driver.serve_once());
    // The first one takes longer than the turn may, whatever precedes it.
    assert!(driver.backend.ioctls.len() <= 1);
    assert_eq!(driver.received(RECEIVE_1 + 2).len(), 48);
    driver.serve();
    assert!(driver.backend.ioctls.iter().copied().eq(0..200));
}

#[test]
fn requests_beyond_a_turn_are_handled_before_the_closing() {
    let mut driver = ConsoleDriver::running();
    send_commands(&mut driver);
    driver.control(1, PORT_OPEN, 0);
    assert!(driver.serve_once());
    assert!(driver.backend.ioctls.len() < REQUESTS_PER_TURN);
    driver.serve();
    assert!(driver.backend.ioctls.iter().copied().eq(0..200));
    assert!(driver.backend.open.is_empty());
}

#[test]
fn a_constantly_refilled_queue_gets_one_turn() {
    let mut driver = ConsoleDriver::running();
    let byte = Descriptor::new(0, 1, 0, 0);
    driver.describe(1, 0, byte);
    driver.terminal.0.lock().unwrap().refilled = Some(driver.memory.clone());
    driver.offer(1, 0);
    driver.send(TRANSMIT_1, &hello());
    assert!(driver.serve_once());
    // Single bytes count towards the budget, too.
    assert_eq!(driver.terminal.0.lock().unwrap().shown.len(), 64);
    assert_eq!(driver.received(RECEIVE_1).len(), 48);
    driver.control(0, PORT_OPEN, 0);
    for _ in 0..3 {
        driver.serve_once();
    }
    assert!(!driver.terminal.0.lock().unwrap().open);
}

#[test]
fn closing_completes_while_the_guest_keeps_sending() {
    let mut driver = ConsoleDriver::running();
    driver.control(0, PORT_OPEN, 0);
    let endless = Descriptor::new(0, 1 << 20, 0, 0);
    driver.describe(1, 0, endless);
    for _ in 0..16 {
        driver.offer(1, 0);
    }
    let mut turns = 0;
    while driver.take(CONTROL + 1).is_empty() {
        driver.serve_once();
        for _ in driver.take(1) {
            driver.offer(1, 0);
        }
        turns += 1;
        assert!(turns < 1000, "it never closes");
    }
    assert!(!driver.terminal.0.lock().unwrap().open);
}

#[test]
fn a_driver_without_interrupts_gets_none() {
    const NO_INTERRUPT: u16 = 1;
    let mut driver = ConsoleDriver::running();
    driver.device.take_interrupt();
    for queue in [RECEIVE_1, TRANSMIT_1] {
        let flags = GuestAddress(queue_addresses(queue)[1]);
        driver.memory.write_obj(NO_INTERRUPT, flags).unwrap();
    }
    assert!(driver.is_answered(TRANSMIT_1));
    assert!(!driver.device.take_interrupt());
    let flags = GuestAddress(queue_addresses(TRANSMIT_1)[1]);
    driver.memory.write_obj(0u16, flags).unwrap();
    driver.send(TRANSMIT_1, &open_exclusive());
    driver.serve();
    assert!(driver.device.take_interrupt());
}

#[test]
fn after_the_end_nothing_is_open() {
    let mut driver = ConsoleDriver::with_open_device();
    driver.end();
    assert!(driver.backend.open.is_empty());
}
