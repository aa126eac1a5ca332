//! The file system device after the end of the process that serves its queues.

use kvmprof_devices::virtio::fs::FileSystem;
use vm_memory::{Bytes, GuestAddress};

use super::driver::{Descriptor, Driver, NEEDS_RESET, NEXT, SIZE, STATUS, WRITE, queue_addresses};

const FORGETS: usize = 0;
const REQUESTS: usize = 1;
/// Bytes of `struct fuse_in_header`.
const HEADER: u32 = 40;
/// `len`, `error` (EIO) and `unique` of an answer.
fn refusal(unique: u64) -> Vec<u8> {
    [
        &16_u32.to_le_bytes()[..],
        &(-5_i32).to_le_bytes(),
        &unique.to_le_bytes(),
    ]
    .concat()
}

struct Bench(Driver<FileSystem>);

impl Bench {
    fn new() -> Self {
        Self(Driver::running(FileSystem::new("tag", 0), 0))
    }

    fn answer_place(head: u16) -> u64 {
        Driver::<FileSystem>::buffer(REQUESTS, head) + 0x800
    }

    /// Makes a request available with this much room for its answer.
    fn request(&mut self, queue: usize, head: u16, unique: u64, room: u32) {
        let address = Driver::<FileSystem>::buffer(queue, head);
        let mut header = vec![0; HEADER as usize];
        header[8..16].copy_from_slice(&unique.to_le_bytes());
        self.0
            .memory
            .write_slice(&header, GuestAddress(address))
            .unwrap();
        let has_answer = room > 0;
        let request = Descriptor::new(address, HEADER, if has_answer { NEXT } else { 0 }, head + 1);
        self.0.describe(queue, head, request);
        if has_answer {
            let answer = Descriptor::new(Self::answer_place(head), room, WRITE, 0);
            self.0.describe(queue, head + 1, answer);
        }
        self.0.offer(queue, head);
    }

    /// Returns a chain, as the process that serves the queue does.
    fn served_elsewhere(&mut self, head: u16) {
        let used = queue_addresses(REQUESTS)[2];
        let memory = &self.0.memory;
        let place = GuestAddress(used + 2);
        let index: u16 = memory.read_obj(place).unwrap();
        let entry = GuestAddress(used + 4 + 8 * u64::from(index % SIZE));
        memory.write_obj(u32::from(head), entry).unwrap();
        memory.write_obj(index + 1, place).unwrap();
    }

    fn refuse(&mut self) {
        let memory = self.0.memory.clone();
        self.0.device.begin_to_refuse(&memory);
        (1..1000)
            .find(|_| !self.0.device.refuse_requests(&memory))
            .unwrap();
    }

    fn answer(&self, head: u16) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        let place = GuestAddress(Self::answer_place(head));
        self.0.memory.read_slice(&mut bytes, place).unwrap();
        bytes
    }
}

#[test]
fn unanswered_and_later_requests_are_refused() {
    let mut bench = Bench::new();
    for (head, unique) in [(0, 10), (2, 11), (4, 12)] {
        bench.request(REQUESTS, head, unique, 100);
    }
    bench.served_elsewhere(2);
    bench.refuse();
    assert_eq!(bench.answer(0), refusal(10));
    assert_eq!(bench.answer(2), [0; 16]);
    assert_eq!(bench.answer(4), refusal(12));
    // Its head is free again.
    bench.request(REQUESTS, 2, 13, 16);
    bench.request(FORGETS, 0, 14, 0);
    bench.refuse();
    assert_eq!(bench.answer(2), refusal(13));
    let lengths = |taken: Vec<Vec<u8>>| taken.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(bench.0.take(REQUESTS)), [0, 16, 16, 16]);
    assert_eq!(lengths(bench.0.take(FORGETS)), [0]);
    assert_eq!(bench.0.device.device().refusals().refused, 4);
}

#[test]
fn nothing_is_refused_after_a_reset() {
    let mut bench = Bench::new();
    bench.refuse();
    bench.0.start(0);
    bench.request(REQUESTS, 0, 1, 16);
    let memory = bench.0.memory.clone();
    assert!(!bench.0.device.refuse_requests(&memory));
    assert_eq!(bench.answer(0), [0; 16]);
}

#[test]
fn invalid_rings_and_chains_disable_the_device() {
    let broken: [fn(&mut Bench); 4] = [
        |bench| bench.0.set_available(REQUESTS, 17),
        |bench| {
            bench.request(REQUESTS, 0, 1, 16);
            bench.request(REQUESTS, 0, 1, 16);
        },
        |bench| bench.0.offer(REQUESTS, 16),
        |bench| {
            bench.request(REQUESTS, 0, 1, 16);
            let outside = Descriptor::new(1 << 40, 16, WRITE, 0);
            bench.0.describe(REQUESTS, 1, outside);
        },
    ];
    for breaks in broken {
        let mut bench = Bench::new();
        breaks(&mut bench);
        bench.refuse();
        assert_eq!(bench.0.read(STATUS) & NEEDS_RESET, NEEDS_RESET);
        let refusals = bench.0.device.device().refusals();
        assert_eq!((refusals.refused, refusals.queue_faults), (0, 1));
    }
    // Less than a request, and too little room: nothing is written beyond it.
    let mut bench = Bench::new();
    bench.request(REQUESTS, 0, 1, 15);
    bench.refuse();
    assert_eq!(bench.answer(0), [0; 16]);
    assert_eq!(bench.0.device.device().refusals().refused, 1);
}
