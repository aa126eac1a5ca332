//! A driver that violates the protocol on a port disables that port and nothing else.

use super::console::{CONTROL, ConsoleDriver, PORT_OPEN, TRANSMIT_1, hello};
use super::driver::{Descriptor, INDIRECT, MEMORY, NEEDS_RESET, NEXT, SIZE, STATUS, WRITE};

/// Damages a queue.
#[derive(Clone, Copy)]
enum Attack {
    /// A chain whose head is the first one: addresses, lengths, what differs from the flags of the queue's direction, and nexts.
    Chain(&'static [(u64, u32, u16, u16)]),
    /// A head of a chain.
    Head(u16),
    /// The index of what is available.
    Available(u16),
}

use Attack::{Available, Chain, Head};

impl Attack {
    fn on(self, driver: &mut ConsoleDriver, queue: usize, flags: u16) {
        match self {
            Chain(chain) => {
                for (index, (address, length, others, next)) in (0..).zip(chain) {
                    let it = Descriptor::new(*address, *length, flags ^ others, *next);
                    driver.describe(queue, index, it);
                }
                driver.offer(queue, 0);
            }
            Head(head) => driver.offer(queue, head),
            Available(index) => driver.set_available(queue, index),
        }
    }
}

/// All attacks by name.
const ATTACKS: [(&str, Attack); 12] = [
    ("its own next", Chain(&[(0, 8, NEXT, 0)])),
    ("a loop", Chain(&[(0, 8, NEXT, 1), (0, 8, NEXT, 0)])),
    ("a next beyond the table", Chain(&[(0, 8, NEXT, SIZE)])),
    ("a head beyond the table", Head(0xffff)),
    ("wrong direction", Chain(&[(0, 8, WRITE, 0)])),
    ("later", Chain(&[(0, 8, NEXT, 1), (0, 8, WRITE, 0)])),
    ("memory that isn't there", Chain(&[(MEMORY, 8, 0, 0)])),
    ("its end is too early", Chain(&[(MEMORY - 4, 8, 0, 0)])),
    ("a wrap around", Chain(&[(u64::MAX - 4, 8, 0, 0)])),
    ("an indirect table", Chain(&[(0, 16, INDIRECT, 0)])),
    ("no bytes at all", Chain(&[(0, 0, 0, 0)])),
    ("an absurd index", Available(0x8000)),
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
        attack.on(&mut driver, TRANSMIT_1, 0);
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
        attack.on(&mut driver, TRANSMIT_1 - 1, WRITE);
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
            attack.on(&mut driver, queue, flags);
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
