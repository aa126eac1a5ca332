//! A driver with its own guest memory, and devices behind the ports.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Request, RequestFrame, VERSION};
use kvmprof_devices::endpoint::{Backend, Handle, HelloInfo, IoctlReply, Readiness};
use kvmprof_devices::virtio::console::{Console, EndpointPort, Port, PortError};
use kvmprof_devices::virtio::{GuestMemory, MmioTransport};
use vm_memory::{Bytes, GuestAddress};

pub const MEMORY: u64 = 8 << 20;
/// Entries of the driver's queues.
pub const SIZE: u16 = 16;

pub const STATUS: u64 = 0x70;
pub const FEATURES_OK: u32 = 8;
pub const DRIVER_OK: u32 = 4;
pub const NEEDS_RESET: u32 = 0x40;

/// Queue of control messages to the driver; the next one comes from it.
pub const CONTROL: usize = 2;
/// Queues of port 1.
pub const RECEIVE_1: usize = 4;
pub const TRANSMIT_1: usize = 5;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

// Events of control messages.
pub const DEVICE_READY: u16 = 0;
pub const PORT_ADD: u16 = 1;
pub const PORT_READY: u16 = 3;
pub const CONSOLE_PORT: u16 = 4;
pub const RESIZE: u16 = 5;
pub const PORT_OPEN: u16 = 6;
pub const PORT_NAME: u16 = 7;

/// The number of a device that only one client may have open.
pub const EXCLUSIVE: u16 = 1;

/// Devices that record the calls.
#[derive(Default)]
pub struct Bench {
    pub open: BTreeMap<Handle, u16>,
    pub ioctls: Vec<u32>,
    last: u32,
}

impl Backend for Bench {
    fn open(&mut self, device: u16, _minor: u16) -> Result<Handle, Errno> {
        if device == EXCLUSIVE && self.open.values().any(|open| *open == EXCLUSIVE) {
            return Err(Errno::EBUSY);
        }
        self.last += 1;
        self.open.insert(Handle(self.last), device);
        Ok(Handle(self.last))
    }

    fn opened(&mut self, _handle: Handle) -> Poll<Result<(), Errno>> {
        Poll::Ready(Ok(()))
    }

    fn read(&mut self, _handle: Handle, limit: usize) -> Poll<Result<Vec<u8>, Errno>> {
        Poll::Ready(Ok(vec![7; limit]))
    }

    fn write(&mut self, _handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        Ok(bytes.len())
    }

    fn ioctl(
        &mut self,
        _handle: Handle,
        command: u32,
        _argument: i64,
        _data: &[u8],
    ) -> Poll<Result<IoctlReply, Errno>> {
        self.ioctls.push(command);
        Poll::Ready(Ok(IoctlReply::default()))
    }

    fn poll(&mut self, _handle: Handle) -> Readiness {
        Readiness::default()
    }

    fn close(&mut self, handle: Handle) -> Poll<()> {
        assert!(self.open.remove(&handle).is_some(), "closed twice");
        Poll::Ready(())
    }
}

/// The input and output of a console port.
#[derive(Default)]
pub struct Terminal {
    pub open: bool,
    pub shown: Vec<u8>,
    pub typed: Vec<u8>,
    /// The guest memory, if each piece of output makes another chain available on the transmit queue, as a guest that
    /// sends from another processor meanwhile.
    pub refilled: Option<GuestMemory>,
}

/// A console for the tests.
#[derive(Clone, Default)]
pub struct TerminalPort(pub Arc<Mutex<Terminal>>);

impl Port for TerminalPort {
    fn opened(&mut self) {
        self.0.lock().unwrap().open = true;
    }

    fn closed(&mut self, _backend: &mut dyn Backend) {
        self.0.lock().unwrap().open = false;
    }

    fn wants_input(&self) -> bool {
        true
    }

    fn receive(&mut self, bytes: &[u8], _backend: &mut dyn Backend) -> Result<(), PortError> {
        let mut terminal = self.0.lock().unwrap();
        terminal.shown.extend(bytes);
        if let Some(memory) = &terminal.refilled {
            let index = GuestAddress(queue_addresses(1)[1] + 2);
            let available: u16 = memory.read_obj(index).unwrap();
            memory.write_obj(available.wrapping_add(1), index).unwrap();
        }
        Ok(())
    }

    fn wake(&mut self, _backend: &mut dyn Backend) -> Result<(), PortError> {
        Ok(())
    }

