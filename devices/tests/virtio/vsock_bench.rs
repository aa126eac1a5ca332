//! The socket device with a guest and a host that a test simulates.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use kvmprof_devices::virtio::vsock::{
    HEADER_SIZE, HOST_CID, Header, Host, Operation, Readiness, Stream, TYPE_STREAM, Transfer, Vsock,
};

use crate::driver::Driver;

pub const RECEIVE: usize = 0;
pub const TRANSMIT: usize = 1;
pub const CID: u32 = 7;
/// The listeners on the host.
pub const LISTENER: u32 = 80;
pub const ROOM: u32 = 1 << 20;

/// The host's end of a connection as the test sees it.
#[derive(Default)]
pub struct End {
    /// The bytes it will send, and whether they are the last.
    pub coming: VecDeque<u8>,
    pub sent_all: bool,
    /// The bytes it received, and whether they are the last.
    pub taken: Vec<u8>,
    pub saw_end: bool,
    /// The number of bytes that it has room for.
    pub room: usize,
    pub deaf: bool,
    pub dropped: bool,
}

pub struct Pipe {
    pub name: u64,
    pub end: Rc<RefCell<End>>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.end.borrow_mut().dropped = true;
    }
}

impl Stream for Pipe {
    fn name(&self) -> u64 {
        self.name
    }

    fn read(&mut self, buffer: &mut [u8]) -> Transfer {
        let mut end = self.end.borrow_mut();
        let count = end.coming.len().min(buffer.len());
        if count == 0 {
            return if end.sent_all {
                Transfer::Ended
            } else {
                Transfer::Later
            };
        }
        for (byte, value) in buffer.iter_mut().zip(end.coming.drain(..count)) {
            *byte = value;
        }
        Transfer::Bytes(count)
    }

    fn write(&mut self, bytes: &[u8]) -> Transfer {
        let mut end = self.end.borrow_mut();
        if end.deaf {
            return Transfer::Ended;
        }
        let count = end.room.min(bytes.len());
        if count == 0 {
            return Transfer::Later;
        }
        end.room -= count;
        end.taken.extend(&bytes[..count]);
        Transfer::Bytes(count)
    }

    fn end_writing(&mut self) {
        self.end.borrow_mut().saw_end = true;
    }
}

#[derive(Default)]
pub struct Ends {
    pub last_name: u64,
    pub by_name: BTreeMap<u64, Rc<RefCell<End>>>,
}

impl Ends {
    pub fn add(&mut self) -> Pipe {
        self.last_name += 1;
        let end = End {
            room: usize::MAX,
            ..End::default()
        };
        let end = Rc::new(RefCell::new(end));
        self.by_name.insert(self.last_name, Rc::clone(&end));
        Pipe {
            name: self.last_name,
            end,
        }
    }
}

impl Host for Ends {
    type Stream = Pipe;

    fn connect(&mut self, port: u32) -> Option<Pipe> {
        (port == LISTENER).then(|| self.add())
    }
}

pub struct Bench {
    pub driver: Driver<Vsock<Pipe>>,
    pub host: Ends,
    /// The guest's received bytes beyond those that were checked.
    pub received: VecDeque<(Header, Vec<u8>)>,
}

impl Bench {
    pub fn new() -> Self {
        let mut bench = Self {
            driver: Driver::running(Vsock::new(CID), 0),
            host: Ends::default(),
            received: VecDeque::new(),
        };
        bench.provide(8);
        bench
    }

    pub fn provide(&mut self, buffers: usize) {
        for _ in 0..buffers {
            self.driver.provide(RECEIVE, 0x1000);
        }
    }

    /// Serves it until it has nothing to do, with as many buffers as it needs.
    pub fn serve(&mut self) {
        loop {
            let memory = self.driver.memory.clone();
            let more = self.driver.device.serve(&memory, &mut self.host);
            self.driver.take(TRANSMIT);
            let packets = self.driver.take(RECEIVE);
            self.provide(packets.len());
            let idle = packets.is_empty() && !more;
            for packet in packets {
                let header = Header::decode(packet[..HEADER_SIZE].try_into().unwrap());
                let data = packet[HEADER_SIZE..].to_vec();
                assert_eq!(header.length as usize, data.len());
                assert_eq!(
                    (header.source_cid, header.destination_cid),
                    (HOST_CID, CID.into())
                );
                self.received.push_back((header, data));
            }
            if idle {
                return;
            }
        }
    }

    pub fn send(&mut self, header: Header, data: &[u8]) {
        let packet = [&header.encode()[..], data].concat();
        self.driver.send(TRANSMIT, &packet);
        self.serve();
    }

    pub fn say(&mut self, ports: (u32, u32), operation: Operation, flags: u32, data: &[u8]) {
        self.send(
            Header {
                flags,
                length: u32::try_from(data.len()).unwrap(),
                ..packet(ports, operation)
            },
            data,
        );
    }

    /// The guest has so much room, and has taken so many bytes.
    pub fn credit(&mut self, ports: (u32, u32), room: u32, forwarded: u32) {
        let header = Header {
            room,
            forwarded,
            ..packet(ports, Operation::CreditUpdate)
        };
        self.send(header, &[]);
    }

    pub fn next(&mut self) -> (Header, Vec<u8>) {
        self.received.pop_front().expect("a packet for the guest")
    }

    /// The next packet is this one, without data.
    pub fn expect(&mut self, ports: (u32, u32), operation: Operation) -> Header {
        let (header, data) = self.next();
        assert_eq!(header.operation, operation as u16, "{header:?}");
        assert_eq!((header.destination_port, header.source_port), ports);
        assert!(data.is_empty());
        header
    }

    pub fn nothing_more(&self) {
        assert!(self.received.is_empty(), "{:?}", self.received);
    }

    pub fn connected(&mut self, guest_port: u32) -> ((u32, u32), Rc<RefCell<End>>) {
        let ports = (guest_port, LISTENER);
        self.say(ports, Operation::Request, 0, &[]);
        self.expect(ports, Operation::Response);
        let last = self.host.last_name;
        (ports, Rc::clone(&self.host.by_name[&last]))
    }

    pub fn ready(&mut self, name: u64, hung_up: bool) {
        let ready = Readiness {
            input: true,
            room: true,
            hung_up,
        };
        self.driver.device.ready(name, ready);
        self.serve();
    }

    pub fn connections(&self) -> usize {
        self.driver.device.device().connections()
    }
}

pub fn packet(ports: (u32, u32), operation: Operation) -> Header {
    Header {
        source_cid: CID.into(),
        destination_cid: HOST_CID,
        source_port: ports.0,
        destination_port: ports.1,
        kind: TYPE_STREAM,
        operation: operation as u16,
        room: ROOM,
        ..Header::default()
    }
}
