//! A driver for any device, with its own guest memory and one descriptor for each buffer unless requested otherwise.

use kvmprof_devices::virtio::{GuestMemory, MmioTransport, VirtioDevice};
use vm_memory::{Bytes, GuestAddress};

pub const MEMORY: u64 = 8 << 20;
/// Entries of each queue.
pub const SIZE: u16 = 16;

pub const STATUS: u64 = 0x70;
pub const FEATURES_OK: u32 = 8;
pub const DRIVER_OK: u32 = 4;
pub const NEEDS_RESET: u32 = 0x40;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// Bytes between two buffers. A queue has one buffer for each entry.
const BUFFER: u64 = 0x1000;
/// Where the buffers are.
const BUFFERS: u64 = 0x20_0000;

/// A descriptor in memory.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub length: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    pub fn new(address: u64, length: u32, flags: u16, next: u16) -> Self {
        Self {
            address,
            length,
            flags,
            next,
        }
    }
}

/// The addresses of a queue's parts: descriptors, available ring, used ring, and their end.
pub fn queue_addresses(queue: usize) -> [u64; 4] {
    let base = 0x1_0000 * (u64::try_from(queue).unwrap() + 1);
    [base, base + 0x2000, base + 0x3000, base + 0x4000]
}

/// A device, its memory, and the state of its driver for each queue: available, used.
pub struct Driver<D> {
    pub memory: GuestMemory,
    pub device: MmioTransport<D>,
    rings: Vec<(u16, u16)>,
}

impl<D: VirtioDevice> Driver<D> {
    /// A device before its driver starts.
    pub fn new(device: D) -> Self {
        let length = usize::try_from(MEMORY).unwrap();
        Self {
            memory: GuestMemory::from_ranges(&[(GuestAddress(0), length)]).unwrap(),
            rings: vec![(0, 0); device.queue_count()],
            device: MmioTransport::new(device).unwrap(),
        }
    }

    /// A running driver with these features beside version 1.
    pub fn running(device: D, features: u64) -> Self {
        let mut driver = Self::new(device);
        driver.start(features);
        driver
    }

    /// From a reset to DRIVER_OK, with these features beside version 1.
    pub fn start(&mut self, features: u64) {
        assert!(self.negotiate(features | 1 << 32));
        for queue in 0..self.rings.len() {
            self.rings[queue] = (0, 0);
            let [descriptors, available, used, end] = queue_addresses(queue);
            let zeros = vec![0; usize::try_from(end - descriptors).unwrap()];
            let place = GuestAddress(descriptors);
            self.memory.write_slice(&zeros, place).unwrap();
            assert!(self.set_up(queue, SIZE.into(), [descriptors, available, used]));
        }
        self.write(STATUS, 3 | FEATURES_OK | DRIVER_OK);
    }

    /// Requests these features; true if the device accepts them.
    pub fn negotiate(&mut self, features: u64) -> bool {
        self.write(STATUS, 0);
        self.write(STATUS, 1);
        self.write(STATUS, 3);
        for page in 0..2u32 {
            self.write(0x24, page);
            let bits = features >> (32 * page) & u64::from(u32::MAX);
            self.write(0x20, u32::try_from(bits).unwrap());
        }
        self.write(STATUS, 3 | FEATURES_OK);
        self.read(STATUS) & FEATURES_OK != 0
    }

    /// Sets one queue up; true if the device accepts it.
    pub fn set_up(
        &mut self,
        queue: usize,
        size: u32,
        [descriptors, available, used]: [u64; 3],
    ) -> bool {
        self.write(0x30, u32::try_from(queue).unwrap());
        self.write(0x38, size);
        for (register, address) in [(0x80, descriptors), (0x90, available), (0xa0, used)] {
            self.write(register, u32::try_from(address & 0xffff_ffff).unwrap());
            self.write(register + 4, u32::try_from(address >> 32).unwrap());
        }
        self.write(0x44, 1);
        self.read(0x44) == 1
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
        let index = *available;
        self.memory.write_obj(head, slot).unwrap();
        self.set_available(queue, index);
    }

    pub fn set_available(&mut self, queue: usize, index: u16) {
        let address = GuestAddress(queue_addresses(queue)[1] + 2);
        self.memory.write_obj(index, address).unwrap();
    }

    fn next(&self, queue: usize) -> u16 {
        self.rings[queue].0 % SIZE
    }

    /// Offers a buffer of `length` bytes for the device to write into.
    pub fn provide(&mut self, queue: usize, length: u32) {
        let index = self.next(queue);
        let descriptor = Descriptor::new(Self::buffer(queue, index), length, WRITE, 0);
        self.describe(queue, index, descriptor);
        self.offer(queue, index);
    }

    /// Offers a buffer with `bytes`.
    pub fn send(&mut self, queue: usize, bytes: &[u8]) {
        let index = self.next(queue);
        let address = Self::buffer(queue, index);
        let place = GuestAddress(address);
        self.memory.write_slice(bytes, place).unwrap();
        let descriptor = Descriptor::new(address, u32::try_from(bytes.len()).unwrap(), 0, 0);
        self.describe(queue, index, descriptor);
        self.offer(queue, index);
    }

    /// The contents of the buffers that the device has returned since the last call.
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
