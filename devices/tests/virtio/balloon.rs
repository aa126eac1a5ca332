//! The memory balloon.

use kvmprof_devices::virtio::balloon::{Balloon, PAGE};
use vm_memory::GuestAddress;

use super::driver::Driver;
use super::driver::{Descriptor, NEEDS_RESET, NEXT, STATUS, WRITE};

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const STATISTICS: usize = 2;
const REPORTS: usize = 3;
/// Features: statistics and reports.
const F_STATISTICS: u64 = 1 << 1;
const F_REPORTING: u64 = 1 << 5;
/// Memory that the host takes pages of.
const END: u64 = 0x1000 * PAGE;

struct Bench {
    driver: Driver<Balloon>,
    given: Vec<(u64, u64)>,
}

impl Bench {
    fn new(features: u64) -> Self {
        Self {
            driver: Driver::running(Balloon::default(), features),
            given: Vec::new(),
        }
    }

    fn turn(&mut self) -> bool {
        let memory = self.driver.memory.clone();
        let given = &mut self.given;
        self.driver
            .device
            .serve(&memory, &mut |address: GuestAddress, bytes| {
                given.push((address.0 / PAGE, bytes / PAGE));
                END.saturating_sub(address.0).min(bytes)
            })
    }

    fn serve(&mut self) -> usize {
        (1..1000).find(|_| !self.turn()).expect("an end of turns")
    }

    fn pages(&mut self, queue: usize, pages: impl Iterator<Item = u32>) {
        let bytes: Vec<u8> = pages.flat_map(u32::to_le_bytes).collect();
        self.driver.send(queue, &bytes);
    }

    fn report(&mut self, ranges: &[(u64, u32)]) {
        let last = ranges.len() - 1;
        for (index, (address, length)) in (0..).zip(ranges) {
            let is_last = usize::from(index) == last;
            let descriptor = Descriptor {
                address: *address,
                length: *length,
                flags: if is_last { WRITE } else { WRITE | NEXT },
                next: if is_last { 0 } else { index + 1 },
            };
            self.driver.describe(REPORTS, index, descriptor);
        }
        self.driver.offer(REPORTS, 0);
    }
}

#[test]
fn pages_are_taken_together_and_only_those_of_the_guest() {
    let mut bench = Bench::new(F_STATISTICS | F_REPORTING);
    bench.pages(INFLATE, [5, 6, 7, 9, 8, 0x1000, u32::MAX].into_iter());
    bench.serve();
    assert_eq!(
        bench.given,
        [(5, 3), (9, 1), (8, 1), (0x1000, 1), (u32::MAX.into(), 1)]
    );
    assert_eq!(bench.driver.take(INFLATE).len(), 1);
    bench.pages(DEFLATE, [5, 6].into_iter());
    bench.serve();
    let counts = bench.driver.device.device().counts();
    assert_eq!(counts.inflated_bytes, 5 * PAGE);
    assert_eq!((counts.deflated_bytes, counts.refused_pages), (2 * PAGE, 2));
}

#[test]
fn many_pages_take_many_turns() {
    let mut bench = Bench::new(0);
    // As many as fit into a buffer, again and again.
    for _ in 0..10 {
        bench.pages(INFLATE, (0..1024).map(|page| page * 2));
    }
    assert!(bench.serve() >= 10);
    assert_eq!(bench.driver.take(INFLATE).len(), 10);
    assert_eq!(bench.given.len(), 10 * 1024);
}

#[test]
fn free_memory_is_taken_by_whole_pages_and_returned_afterwards() {
    let mut bench = Bench::new(F_STATISTICS | F_REPORTING);
    let page = u32::try_from(PAGE).unwrap();
    bench.report(&[
        (0x10 * PAGE, 4 * page),
        (0x20 * PAGE + 1, 3 * page),
        (0x30 * PAGE, 100),
    ]);
    bench.serve();
    assert_eq!(bench.given, [(0x10, 4), (0x21, 2)]);
    let counts = bench.driver.device.device().counts();
    assert_eq!((counts.reported_bytes, counts.queue_faults), (6 * PAGE, 0));
}

/// Where statistics weren't accepted, their queue isn't there, and the next one has its number.
#[test]
fn queues_are_counted_by_what_was_accepted() {
    let mut bench = Bench::new(F_REPORTING);
    let descriptor = Descriptor {
        address: 0x10 * PAGE,
        length: u32::try_from(PAGE).unwrap(),
        flags: WRITE,
        next: 0,
    };
    bench.driver.describe(STATISTICS, 0, descriptor);
    bench.driver.offer(STATISTICS, 0);
    bench.serve();
    assert_eq!(bench.given, [(0x10, 1)]);
}

#[test]
fn memory_that_is_not_there_is_a_fault() {
    let mut bench = Bench::new(F_STATISTICS | F_REPORTING);
    bench.report(&[(u64::MAX - 5, 4096)]);
    bench.serve();
    assert_ne!(bench.driver.read(STATUS) & NEEDS_RESET, 0);
    assert_eq!(bench.driver.device.device().counts().queue_faults, 1);
    assert!(bench.given.is_empty());
    bench.driver.start(F_REPORTING);
    bench.pages(INFLATE, [1].into_iter());
    bench.serve();
    assert_eq!(bench.given, [(1, 1)]);
}

#[test]
fn statistics_are_asked_for_again_and_again() {
    let mut bench = Bench::new(F_STATISTICS);
    let entry = |value: u64| [&4_u16.to_le_bytes()[..], &value.to_le_bytes()].concat();
    let memory = bench.driver.memory.clone();
    for value in [7, 8] {
        bench.driver.send(STATISTICS, &entry(value));
        bench.serve();
        let statistics = bench.driver.device.device().statistics();
        assert_eq!(statistics.free_bytes, Some(value));
        assert!(bench.driver.take(STATISTICS).is_empty());
        bench.driver.device.ask_for_statistics(&memory);
        assert_eq!(bench.driver.take(STATISTICS).len(), 1);
        // Twice in a row is once.
        bench.driver.device.ask_for_statistics(&memory);
        assert!(bench.driver.take(STATISTICS).is_empty());
    }
    assert_eq!(bench.driver.device.device().counts().statistics, 2);
}

#[test]
fn the_target_is_told_by_an_interrupt() {
    let mut bench = Bench::new(0);
    assert!(!bench.driver.device.take_interrupt());
    bench.driver.device.set_target(10 * PAGE + 5);
    assert!(bench.driver.device.take_interrupt());
    assert_eq!(bench.driver.read(0x100), 10);
    bench.driver.write(0x104, 10);
    assert_eq!(bench.driver.read(0x104), 10);
    assert_eq!(bench.driver.device.device().actual(), 10 * PAGE);
    // What the guest holds is forgotten with it; what it is to hold isn't.
    bench.driver.start(0);
    assert_eq!(
        (bench.driver.read(0x100), bench.driver.read(0x104)),
        (10, 0)
    );
}
