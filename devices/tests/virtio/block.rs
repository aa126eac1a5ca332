//! The block device against a driver with its own guest memory: what becomes of requests around a reset, with and without
//! flushes, and when interrupts are due.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use kvmprof_devices::virtio::block::{
    Answer, Block, BlockSettings, F_FLUSH, F_MQ, Next, Operation, Request,
};
use kvmprof_devices::virtio::{GuestMemory, MmioTransport};
use vm_memory::{Bytes, GuestAddress};

const SIZE: u16 = 8;
const STATUS: u64 = 0x70;
const OK: u8 = 0;
const ERROR: u8 = 1;
/// Not written by the device.
const NONE: u8 = 0xff;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const EVENT_INDEX: u32 = 29;

/// Where things are in guest memory, of each queue.
const QUEUE_BYTES: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADER: u64 = 0x3000;
const STATUS_BYTE: u64 = 0x3100;
const DATA: u64 = 0x4000;

struct Driver {
    transport: MmioTransport<Block>,
    memory: GuestMemory,
    offered: [u16; 2],
}

impl Driver {
    fn new(features: u64) -> Self {
        let device = Block::new(BlockSettings {
            sectors: 64,
            readonly: false,
            queues: 2,
            serial: [0; 20],
        });
        let ranges = [(GuestAddress(0), 8 * 0x1_0000)];
        let mut driver = Self {
            transport: MmioTransport::new(device).unwrap(),
            memory: GuestMemory::from_ranges(&ranges).unwrap(),
            offered: [0; 2],
        };
        driver.start(features);
        driver
    }

    fn set(&mut self, register: u64, value: u32) {
        let bytes = value.to_le_bytes();
        self.transport.write(register, &bytes, &self.memory);
    }

    fn reset(&mut self) {
        self.set(STATUS, 0);
        self.offered = [0; 2];
    }

    fn start(&mut self, features: u64) {
        self.set(STATUS, 3);
        for half in 0..2 {
            self.set(0x24, half);
            let bits = (features | 1 << 32) >> (32 * half) & u64::from(u32::MAX);
            self.set(0x20, u32::try_from(bits).unwrap());
        }
        self.set(STATUS, 11);
        for queue in 0..2 {
            let base = queue_base(queue.try_into().unwrap());
            self.memory
                .write_slice(&[0; 0x3000], GuestAddress(base))
                .unwrap();
            self.set(0x30, queue);
            self.set(0x38, SIZE.into());
            for (register, place) in [(0x80, base), (0x90, base + AVAILABLE), (0xa0, base + USED)] {
                self.set(register, u32::try_from(place).unwrap());
                self.set(register + 4, 0);
            }
            self.set(0x44, 1);
        }
        self.set(STATUS, 15);
    }

    fn put<T: vm_memory::ByteValued>(&self, value: T, address: u64) {
        self.memory.write_obj(value, GuestAddress(address)).unwrap();
    }

    fn get<T: vm_memory::ByteValued>(&self, address: u64) -> T {
        self.memory.read_obj(GuestAddress(address)).unwrap()
    }

    /// Offers a request with 512 bytes of data.
    fn offer(&mut self, queue: usize, kind: u32, sector: u64) {
        let base = queue_base(queue);
        let data_flags = if kind == 0 { NEXT | WRITE } else { NEXT };
        let chain = [
            (HEADER, 16, NEXT, 1),
            (DATA, 512, data_flags, 2),
            (STATUS_BYTE, 1, WRITE, 0),
        ];
        for (index, (place, length, flags, next)) in (0..).zip(chain) {
            let at = base + 16 * index;
            self.put(base + place, at);
            self.put::<u32>(length, at + 8);
            self.put::<u16>(flags, at + 12);
            self.put::<u16>(next, at + 14);
        }
        self.put(kind, base + HEADER);
        self.put(sector, base + HEADER + 8);
        self.put(NONE, base + STATUS_BYTE);
        let offered = &mut self.offered[queue];
        *offered += 1;
        let index = *offered;
        self.put::<u16>(0, base + AVAILABLE + 4 + 2 * u64::from((index - 1) % SIZE));
        self.put(index, base + AVAILABLE + 2);
    }

    fn next(&mut self, queue: usize) -> Option<Request> {
        match self.transport.next(queue, &self.memory) {
            Next::Request(request) => Some(request),
            Next::Nothing => None,
            Next::More => panic!("more than there is"),
        }
    }

    fn answer(&mut self, request: &Request, answer: Answer<'_>) -> bool {
        self.transport
            .answer(request.ticket(), answer, &self.memory)
    }

