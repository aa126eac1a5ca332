//! The block device: requests of the guest, resets in between, and answers in any order.

use kvmprof_devices::virtio::block::{
    Answer, Block, BlockSettings, Next, Operation, Request, SECTOR,
};

use crate::driver::Driver;
use crate::driver_steps::{self, STEPS, step};
use crate::input::Input;

const SECTORS: u64 = 64;
const QUEUES: u16 = 2;
/// Requests that are being performed at a time.
const MAX_WAITING: usize = 8;

/// What a driver and the disk do, one after the other.
pub fn run(data: &[u8]) {
    let mut driver = Driver::new(Block::new(BlockSettings {
        sectors: SECTORS,
        readonly: false,
        queues: QUEUES,
        serial: [b'0'; 20],
    }));
    let mut input = Input::new(data);
    let mut waiting: Vec<Request> = Vec::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 4 {
            0 => answer(&mut driver, &mut waiting, &mut input),
            1 if waiting.len() < MAX_WAITING => {
                let queue = usize::from(u16::from(input.u8()) % QUEUES);
                let Driver { device, memory, .. } = &mut driver;
                if let Next::Request(request) = device.next(queue, memory) {
                    check(&request.operation);
                    waiting.push(request);
                }
            }
            _ => step(&mut driver, &mut input),
        }
    }
}

fn answer(driver: &mut Driver<Block>, waiting: &mut Vec<Request>, input: &mut Input<'_>) {
    let which = usize::from(input.u8());
    if waiting.is_empty() {
        return;
    }
    let request = waiting.swap_remove(which % waiting.len());
    let bytes = match request.operation {
        Operation::Read { length, .. } => vec![7; length],
        _ => Vec::new(),
    };
    let answer = if input.u8().is_multiple_of(4) {
        Answer::Failed
    } else {
        Answer::Done(&bytes)
    };
    driver
        .device
        .answer(request.ticket(), answer, &driver.memory);
}

/// Nothing beyond the disk's end is asked for.
fn check(operation: &Operation) {
    let within = |offset: u64, length: u64| {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= SECTORS * SECTOR),
            "{operation:?}"
        );
    };
    match operation {
        Operation::Read { offset, length } => within(*offset, *length as u64),
        Operation::Write { offset, data } => within(*offset, data.len() as u64),
        Operation::Discard(parts) | Operation::WriteZeroes(parts) => {
            for part in parts {
                within(part.offset, part.length);
            }
        }
        Operation::Flush => {}
    }
}

/// A request of each kind.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let driver = |steps: Vec<u8>| [vec![2], steps].concat();
    let next = || vec![1, 0, 0, 0, 1];
    let header =
        |kind: u32, sector: u64| [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
    // The header is where the driver's first buffer is; data and status follow it.
    let request = |kind: u32, sector: u64, data: &[u8], data_flags: u16| {
        let address = crate::driver::Driver::<Block>::buffer(0, 0);
        let header = header(kind, sector);
        let length = u32::try_from(data.len()).unwrap();
        let chain = [
            driver(driver_steps::start()),
            driver(driver_steps::send(0, &[&header, data].concat())),
            driver(driver_steps::describe(0, 0, address, 16, 1, 1)),
            driver(driver_steps::describe(
                0,
                1,
                address + 16,
                length,
                data_flags,
                2,
            )),
            driver(driver_steps::describe(0, 2, address + 0x900, 1, 2, 0)),
        ];
        [chain.concat(), next()].concat()
    };
    let range = [&3_u64.to_le_bytes()[..], &5_u32.to_le_bytes(), &[0; 4]].concat();
    vec![
        ("read", request(0, 3, &[0; 512], 3)),
        ("write", request(1, 3, &[1; 512], 1)),
        ("flush", request(4, 0, &[0], 1)),
        ("identify", request(8, 0, &[0; 20], 3)),
        ("discard", request(11, 0, &range, 1)),
        ("zeroes", request(13, 0, &range, 1)),
    ]
}
