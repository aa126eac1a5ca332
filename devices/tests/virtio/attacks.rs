//! A driver that violates the protocol on a port disables that port and nothing else.

use super::console::{CONTROL, ConsoleDriver, PORT_OPEN, TRANSMIT_1, hello};
use super::driver::{Descriptor, INDIRECT, MEMORY, NEEDS_RESET, NEXT, SIZE, STATUS, WRITE};

/// Damages a queue. `flags` gives the queue's direction.
type Attack = fn(&mut ConsoleDriver, usize, u16);

fn one(driver: &mut ConsoleDriver, queue: usize, descriptor: Descriptor) {
    driver.describe(queue, 0, descriptor);
    driver.offer(queue, 0);
}

/// All attacks by name.
const ATTACKS: [(&str, Attack); 12] = [
    (
        "a descriptor that is its own next",
        |driver, queue, flags| {
            one(driver, queue, Descriptor::new(0, 8, flags | NEXT, 0));
        },
    ),
    ("a loop of two", |driver, queue, flags| {
        driver.describe(queue, 1, Descriptor::new(0, 8, flags | NEXT, 0));
        one(driver, queue, Descriptor::new(0, 8, flags | NEXT, 1));
    }),
    ("a next beyond the table", |driver, queue, flags| {
        one(driver, queue, Descriptor::new(0, 8, flags | NEXT, SIZE));
    }),
    ("a head beyond the table", |driver, queue, _| {
        driver.offer(queue, 0xffff);
    }),
    ("the wrong direction", |driver, queue, flags| {
        one(driver, queue, Descriptor::new(0, 8, flags ^ WRITE, 0));
    }),
    (
        "the wrong direction later in the chain",
        |driver, queue, flags| {
            driver.describe(queue, 1, Descriptor::new(0, 8, flags ^ WRITE, 0));
            one(driver, queue, Descriptor::new(0, 8, flags | NEXT, 1));
        },
    ),
    ("memory that isn't there", |driver, queue, flags| {
        one(driver, queue, Descriptor::new(MEMORY, 8, flags, 0));
    }),
    ("memory that ends too soon", |driver, queue, flags| {
        one(driver, queue, Descriptor::new(MEMORY - 4, 8, flags, 0));
    }),
    ("addresses that wrap around", |driver, queue, flags| {
        one(driver, queue, Descriptor::new(u64::MAX - 4, 8, flags, 0));
    }),
    ("an indirect table", |driver, queue, flags| {
        one(driver, queue, Descriptor::new(0, 16, flags | INDIRECT, 0));
    }),
    ("no bytes at all", |driver, queue, flags| {
        one(driver, queue, Descriptor::new(0, 0, flags, 0));
    }),
    ("an absurd index", |driver, queue, _| {
        driver.set_available(queue, 0x8000);
    }),
];

/// A running driver with an open device on port 1, where a reply is due next.
fn victim() -> ConsoleDriver {
    let mut driver = ConsoleDriver::with_open_device();
    driver.take(TRANSMIT_1);
    driver
}

#[test]
fn an_invalid_chain_disables_only_its_port() {
    for (what, attack) in ATTACKS {
        let mut driver = victim();
        attack(&mut driver, TRANSMIT_1, 0);
        driver.serve();
        assert!(driver.backend.open.is_empty(), "{what}");
        let messages = driver.messages();
        assert_eq!(messages, [(1, PORT_OPEN, 0, Vec::new())], "{what}");
        let faults = driver.device.device().faults();
        let counts: Vec<u64> = faults.ports.iter().map(|(_, port)| port.queue).collect();
        assert_eq!(counts, [0, 1, 0], "{what}");
        assert!(driver.is_answered(TRANSMIT_1 + 2), "{what}");
        assert_eq!(driver.read(STATUS) & NEEDS_RESET, 0, "{what}");
        // Closing and opening doesn't help, a reset does.
        driver.control(1, PORT_OPEN, 0);
        driver.control(1, PORT_OPEN, 1);
        driver.serve();
        assert!(driver.messages().is_empty(), "{what}");
        driver.start();
        driver.open_ports();
        assert!(driver.is_answered(TRANSMIT_1), "{what}");
    }
}