    fn data(&self, queue: usize) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        let address = GuestAddress(queue_base(queue) + DATA);
        self.memory.read_slice(&mut bytes, address).unwrap();
        bytes
    }

    fn status(&self, queue: usize) -> u8 {
        self.get(queue_base(queue) + STATUS_BYTE)
    }
}

fn queue_base(queue: usize) -> u64 {
    (queue as u64 + 1) * QUEUE_BYTES
}

#[test]
fn each_queue_has_a_request_of_its_own() {
    let mut driver = Driver::new(1 << F_FLUSH | 1 << F_MQ);
    driver.put([7_u8; 8], queue_base(0) + DATA);
    driver.offer(0, 1, 3);
    driver.offer(1, 0, 5);
    let write = driver.next(0).unwrap();
    let read = driver.next(1).unwrap();
    assert!(driver.next(0).is_none());
    let expected = [&[7; 8][..], &[0; 504]].concat();
    assert_eq!(
        write.operation,
        Operation::Write {
            offset: 3 * 512,
            data: expected
        }
    );
    assert_eq!(
        read.operation,
        Operation::Read {
            offset: 5 * 512,
            length: 512
        }
    );
    assert!(!write.write_through);
    // The later one is done first.
    assert!(!driver.answer(&read, Answer::Done(&[9; 512])));
    assert_eq!((driver.status(0), driver.status(1)), (NONE, OK));
    assert_eq!(driver.data(1), [9; 512]);
    assert!(driver.transport.take_interrupt());
    driver.answer(&write, Answer::Failed);
    assert_eq!(driver.status(0), ERROR);
    let counts = driver.transport.device().counts();
    assert_eq!((counts.reads, counts.bytes_read), (1, 512));
    assert_eq!((counts.writes, counts.errors), (0, 1));
}

#[test]
fn a_driver_without_flushes_has_its_writes_flushed() {
    let mut driver = Driver::new(0);
    driver.offer(0, 1, 0);
    assert!(driver.next(0).unwrap().write_through);
    driver.offer(1, 0, 0);
    assert!(!driver.next(1).unwrap().write_through);
}

/// After a reset the old driver's memory stays as it is, and new requests wait for the old ones.
#[test]
fn a_reset_lets_go_of_what_is_being_performed() {
    let mut driver = Driver::new(1 << F_FLUSH);
    driver.offer(0, 0, 1);
    driver.offer(1, 1, 1);
    let [read, write] = [0, 1].map(|queue| driver.next(queue).unwrap());
    driver.reset();
    driver.start(1 << F_FLUSH);
    driver.offer(0, 0, 2);
    assert!(driver.next(0).is_none());
    assert!(!driver.answer(&read, Answer::Done(&[9; 512])));
    assert_eq!(driver.data(0), [0; 512]);
    assert_eq!(driver.status(0), NONE);
    assert!(driver.next(0).is_none());
    // With the last of them the queues want to be looked at again.
    assert!(driver.answer(&write, Answer::Done(&[])));
    let request = driver.next(0).unwrap();
    driver.answer(&request, Answer::Done(&[8; 512]));
    assert_eq!(driver.data(0), [8; 512]);
    assert_eq!(driver.status(0), OK);
}

#[test]
fn a_queue_that_was_turned_off_gets_no_answer() {
    let mut driver = Driver::new(1 << F_FLUSH);
    driver.offer(0, 0, 1);
    let read = driver.next(0).unwrap();
    driver.set(0x30, 0);
    driver.set(0x44, 0);
    assert!(!driver.answer(&read, Answer::Done(&[9; 512])));
    assert_eq!(driver.status(0), NONE);
    assert!(driver.next(0).is_none());
}

#[test]
fn with_the_event_index_interrupts_come_when_they_are_wanted() {
    let mut driver = Driver::new(1 << F_FLUSH | 1 << EVENT_INDEX);
    let used_event = queue_base(0) + AVAILABLE + 4 + 2 * u64::from(SIZE);
    // One at the third request that is done.
    driver.put::<u16>(2, used_event);
    let mut interrupts = Vec::new();
    for _ in 0..4 {
        driver.offer(0, 0, 1);
        let request = driver.next(0).unwrap();
        driver.answer(&request, Answer::Done(&[9; 512]));
        interrupts.push(driver.transport.take_interrupt());
    }
    assert_eq!(interrupts, [false, false, true, false]);
    // The driver is asked to notify of the next one.
    assert!(driver.next(0).is_none());
    let available_event = queue_base(0) + USED + 4 + 8 * u64::from(SIZE);
    assert_eq!(driver.get::<u16>(available_event), 4);
}