    fn send(&mut self, bytes: &mut [u8]) -> usize {
        let mut terminal = self.0.lock().unwrap();
        let count = bytes.len().min(terminal.typed.len());
        for (target, source) in bytes.iter_mut().zip(terminal.typed.drain(..count)) {
            *target = source;
        }
        count
    }

    fn has_output(&self) -> bool {
        !self.0.lock().unwrap().typed.is_empty()
    }
}

/// A descriptor in memory.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub length: u32,
    pub flags: u16,
    pub next: u16,
}

/// The driver's state of a queue.
#[derive(Clone, Copy, Debug)]
struct Ring {
    available: u16,
    used: u16,
}

/// A device with a console and two ports of the framed protocol, and a driver.
pub struct Driver {
    pub memory: GuestMemory,
    pub device: MmioTransport<Console>,
    pub backend: Bench,
    pub terminal: TerminalPort,
    rings: Vec<Ring>,
}

/// The addresses of a queue's parts: descriptors, available ring, used ring, buffers.
pub fn queue_addresses(queue: usize) -> [u64; 4] {
    let base = 0x1_0000 * (u64::try_from(queue).unwrap() + 1);
    [base, base + 0x2000, base + 0x3000, base + 0x4000]
}

/// Bytes of each buffer. A queue has one buffer for each entry.
pub const BUFFER: u64 = 0x400;

