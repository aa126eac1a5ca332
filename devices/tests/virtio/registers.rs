//! Tests of the transport's registers.

use super::console::ConsoleDriver;
use super::driver::{DRIVER_OK, FEATURES_OK, MEMORY, NEEDS_RESET, SIZE, STATUS, queue_addresses};
use kvmprof_devices::virtio::console::ConsoleSize;

const INTERRUPT_STATUS: u64 = 0x60;
const INTERRUPT_ACK: u64 = 0x64;
const GENERATION: u64 = 0xfc;
const CONFIGURATION: u64 = 0x100;
const CONFIGURATION_CHANGED: u32 = 2;

#[test]
fn the_registers_identify_a_console_of_version_2() {
    let driver = ConsoleDriver::new();
    assert_eq!(driver.read(0), u32::from_le_bytes(*b"virt"));
    assert_eq!(driver.read(4), 2);
    assert_eq!(driver.read(8), 3);
    // No shared memory.
    assert_eq!(driver.read(0xb0), u32::MAX);
}

#[test]
fn features_are_offered_in_two_pages() {
    let mut driver = ConsoleDriver::new();
    let pages = [0, 1, 2].map(|page| {
        driver.write(0x14, page);
        driver.read(0x10)
    });
    assert_eq!(pages, [0b11, 1, 0]);
}

#[test]
fn only_offered_features_are_accepted() {
    let mut driver = ConsoleDriver::new();
    assert!(driver.negotiate(1 << 32));
    assert!(driver.negotiate(1 << 32 | 0b11));
    assert!(!driver.negotiate(0b11), "a legacy driver");
    assert!(!driver.negotiate(1 << 32 | 0b100));
    driver.write(STATUS, 3 | DRIVER_OK);
    assert_eq!(driver.read(STATUS) & DRIVER_OK, 0);
}

#[test]
fn accepted_features_are_fixed() {
    let mut driver = ConsoleDriver::new();
    assert!(driver.negotiate(1 << 32));
    driver.write(0x24, 0);
    driver.write(0x20, u32::MAX);
    driver.write(STATUS, 3 | FEATURES_OK | DRIVER_OK);
    assert_eq!(driver.read(STATUS), 3 | FEATURES_OK | DRIVER_OK);
}

#[test]
fn a_queue_must_fit_into_memory() {
    let [table, ring, used, _] = queue_addresses(0);
    let good = [table, ring, used];
    let refused: [(&str, u32, [u64; 3]); 12] = [
        ("no entries", 0, good),
        ("no power of two", 12, good),
        ("too many entries", 128, good),
        ("absurdly many entries", u32::MAX, good),
        ("misaligned descriptors", 16, [table + 8, ring, used]),
        ("misaligned available ring", 16, [table, ring + 1, used]),
        ("misaligned used ring", 16, [table, ring, used + 2]),
        ("beyond memory", 16, [MEMORY, ring, used]),
        ("across the end", 16, [table, MEMORY - 16, used]),
        ("wrapping around", 16, [table, ring, u64::MAX - 15]),
        ("over itself", 16, [table, table + 64, used]),
        ("all at one place", 16, [table; 3]),
    ];
    for (what, size, parts) in refused {
        let mut driver = ConsoleDriver::new();
        assert!(driver.negotiate(1 << 32));
        assert!(!driver.set_up(0, size, parts), "{what}");
        assert_ne!(driver.read(STATUS) & NEEDS_RESET, 0, "{what}");
        assert_eq!(driver.device.counts().refused_queues, 1, "{what}");
        driver.write(STATUS, 0);
        assert_eq!(driver.read(STATUS), 0, "{what}");
        assert!(driver.negotiate(1 << 32));
        assert!(driver.set_up(0, SIZE.into(), good), "after {what}");
    }
}

#[test]
fn two_queues_cannot_share_memory() {
    let mut driver = ConsoleDriver::new();
    assert!(driver.negotiate(1 << 32));
    let [descriptors, available, used, other] = queue_addresses(0);
    assert!(driver.set_up(0, 16, [descriptors, available, used]));
    assert!(!driver.set_up(1, 16, [other, other + 0x1000, used]));
}

