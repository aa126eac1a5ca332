//! What the driver of a virtio device can do, as steps that an input has one after the other: to the device's registers, and to
//! the memory that both share.

use kvmprof_devices::virtio::VirtioDevice;
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{Descriptor, Driver, SIZE, queue_addresses};
use crate::input::{Input, block};

/// Steps of one input.
pub const STEPS: usize = 300;
/// Bytes of a queue's parts that are written to.
const RING: u16 = 0x100;

/// Takes the next step of `input`.
pub fn step<D: VirtioDevice>(driver: &mut Driver<D>, input: &mut Input<'_>) {
    let kind = input.u8();
    let queues = driver.device.device().queue_count();
    let mut queue = || usize::from(input.u8()) % queues;
    match kind % 10 {
        0 => {
            let register = u64::from(input.u8()) * 4;
            driver.write(register, input.u32());
        }
        1 => {
            let memory = driver.memory.clone();
            let offset = input.u64();
            let length = usize::from(input.u8() % 9);
            driver.device.write(offset, input.bytes(length), &memory);
        }
        2 => {
            let offset = input.u16().into();
            let mut data = [0; 8];
            let length = usize::from(input.u8() % 9);
            driver.device.read(offset, &mut data[..length]);
        }
        3 => {
            let [descriptors, available, used, _] = queue_addresses(queue());
            let part = [descriptors, available, used][usize::from(input.u8() % 3)];
            let place = GuestAddress(part + u64::from(input.u16() % RING));
            driver.memory.write_obj(input.u16(), place).unwrap();
        }
        4 => {
            let wanted = input.u64() & driver.device.device().features();
            driver.start(wanted);
        }
        5 => {
            let queue = queue();
            let index = input.u16() % (2 * SIZE);
            let descriptor = Descriptor {
                address: input.u64(),
                length: input.u32(),
                flags: input.u16(),
                next: input.u16(),
            };
            driver.describe(queue, index, descriptor);
        }
        6 => {
            let queue = queue();
            driver.offer(queue, input.u16() % (2 * SIZE));
        }
        7 | 8 => {
            let queue = queue();
            driver.send(queue, input.block());
        }
        _ => {
            let queue = queue();
            driver.provide(queue, input.u32());
        }
    }
}

/// The driver starts, with all features.
pub fn start() -> Vec<u8> {
    [&[4][..], &u64::MAX.to_le_bytes()].concat()
}

/// The driver sends a buffer with `bytes`.
pub fn send(queue: u8, bytes: &[u8]) -> Vec<u8> {
    [&[7, queue][..], &block(bytes)].concat()
}

/// The driver has `length` bytes for the device to write into.
pub fn provide(queue: u8, length: u32) -> Vec<u8> {
    [&[9, queue][..], &length.to_le_bytes()].concat()
}

/// The driver writes a descriptor.
pub fn describe(
    queue: u8,
    index: u16,
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
) -> Vec<u8> {
    [
        &[5, queue][..],
        &index.to_le_bytes(),
        &address.to_le_bytes(),
        &length.to_le_bytes(),
        &flags.to_le_bytes(),
        &next.to_le_bytes(),
    ]
    .concat()
}

/// The driver makes a chain available.
pub fn offer(queue: u8, head: u16) -> Vec<u8> {
    [&[6, queue][..], &head.to_le_bytes()].concat()
}
