//! Any writes of a driver to registers and rings cause no panic, and every turn ends.

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use kvmprof_devices::virtio::console::Console;

use super::console::ConsoleDriver;
use super::driver::{DRIVER_OK, Driver, FEATURES_OK, MEMORY, STATUS, queue_addresses};

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    Read {
        offset: u64,
        width: usize,
    },
    /// Writes to queue number `.0`, at this offset of the ring.
    Ring(usize, u64, u16),
    Start,
    Open,
    Serve,
}

/// Offsets of registers, their neighbours, and any others.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0u64..0x44).prop_map(|register| 4 * register),
        1 => 0u64..0x1000,
        1 => any::<u64>(),
    ]
}

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0u32..16,
        2 => (0u32..32).prop_map(|bit| 1 << bit),
        2 => (0usize..8).prop_map(|queue| u32::try_from(queue_addresses(queue)[0]).unwrap()),
        1 => any::<u32>(),
    ]
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        9 => value().prop_map(|value| value.to_le_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..9),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let ring = prop_oneof![0u64..0x100, 0x2000u64..0x2040, 0x3000u64..0x3040];
    let number = prop_oneof![0u16..20, any::<u16>()];
    prop_oneof![
        6 => (offset(), data()).prop_map(|(offset, data)| Step::Write { offset, data }),
        2 => (offset(), 0usize..9).prop_map(|(offset, width)| Step::Read { offset, width }),
        8 => (0usize..8, ring, number).prop_map(|(queue, at, value)| Step::Ring(queue, at, value)),
        1 => Just(Step::Start),
        1 => Just(Step::Open),
        4 => Just(Step::Serve),
    ]
}

fn take(driver: &mut ConsoleDriver, step: Step) {
    match step {
        Step::Write { offset, data } => {
            let memory = driver.memory.clone();
            driver.device.write(offset, &data, &memory);
        }
        Step::Read { offset, width } => driver.device.read(offset, &mut vec![0; width]),
        Step::Ring(queue, at, value) => {
            let address = GuestAddress(queue_addresses(queue)[0] + (at & !1));
            driver.memory.write_obj(value, address).unwrap();
        }
        Step::Start => driver.start(),
        Step::Open => {
            if driver.read(STATUS) & (FEATURES_OK | DRIVER_OK) == FEATURES_OK | DRIVER_OK {
                driver.write(STATUS, 0);
            }
            driver.start();
            driver.serve_once();
        }
        Step::Serve => {
            driver.serve_once();
            driver.device.take_interrupt();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn random_drivers_cause_no_panic_and_no_leak(steps in proptest::collection::vec(step(), 1..80)) {
        let mut driver = ConsoleDriver::new();
        for step in steps {
            take(&mut driver, step);
        }
        // A reset restores everything.
        driver.start();
        driver.open_ports();
        prop_assert!(driver.is_answered(super::console::TRANSMIT_1));
    }

    #[test]
    fn random_rings_disable_at_most_their_ports(
        bytes in proptest::collection::vec(any::<u8>(), 0x4000),
        queue in 4usize..6,
    ) {
        let mut driver = ConsoleDriver::running();
        driver.memory.write_slice(&bytes, GuestAddress(queue_addresses(queue)[0])).unwrap();
        for _ in 0..8 {
            driver.serve_once();
        }
        prop_assert!(driver.is_answered(super::console::TRANSMIT_1 + 2));
    }
}

#[test]
fn the_rings_of_these_tests_are_in_memory() {
    let after_all = Driver::<Console>::buffer(8, 0);
    assert!(queue_addresses(7)[3] <= Driver::<Console>::buffer(0, 0));
    assert!(after_all <= MEMORY);
}
