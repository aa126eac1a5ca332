//! A driver for devices of any kind, one descriptor for each buffer unless told otherwise.

use kvmprof_devices::virtio::{GuestMemory, MmioTransport, VirtioDevice};
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{DRIVER_OK, Descriptor, FEATURES_OK, MEMORY, STATUS, WRITE, queue_addresses};

/// Entries of each queue.
pub const SIZE: u16 = 16;
/// Bytes between two buffers.
const BUFFER: u64 = 0x1000;
/// Where the buffers are that go to the driver, and after them those that come from it.
const BUFFERS: u64 = 0x20_0000;

/// A device, its memory, and how far its driver is with each queue: available, used.
pub struct Simple<D> {
    pub memory: GuestMemory,
    pub device: MmioTransport<D>,
    rings: Vec<(u16, u16)>,
}

impl<D: VirtioDevice> Simple<D> {
    /// A running driver with these features beside version 1.
    pub fn running(device: D, features: u64) -> Self {
        let length = usize::try_from(MEMORY).unwrap();
        let mut driver = Self {
            memory: GuestMemory::from_ranges(&[(GuestAddress(0), length)]).unwrap(),
            rings: vec![(0, 0); device.queue_count()],
            device: MmioTransport::new(device).unwrap(),
        };
        driver.start(features);
        driver
    }

    /// From a reset to DRIVER_OK.
    pub fn start(&mut self, features: u64) {
        self.write(STATUS, 0);
        self.write(STATUS, 3);
        let features = features | 1 << 32;
        for page in 0..2u32 {
            self.write(0x24, page);
            let bits = features >> (32 * page) & u64::from(u32::MAX);
            self.write(0x20, u32::try_from(bits).unwrap());
        }
        self.write(STATUS, 3 | FEATURES_OK);
        assert_eq!(self.read(STATUS), 3 | FEATURES_OK);
        for queue in 0..self.rings.len() {
            self.rings[queue] = (0, 0);
            let [descriptors, available, used, end] = queue_addresses(queue);
            let zeros = vec![0; usize::try_from(end - descriptors).unwrap()];
            let place = GuestAddress(descriptors);
            self.memory.write_slice(&zeros, place).unwrap();
            self.write(0x30, u32::try_from(queue).unwrap());
            self.write(0x38, SIZE.into());
            for (register, address) in [(0x80, descriptors), (0x90, available), (0xa0, used)] {
                self.write(register, u32::try_from(address).unwrap());
                self.write(register + 4, 0);
            }
            self.write(0x44, 1);
            assert_eq!(self.read(0x44), 1);
        }
        self.write(STATUS, 3 | FEATURES_OK | DRIVER_OK);
    }

    pub fn read(&self, register: u64) -> u32 {
        let mut data = [0; 4];
        self.device.read(register, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write(&mut self, register: u64, value: u32) {
        let memory = self.memory.clone();
        self.device.write(register, &value.to_le_bytes(), &memory);
    }

    /// The address of a queue's buffer.
    pub fn buffer(queue: usize, index: u16) -> u64 {
        let first = BUFFERS + 0x4_0000 * u64::try_from(queue).unwrap();
        first + BUFFER * u64::from(index)
    }

    pub fn describe(&mut self, queue: usize, index: u16, descriptor: Descriptor) {
        let address = queue_addresses(queue)[0] + 16 * u64::from(index);
        let mut bytes = descriptor.address.to_le_bytes().to_vec();
        bytes.extend(descriptor.length.to_le_bytes());
        bytes.extend(descriptor.flags.to_le_bytes());
        bytes.extend(descriptor.next.to_le_bytes());
        let place = GuestAddress(address);
        self.memory.write_slice(&bytes, place).unwrap();
    }

    /// Makes the chain that begins with descriptor `head` available.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let ring = queue_addresses(queue)[1];
        let (available, _) = &mut self.rings[queue];
        let slot = GuestAddress(ring + 4 + 2 * u64::from(*available % SIZE));
        *available = available.wrapping_add(1);
        self.memory.write_obj(head, slot).unwrap();
        let index = GuestAddress(ring + 2);
        self.memory.write_obj(*available, index).unwrap();
    }

    fn next(&self, queue: usize) -> u16 {
        self.rings[queue].0 % SIZE
    }

    /// Offers a buffer of `length` bytes for the device to write into.
    pub fn provide(&mut self, queue: usize, length: u32) {
        let index = self.next(queue);
        let descriptor = Descriptor {
            address: Self::buffer(queue, index),
            length,
            flags: WRITE,
            next: 0,
        };
        self.describe(queue, index, descriptor);
        self.offer(queue, index);
    }

    /// Offers a buffer with `bytes`.
    pub fn send(&mut self, queue: usize, bytes: &[u8]) {
        let index = self.next(queue);
        let address = Self::buffer(queue, index);
        let place = GuestAddress(address);
        self.memory.write_slice(bytes, place).unwrap();
        let descriptor = Descriptor {
            address,
            length: u32::try_from(bytes.len()).unwrap(),
            flags: 0,
            next: 0,
        };
        self.describe(queue, index, descriptor);
        self.offer(queue, index);
    }

    /// What is in the buffers that the device has returned since the last call.
    pub fn take(&mut self, queue: usize) -> Vec<Vec<u8>> {
        let base = queue_addresses(queue)[2];
        let index: u16 = self.memory.read_obj(GuestAddress(base + 2)).unwrap();
        let mut all = Vec::new();
        while self.rings[queue].1 != index {
            let slot = u64::from(self.rings[queue].1 % SIZE);
            self.rings[queue].1 = self.rings[queue].1.wrapping_add(1);
            let entry = GuestAddress(base + 4 + 8 * slot);
            let [head, length]: [u32; 2] = self.memory.read_obj(entry).unwrap();
            let mut bytes = vec![0; usize::try_from(length).unwrap()];
            let address = Self::buffer(queue, u16::try_from(head).unwrap());
            let place = GuestAddress(address);
            self.memory.read_slice(&mut bytes, place).unwrap();
            all.push(bytes);
        }
        all
    }
}