#[test]
fn the_address_of_a_ready_queue_is_fixed() {
    let mut driver = ConsoleDriver::new();
    assert!(driver.negotiate(1 << 32));
    let [descriptors, available, used, _] = queue_addresses(0);
    assert!(driver.set_up(0, 16, [descriptors, available, used]));
    assert!(driver.set_up(0, 3, [1, 2, 3]), "it is ready as before");
    assert_eq!(driver.read(STATUS) & NEEDS_RESET, 0);
    driver.write(0x44, 0);
    assert_eq!(driver.read(0x44), 0);
}

#[test]
fn queues_beyond_the_last_do_not_exist() {
    let mut driver = ConsoleDriver::new();
    driver.write(0x30, 7);
    assert_eq!(driver.read(0x34), 64);
    for queue in [8, u32::MAX] {
        driver.write(0x30, queue);
        assert_eq!(driver.read(0x34), 0);
        driver.write(0x44, 1);
        assert_eq!(driver.read(0x44), 0);
    }
}

#[test]
fn the_configuration_can_be_read_by_any_width_and_not_written() {
    let mut driver = ConsoleDriver::new();
    driver.device.device_mut().resize(ConsoleSize {
        columns: 80,
        rows: 25,
    });
    assert_eq!(driver.read(CONFIGURATION), 25 << 16 | 80);
    let mut rows = [0; 2];
    driver.device.read(CONFIGURATION + 2, &mut rows);
    assert_eq!(rows, [25, 0]);
    driver.write(CONFIGURATION + 4, 99);
    assert_eq!(driver.read(CONFIGURATION + 4), 3);
    let mut beyond = [0xff; 8];
    driver.device.read(CONFIGURATION + 6, &mut beyond);
    assert_eq!(beyond, [0; 8]);
    driver.device.read(u64::MAX, &mut beyond);
}

#[test]
fn a_new_size_changes_the_generation_and_interrupts() {
    let mut driver = ConsoleDriver::running();
    driver.device.take_interrupt();
    driver.write(INTERRUPT_ACK, u32::MAX);
    let before = driver.read(GENERATION);
    let size = ConsoleSize {
        columns: 132,
        rows: 50,
    };
    driver.device.device_mut().resize(size);
    driver.serve();
    assert_ne!(driver.read(GENERATION), before);
    assert!(driver.device.take_interrupt());
    let pending = driver.read(INTERRUPT_STATUS);
    assert_ne!(pending & CONFIGURATION_CHANGED, 0);
    driver.write(INTERRUPT_ACK, CONFIGURATION_CHANGED);
    let rest = driver.read(INTERRUPT_STATUS);
    assert_eq!(rest, pending & !CONFIGURATION_CHANGED);
    // Setting the same size again isn't a change.
    driver.device.device_mut().resize(size);
    driver.device.take_interrupt();
    driver.serve();
    assert!(!driver.device.take_interrupt());
}

#[test]
fn registers_have_32_bits() {
    let mut driver = ConsoleDriver::new();
    let memory = driver.memory.clone();
    driver.device.write(STATUS, &[1], &memory);
    driver.device.write(STATUS, &[1; 8], &memory);
    driver.device.write(STATUS + 1, &[1; 4], &memory);
    assert_eq!(driver.read(STATUS), 0);
    let mut wide = [0xff; 8];
    driver.device.read(0, &mut wide);
    assert_eq!(wide, [0; 8]);
}

#[test]
fn a_reset_restores_the_initial_state() {
    let mut driver = ConsoleDriver::running();
    driver.write(STATUS, 0);
    assert_eq!(driver.read(STATUS), 0);
    assert_eq!(driver.read(INTERRUPT_STATUS), 0);
    for queue in 0..8 {
        driver.write(0x30, queue);
        assert_eq!(driver.read(0x44), 0);
    }
    assert!(!driver.device.take_interrupt());
}