#[test]
fn an_invalid_reply_buffer_disables_only_its_port() {
    for (what, attack) in ATTACKS {
        let mut driver = ConsoleDriver::new();
        driver.start();
        driver.provide(CONTROL, 4);
        for port in 1..3 {
            driver.control(port, PORT_OPEN, 1);
        }
        driver.provide(TRANSMIT_1 + 1, 4);
        attack(&mut driver, TRANSMIT_1 - 1, WRITE);
        driver.send(TRANSMIT_1, &hello());
        driver.serve();
        let faults = driver.device.device().faults();
        assert_eq!(faults.ports[1].1.queue, 1, "{what}");
        assert!(driver.is_answered(TRANSMIT_1 + 2), "{what}");
    }
}

#[test]
fn invalid_control_messages_disable_only_the_control_queues() {
    for (queue, flags) in [(CONTROL, WRITE), (CONTROL + 1, 0)] {
        for (what, attack) in ATTACKS {
            let mut driver = ConsoleDriver::new();
            driver.start();
            for port in 1..3 {
                driver.control(port, PORT_OPEN, 1);
                driver.provide(2 + 2 * usize::try_from(port).unwrap(), 4);
            }
            driver.serve();
            attack(&mut driver, queue, flags);
            if queue == CONTROL {
                driver.control(1, 3, 1);
            }
            driver.serve();
            assert_eq!(driver.device.device().faults().control, 1, "{what}");
            assert_ne!(driver.read(STATUS) & NEEDS_RESET, 0, "{what}");
            assert!(driver.is_answered(TRANSMIT_1), "{what}");
            assert!(driver.is_answered(TRANSMIT_1 + 2), "{what}");
        }
    }
}

#[test]
fn short_control_messages_and_buffers_are_ignored() {
    let mut driver = ConsoleDriver::running();
    driver.send(CONTROL + 1, &[0; 7]);
    driver.serve();
    assert_eq!(driver.device.device().faults().control, 1);

    let mut driver = ConsoleDriver::new();
    driver.start();
    driver.describe(CONTROL, 0, Descriptor::new(0x4000, 7, WRITE, 0));
    driver.offer(CONTROL, 0);
    driver.control(0, 0, 1);
    driver.serve();
    assert_eq!(driver.device.device().faults().control, 1);
}

#[test]
fn a_chain_of_more_than_any_frame_is_refused() {
    let mut driver = victim();
    for index in 0..4 {
        let next = Descriptor::new(0, 4 << 20, NEXT, index + 1);
        driver.describe(TRANSMIT_1, index, next);
    }
    driver.describe(TRANSMIT_1, 4, Descriptor::new(0, 1, 0, 0));
    driver.offer(TRANSMIT_1, 0);
    driver.serve();
    assert_eq!(driver.device.device().faults().ports[1].1.queue, 1);
}

#[test]
fn messages_about_unknown_ports_are_ignored() {
    let mut driver = ConsoleDriver::running();
    for port in [3, 4, 1000, u32::MAX] {
        for event in 0..10 {
            driver.control(port, event, 1);
            driver.serve();
            driver.take(CONTROL + 1);
        }
    }
    for event in [1, 2, 4, 5, 7, 8, 0xffff] {
        driver.control(1, event, 1);
        driver.serve();
        driver.take(CONTROL + 1);
    }
    driver.messages();
    assert!(driver.is_answered(TRANSMIT_1));
    assert_eq!(driver.device.device().faults().control, 0);
}

#[test]
fn changes_of_rings_after_they_were_read_have_no_effect() {
    // The first chain takes more than one turn; its descriptor changes in between.
    let mut driver = ConsoleDriver::running();
    driver.describe(1, 0, Descriptor::new(0, 4 << 20, 0, 0));
    driver.offer(1, 0);
    assert!(driver.serve_once());
    driver.describe(1, 0, Descriptor::new(u64::MAX, u32::MAX, 0xffff, 0xffff));
    driver.serve();
    assert_eq!(driver.terminal.0.lock().unwrap().shown.len(), 4 << 20);
    assert_eq!(driver.take(1).len(), 1);
}
