//! The block device against a driver with its own guest memory: requests around a reset, with and without flushes, and
//! when interrupts are due.

use kvmprof_devices::virtio::block::{
    Answer, Block, BlockSettings, F_FLUSH, F_MQ, Next, Operation, Request,
};
use vm_memory::{Bytes, GuestAddress};

use super::driver::{Descriptor, Driver, NEXT, SIZE, WRITE, queue_addresses};

const OK: u8 = 0;
const ERROR: u8 = 1;
/// Not written by the device.
const NONE: u8 = 0xff;
const EVENT_INDEX: u32 = 29;

/// The buffers of a request: its header, its data, its status.
const HEADER: u16 = 0;
const DATA: u16 = 1;
const STATUS_BYTE: u16 = 2;

type BlockDriver = Driver<Block>;

/// A running driver of a disk with two queues.
fn running(features: u64) -> BlockDriver {
    let device = Block::new(BlockSettings {
        sectors: 64,
        readonly: false,
        queues: 2,
        serial: [0; 20],
    });
    Driver::running(device, features)
}

fn place(queue: usize, buffer: u16) -> GuestAddress {
    GuestAddress(BlockDriver::buffer(queue, buffer))
}

impl BlockDriver {
    fn put<T: vm_memory::ByteValued>(&self, value: T, place: GuestAddress) {
        self.memory.write_obj(value, place).unwrap();
    }

    /// Offers a request with 512 bytes of data.
    fn request(&mut self, queue: usize, kind: u32, sector: u64) {
        let data_flags = if kind == 0 { NEXT | WRITE } else { NEXT };
        let chain = [
            (HEADER, 16, NEXT, DATA),
            (DATA, 512, data_flags, STATUS_BYTE),
            (STATUS_BYTE, 1, WRITE, 0),
        ];
        for (buffer, length, flags, next) in chain {
            let address = Self::buffer(queue, buffer);
            let descriptor = Descriptor::new(address, length, flags, next);
            self.describe(queue, buffer, descriptor);
        }
        let header = place(queue, HEADER);
        self.put(kind, header);
        self.put(sector, GuestAddress(header.0 + 8));
        self.put(NONE, place(queue, STATUS_BYTE));
        self.offer(queue, HEADER);
    }

    fn next_request(&mut self, queue: usize) -> Option<Request> {
        match self.device.next(queue, &self.memory) {
            Next::Request(request) => Some(request),
            Next::Nothing => None,
            Next::More => panic!("more than there is"),
        }
    }

    fn answer(&mut self, request: &Request, answer: Answer<'_>) -> bool {
        let ticket = request.ticket();
        self.device.answer(ticket, answer, &self.memory)
    }

    fn data(&self, queue: usize) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        let place = place(queue, DATA);
        self.memory.read_slice(&mut bytes, place).unwrap();
        bytes
    }

    fn status(&self, queue: usize) -> u8 {
        self.memory.read_obj(place(queue, STATUS_BYTE)).unwrap()
    }
}

#[test]
fn each_queue_has_a_request_of_its_own() {
    let mut driver = running(1 << F_FLUSH | 1 << F_MQ);
    driver.put([7_u8; 8], place(0, DATA));
    driver.request(0, 1, 3);
    driver.request(1, 0, 5);
    let write = driver.next_request(0).unwrap();
    let read = driver.next_request(1).unwrap();
    assert!(driver.next_request(0).is_none());
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
    // The later one completes first.
    assert!(!driver.answer(&read, Answer::Done(&[9; 512])));
    assert_eq!((driver.status(0), driver.status(1)), (NONE, OK));
    assert_eq!(driver.data(1), [9; 512]);
    assert!(driver.device.take_interrupt());
    driver.answer(&write, Answer::Failed);
    assert_eq!(driver.status(0), ERROR);
    let counts = driver.device.device().counts();
    assert_eq!((counts.reads, counts.bytes_read), (1, 512));
    assert_eq!((counts.writes, counts.errors), (0, 1));
}

#[test]
fn a_driver_without_flushes_has_its_writes_flushed() {
    let mut driver = running(0);
    driver.request(0, 1, 0);
    assert!(driver.next_request(0).unwrap().write_through);
    driver.request(1, 0, 0);
    assert!(!driver.next_request(1).unwrap().write_through);
}

/// After a reset the old driver's memory is unchanged, and new requests wait for the old ones.
#[test]
fn a_reset_drops_requests_in_progress() {
    let mut driver = running(1 << F_FLUSH);
    driver.request(0, 0, 1);
    driver.request(1, 1, 1);
    let [read, write] = [0, 1].map(|queue| driver.next_request(queue).unwrap());
    driver.start(1 << F_FLUSH);
    driver.request(0, 0, 2);
    assert!(driver.next_request(0).is_none());
    assert!(!driver.answer(&read, Answer::Done(&[9; 512])));
    assert_eq!(driver.data(0), [0; 512]);
    assert_eq!(driver.status(0), NONE);
    assert!(driver.next_request(0).is_none());
    // After the last of them the queues have to be served again.
    assert!(driver.answer(&write, Answer::Done(&[])));
    let request = driver.next_request(0).unwrap();
    driver.answer(&request, Answer::Done(&[8; 512]));
    assert_eq!(driver.data(0), [8; 512]);
    assert_eq!(driver.status(0), OK);
}

#[test]
fn a_disabled_queue_gets_no_answer() {
    let mut driver = running(1 << F_FLUSH);
    driver.request(0, 0, 1);
    let read = driver.next_request(0).unwrap();
    driver.write(0x30, 0);
    driver.write(0x44, 0);
    assert!(!driver.answer(&read, Answer::Done(&[9; 512])));
    assert_eq!(driver.status(0), NONE);
    assert!(driver.next_request(0).is_none());
}

#[test]
fn the_event_index_suppresses_interrupts() {
    let mut driver = running(1 << F_FLUSH | 1 << EVENT_INDEX);
    let used_event = queue_addresses(0)[1] + 4 + 2 * u64::from(SIZE);
    // One at the third completed request.
    driver.put::<u16>(2, GuestAddress(used_event));
    let mut interrupts = Vec::new();
    for _ in 0..4 {
        driver.request(0, 0, 1);
        let request = driver.next_request(0).unwrap();
        driver.answer(&request, Answer::Done(&[9; 512]));
        interrupts.push(driver.device.take_interrupt());
    }
    assert_eq!(interrupts, [false, false, true, false]);
    // The driver is asked to notify about the next one.
    assert!(driver.next_request(0).is_none());
    let available_event = GuestAddress(queue_addresses(0)[2] + 4 + 8 * u64::from(SIZE));
    assert_eq!(driver.memory.read_obj::<u16>(available_event).unwrap(), 4);
}
