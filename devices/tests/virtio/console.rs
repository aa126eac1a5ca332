//! The console with its driver, and devices behind the ports.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Request, RequestFrame, VERSION};
use kvmprof_devices::endpoint::{
    Backend, Client, GuestAccess, Handle, HelloInfo, IoctlReply, Readiness,
};
use kvmprof_devices::virtio::GuestMemory;
use kvmprof_devices::virtio::console::{Console, EndpointPort, Port, PortError};
use vm_memory::{Bytes, GuestAddress};

use super::driver::{Driver, queue_addresses};

/// Bytes of each buffer that the device is given.
const BUFFER: u32 = 0x400;

/// Queue of control messages to the driver; the next one comes from it.
pub const CONTROL: usize = 2;
/// Queues of port 1.
pub const RECEIVE_1: usize = 4;
pub const TRANSMIT_1: usize = 5;

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
    /// How long each command takes.
    pub takes: Duration,
    last: u32,
}

impl Backend for Bench {
    fn open(&mut self, _client: Client, device: u16, _minor: u16) -> Result<Handle, Errno> {
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
        thread::sleep(self.takes);
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
    /// The guest memory, if each piece of output makes another chain available on the transmit queue, like a guest
    /// that sends from another vCPU.
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

/// A device with a console and two ports of the framed protocol, and a driver.
pub struct ConsoleDriver {
    driver: Driver<Console>,
    pub backend: Bench,
    pub terminal: TerminalPort,
}

impl Deref for ConsoleDriver {
    type Target = Driver<Console>;

    fn deref(&self) -> &Self::Target {
        &self.driver
    }
}

impl DerefMut for ConsoleDriver {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.driver
    }
}

impl ConsoleDriver {
    /// A device before its driver starts.
    pub fn new() -> Self {
        let terminal = TerminalPort::default();
        let info = HelloInfo { vcpus: 2, hz: 100 };
        let port = |number| -> (String, Box<dyn Port>) {
            let port = EndpointPort::new(Client::Guest(GuestAccess::All), info);
            (format!("kvmprof.{number}"), Box::new(port))
        };
        let console = Console::new(Some(Box::new(terminal.clone())), vec![port(0), port(1)]);
        Self {
            driver: Driver::new(console),
            backend: Bench::default(),
            terminal,
        }
    }

    /// A running driver with all ports announced and ready, and ports 1 and 2 open.
    pub fn running() -> Self {
        let mut driver = Self::new();
        driver.start();
        driver.open_ports();
        driver
    }

    /// A running driver that has a device open on port 1.
    pub fn with_open_device() -> Self {
        let mut driver = Self::running();
        driver.send(TRANSMIT_1, &hello());
        driver.send(TRANSMIT_1, &open_exclusive());
        driver.serve();
        assert_eq!(driver.backend.open.len(), 1);
        driver
    }

    /// Does everything up to DRIVER_OK, with all features.
    pub fn start(&mut self) {
        self.start_with(0b11);
    }

    pub fn start_with(&mut self, features: u64) {
        self.driver.start(features);
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

    /// Serves the device once; true if it has more to do.
    pub fn serve_once(&mut self) -> bool {
        let Driver { device, memory, .. } = &mut self.driver;
        device.serve(memory, &mut self.backend)
    }

    /// Ends the device.
    pub fn end(&mut self) {
        self.driver.device.end(&mut self.backend);
    }

    /// Serves the device until it has nothing more to do.
    pub fn serve(&mut self) {
        for _ in 0..10_000 {
            if !self.serve_once() {
                return;
            }
        }
        panic!("the device never comes to rest");
    }

    /// Gives the device `count` buffers to write into.
    pub fn provide(&mut self, queue: usize, count: u16) {
        for _ in 0..count {
            self.driver.provide(queue, BUFFER);
        }
    }

    /// Sends a control message.
    pub fn control(&mut self, port: u32, event: u16, value: u16) {
        let mut bytes = port.to_le_bytes().to_vec();
        bytes.extend(event.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        self.send(CONTROL + 1, &bytes);
    }

    /// The control messages since the last call: port, event, value, and what follows.
    pub fn messages(&mut self) -> Vec<(u32, u16, u16, Vec<u8>)> {
        let decoded = self.take(CONTROL).into_iter().map(|bytes| {
            let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let port = u32::from(half(0)) | u32::from(half(2)) << 16;
            (port, half(4), half(6), bytes[8..].to_vec())
        });
        decoded.collect()
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
    let (lowest, highest) = (VERSION, VERSION);
    request(1, Request::Hello { lowest, highest })
}

pub fn open_exclusive() -> Vec<u8> {
    let open = Request::Open {
        device: EXCLUSIVE,
        minor: 0,
        flags: 0,
    };
    request(2, open)
}