impl Driver {
    /// A device before its driver starts.
    pub fn new() -> Self {
        let length = usize::try_from(MEMORY).unwrap();
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), length)]).unwrap();
        let terminal = TerminalPort::default();
        let info = HelloInfo { vcpus: 2, hz: 100 };
        let port = |number| {
            let port: Box<dyn Port> = Box::new(EndpointPort::new(info));
            (format!("kvmprof.{number}"), port)
        };
        let console = Console::new(Some(Box::new(terminal.clone())), vec![port(0), port(1)]);
        Self {
            memory,
            device: MmioTransport::new(console).unwrap(),
            backend: Bench::default(),
            terminal,
            rings: Vec::new(),
        }
    }

    /// A running driver with all ports announced and ready, and ports 1 and 2 open.
    pub fn running() -> Self {
        let mut driver = Self::new();
        driver.start();
        driver.open_ports();
        driver
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

    /// Does everything up to DRIVER_OK, with all features.
    pub fn start(&mut self) {
        self.start_with(1 << 32 | 0b11);
    }

    pub fn start_with(&mut self, features: u64) {
        assert!(self.negotiate(features));
        self.rings.clear();
        for queue in 0..8 {
            let [descriptors, available, used, buffers] = queue_addresses(queue);
            let length = usize::try_from(buffers - descriptors).unwrap();
            let zeros = vec![0; length];
            self.memory
                .write_slice(&zeros, GuestAddress(descriptors))
                .unwrap();
            assert!(self.set_up(queue, SIZE.into(), [descriptors, available, used]));
            self.rings.push(Ring {
                available: 0,
                used: 0,
            });
        }
        self.write(STATUS, 3 | FEATURES_OK | DRIVER_OK);
    }

    /// Provides buffers everywhere, makes all ports ready and opens 1 and 2; discards the device's messages.
    pub fn open_ports(&mut self) {
        self.provide(CONTROL, 16);
        self.control(0, DEVICE_READY, 1);
        for port in 0..3 {
            self.control(port, PORT_READY, 1);
            self.control(port, PORT_OPEN, 1);
        }
        self.serve();
        let messages = self.take(CONTROL).len();
        self.provide(CONTROL, u16::try_from(messages).unwrap());
        self.take(CONTROL + 1);
        for queue in [0, RECEIVE_1, RECEIVE_1 + 2] {
            self.provide(queue, 8);
        }
    }

    /// Serves the device until it has nothing more to do.
    pub fn serve(&mut self) {
        for _ in 0..10_000 {
            if !self.device.serve(&self.memory, &mut self.backend) {
                return;
            }
        }
        panic!("the device never comes to rest");
    }

    /// Stores a descriptor.
    pub fn describe(&mut self, queue: usize, index: u16, descriptor: Descriptor) {
        let address = queue_addresses(queue)[0] + 16 * u64::from(index);
        let mut bytes = descriptor.address.to_le_bytes().to_vec();
        bytes.extend(descriptor.length.to_le_bytes());
        bytes.extend(descriptor.flags.to_le_bytes());
        bytes.extend(descriptor.next.to_le_bytes());
        self.memory
            .write_slice(&bytes, GuestAddress(address))
            .unwrap();
    }

    /// Makes the chain that begins with descriptor `head` available.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let ring = &mut self.rings[queue];
        let slot = queue_addresses(queue)[1] + 4 + 2 * u64::from(ring.available % SIZE);
        ring.available = ring.available.wrapping_add(1);
        let index = ring.available;
        self.memory.write_obj(head, GuestAddress(slot)).unwrap();
        self.set_available(queue, index);
    }

    pub fn set_available(&mut self, queue: usize, index: u16) {
        let address = GuestAddress(queue_addresses(queue)[1] + 2);
        self.memory.write_obj(index, address).unwrap();
    }

    /// The address of a queue's buffer.
    pub fn buffer(queue: usize, index: u16) -> u64 {
        queue_addresses(queue)[3] + BUFFER * u64::from(index)
    }

    /// Gives the device `count` buffers to write into.
    pub fn provide(&mut self, queue: usize, count: u16) {
        for _ in 0..count {
            let index = self.rings[queue].available % SIZE;
            self.describe(
                queue,
                index,
                Descriptor {
                    address: Self::buffer(queue, index),
                    length: u32::try_from(BUFFER).unwrap(),
                    flags: WRITE,
                    next: 0,
                },
            );
            self.offer(queue, index);
        }
    }

    /// Sends `bytes`, which fit into one buffer.
    pub fn send(&mut self, queue: usize, bytes: &[u8]) {
        let index = self.rings[queue].available % SIZE;
        let address = Self::buffer(queue, index);
        self.memory
            .write_slice(bytes, GuestAddress(address))
            .unwrap();
        self.describe(
            queue,
            index,
            Descriptor {
                address,
                length: u32::try_from(bytes.len()).unwrap(),
                flags: 0,
                next: 0,
            },
        );
        self.offer(queue, index);
    }

    /// Sends a control message.
    pub fn control(&mut self, port: u32, event: u16, value: u16) {
        let mut bytes = port.to_le_bytes().to_vec();
        bytes.extend(event.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        self.send(CONTROL + 1, &bytes);
    }

    /// The contents of the buffers that the device has returned since the last call.
    pub fn take(&mut self, queue: usize) -> Vec<Vec<u8>> {
        let base = queue_addresses(queue)[2];
        let index: u16 = self.memory.read_obj(GuestAddress(base + 2)).unwrap();
        let mut all = Vec::new();
        while self.rings[queue].used != index {
            let slot = u64::from(self.rings[queue].used % SIZE);
            self.rings[queue].used = self.rings[queue].used.wrapping_add(1);
            let entry = GuestAddress(base + 4 + 8 * slot);
            let [head, length]: [u32; 2] = self.memory.read_obj(entry).unwrap();
            let mut bytes = vec![0; usize::try_from(length).unwrap()];
            let address = Self::buffer(queue, u16::try_from(head).unwrap());
            self.memory
                .read_slice(&mut bytes, GuestAddress(address))
                .unwrap();
            all.push(bytes);
        }
        all
    }

    /// The control messages since the last call: port, event, value, and what follows.
    pub fn messages(&mut self) -> Vec<(u32, u16, u16, Vec<u8>)> {
        self.take(CONTROL)
            .into_iter()
            .map(|bytes| {
                let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
                let port = u32::from(half(0)) | u32::from(half(2)) << 16;
                (port, half(4), half(6), bytes[8..].to_vec())
            })
            .collect()
    }

    /// The bytes received on a port's receive queue.
    pub fn received(&mut self, queue: usize) -> Vec<u8> {
        self.take(queue).concat()
    }

    /// Says hello on the port with this transmit queue; returns whether there is a reply.
    pub fn is_answered(&mut self, transmit: usize) -> bool {
        self.send(transmit, &hello());
        self.serve();
        self.take(transmit);
        self.received(transmit - 1).len() == 48
    }
}

/// The bytes of a request.
pub fn request(tag: u32, request: Request<'_>) -> Vec<u8> {
    let frame = RequestFrame { tag, request };
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

pub fn hello() -> Vec<u8> {
    request(
        1,
        Request::Hello {
            lowest: VERSION,
            highest: VERSION,
        },
    )
}

pub fn open_exclusive() -> Vec<u8> {
    request(
        2,
        Request::Open {
            device: EXCLUSIVE,
            minor: 0,
            flags: 0,
        },
    )
}
