//! The entropy device.

use std::io;

use kvmprof_devices::virtio::entropy::Entropy;

use super::driver::{Driver, NEEDS_RESET, SIZE, STATUS};

/// Fills with bytes other than zero, and counts them.
fn source(given: &mut usize) -> impl FnMut(&mut [u8]) -> io::Result<()> {
    |bytes| {
        *given += bytes.len();
        bytes.fill(0xa5);
        Ok(())
    }
}

fn driver() -> Driver<Entropy> {
    Driver::running(Entropy::default(), 0)
}

#[test]
fn buffers_are_filled_with_random_bytes() {
    let mut driver = driver();
    assert_eq!(driver.read(8), 4);
    driver.provide(0, 64);
    driver.provide(0, 1);
    let (mut given, memory) = (0, driver.memory.clone());
    let more = driver.device.serve(&memory, &mut source(&mut given));
    assert!(!more);
    assert_eq!(driver.take(0), [vec![0xa5; 64], vec![0xa5]]);
    assert_eq!(given, 65);
    let counts = driver.device.device().counts();
    assert_eq!((counts.requests, counts.bytes), (2, 65));
    assert!(driver.device.take_interrupt());
}

/// The indices of a queue wrap around at 65536.
#[test]
fn chains_are_taken_once_and_returned_in_order_for_ever() {
    let mut driver = driver();
    let memory = driver.memory.clone();
    let mut length_of = |bytes: &mut [u8]| {
        bytes.fill(u8::try_from(bytes.len()).unwrap());
        Ok(())
    };
    for round in 0..9000 {
        let lengths = 1..=round % u32::from(SIZE) + 1;
        for length in lengths.clone() {
            driver.provide(0, length);
        }
        driver.device.serve(&memory, &mut length_of);
        let expected = lengths.map(|it| vec![u8::try_from(it).unwrap(); it as usize]);
        assert!(driver.take(0).into_iter().eq(expected), "{round}");
    }
}

#[test]
fn a_request_gets_a_bounded_number_of_bytes() {
    let mut driver = driver();
    driver.provide(0, 1 << 20);
    let memory = driver.memory.clone();
    driver.device.serve(&memory, &mut source(&mut 0));
    assert_eq!(driver.take(0), [vec![0xa5; 4096]]);
}

#[test]
fn a_turn_answers_a_bounded_number_of_requests() {
    let mut driver = driver();
    for _ in 0..16 {
        driver.provide(0, 4096);
    }
    let mut given = 0;
    let memory = driver.memory.clone();
    assert!(driver.device.serve(&memory, &mut source(&mut given)));
    assert!(!driver.device.serve(&memory, &mut |_| unreachable!()));
    assert_eq!(driver.take(0).len(), 16);
}

#[test]
fn a_request_waits_while_the_host_has_no_random_bytes() {
    let mut driver = driver();
    driver.provide(0, 8);
    let memory = driver.memory.clone();
    let refuse = &mut |_: &mut [u8]| Err(io::Error::other("none"));
    assert!(!driver.device.serve(&memory, refuse));
    assert!(driver.take(0).is_empty());
    assert_eq!(driver.device.device().counts().source_errors, 1);
    driver.device.serve(&memory, &mut source(&mut 0));
    assert_eq!(driver.take(0), [vec![0xa5; 8]]);
}

#[test]
fn a_readable_buffer_disables_the_queue_until_a_reset() {
    let mut driver = driver();
    driver.send(0, b"read this");
    driver.provide(0, 8);
    let memory = driver.memory.clone();
    let serve = |driver: &mut Driver<Entropy>| {
        driver.device.serve(&memory, &mut source(&mut 0));
    };
    serve(&mut driver);
    serve(&mut driver);
    assert!(driver.take(0).is_empty());
    assert_eq!(driver.device.device().counts().queue_faults, 1);
    assert_ne!(driver.read(STATUS) & NEEDS_RESET, 0);
    driver.start(0);
    driver.provide(0, 8);
    serve(&mut driver);
    assert_eq!(driver.take(0), [vec![0xa5; 8]]);
}
