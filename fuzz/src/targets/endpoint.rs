//! Two clients' connections with the profiling devices pcs and prf behind them, as the guest or a host's program sees them. What waits of
//! them has little room in common.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{PCS_FLUSH, PCS_GETSTAT, PCS_STOP, PROF_ALL, PROF_LIST};
use kvmprof_abi::prf::PRF_SETSTATE;
use kvmprof_abi::wire::{ReplyFrame, Request, RequestFrame, VERSION, device};
use kvmprof_devices::endpoint::{
    Backend, Client, Endpoint, Handle, HelloInfo, IoctlReply, Readiness,
};
use kvmprof_devices::profiling::{Pcs, Prf};
use kvmprof_recording::{Mode, QueueBudget, Sample, Ticks};

use super::wire;
use crate::input::Input;

/// Steps of one input.
const MAX_STEPS: usize = 400;
const VCPUS: u16 = 2;
const HZ: u32 = 100;
/// Bytes that may wait of both clients together, beyond what each has for itself: for one long request, and not for two.
const ROOM: usize = 64 << 10;
/// In a step: it is the second client's.
const SECOND: u8 = 0x80;
/// In a step of any bytes: they are zeros, four for each that an input says, so that a few bytes of it are the rest of a long request.
const ZEROS: u8 = 0x40;
static NOTHING: [u8; 1 << 18] = [0; 1 << 18];
/// A command of each device.
const FAMILIES: [u32; 2] = [PROF_LIST, PRF_SETSTATE];

/// The profiling devices pcs and prf, and which handle is which.
pub struct Devices {
    pcs: Pcs,
    prf: Prf,
    open: BTreeMap<Handle, (u16, u16)>,
    last: u32,
}

impl Devices {
    /// Nothing is open.
    pub fn new() -> Self {
        let mut prf = Prf::new(VCPUS, 64);
        prf.set_hz(HZ);
        Self {
            pcs: Pcs::new(VCPUS),
            prf,
            open: BTreeMap::new(),
            last: 0,
        }
    }

    /// Whether all that was opened is closed.
    pub fn is_closed(&self) -> bool {
        self.open.is_empty()
    }

    fn which(&self, handle: Handle) -> (u16, u16) {
        self.open[&handle]
    }

    fn feed(&mut self, ticks: &Ticks) {
        self.pcs.feed(ticks);
        self.prf.feed(ticks);
    }

    /// Every tick is in exactly one account.
    pub fn check(&self) {
        assert!(self.pcs.ledger().balances(), "{:?}", self.pcs.ledger());
        for report in self.prf.reports() {
            assert!(report.ledger.balances(), "{report:?}");
        }
    }
}

impl Backend for Devices {
    fn open(&mut self, _client: Client, number: u16, minor: u16) -> Result<Handle, Errno> {
        match number {
            device::PCS if minor == 0 => self.pcs.open(HZ)?,
            device::PRF => self.prf.check_minor(minor)?,
            device::PCS => return Err(Errno::ENXIO),
            _ => return Err(Errno::ENODEV),
        }
        self.last += 1;
        self.open.insert(Handle(self.last), (number, minor));
        Ok(Handle(self.last))
    }

    fn opened(&mut self, _handle: Handle) -> Poll<Result<(), Errno>> {
        Poll::Ready(Ok(()))
    }

    fn read(&mut self, handle: Handle, limit: usize) -> Poll<Result<Vec<u8>, Errno>> {
        let mut bytes = Vec::new();
        let result = match self.which(handle) {
            (device::PCS, _) => self.pcs.read(limit, &mut bytes),
            (_, minor) => self.prf.read(minor, limit, &mut bytes),
        };
        assert!(bytes.len() <= limit);
        Poll::Ready(result.map(|_| bytes))
    }

    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        match self.which(handle) {
            (device::PCS, _) => Err(Errno::EINVAL),
            (_, minor) => self.prf.write(minor, bytes),
        }
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Poll<Result<IoctlReply, Errno>> {
        Poll::Ready(match self.which(handle) {
            (device::PCS, _) => self.pcs.ioctl(command, argument, data),
            (_, minor) => self.prf.ioctl(minor, command, argument),
        })
    }

    fn poll(&mut self, handle: Handle) -> Readiness {
        let is_pcs = self.which(handle).0 == device::PCS;
        Readiness {
            readable: !is_pcs || self.pcs.readable(),
            writable: !is_pcs,
            hang_up: false,
        }
    }

    fn close(&mut self, handle: Handle) -> Poll<()> {
        let (number, _) = self.open.remove(&handle).unwrap();
        if number == device::PCS {
            self.pcs.close();
        }
        Poll::Ready(())
    }
}

/// What clients and the clock do, one after the other.
pub fn run(data: &[u8]) {
    refusals(data);
}

/// Does so. Returns how many of the replies that were taken said that there is no room.
fn refusals(data: &[u8]) -> usize {
    let mut input = Input::new(data);
    let room = Arc::new(QueueBudget::new(ROOM));
    let info = HelloInfo {
        vcpus: VCPUS.into(),
        hz: HZ,
    };
    let mut clients = [(); 2].map(|()| Endpoint::within(Client::Host, info, &room));
    let mut devices = Devices::new();
    let mut refused = 0;
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        let client = &mut clients[usize::from(step & SECOND != 0)];
        let result = match step % 8 {
            // Mostly sound requests, and any bytes.
            0..=3 => client.receive(&request(&mut input, 4, &FAMILIES), &mut devices),
            4 if step & ZEROS != 0 => {
                let count = 4 * usize::from(input.u16());
                client.receive(&NOTHING[..count], &mut devices)
            }
            4 => client.receive(input.block(), &mut devices),
            5 => {
                devices.feed(&ticks(&mut input));
                clients.iter_mut().try_for_each(|client| {
                    client.begin_turn();
                    client.wake(&mut devices)
                })
            }
            6 => {
                let count = usize::from(input.u16()).min(client.output().len());
                client.consume(count);
                client.wake(&mut devices)
            }
            _ => {
                client.begin_turn();
                refused += take_replies(client);
                client.wake(&mut devices)
            }
        };
        devices.check();
        let open = clients.iter().map(Endpoint::open_devices);
        assert_eq!(open.sum::<usize>(), devices.open.len());
        if result.is_err() {
            break;
        }
    }
    for client in &mut clients {
        client.close(&mut devices);
    }
    devices.check();
    assert!(devices.is_closed());
    // One is dropped with what it has yet to send.
    let [first, mut second] = clients;
    drop(first);
    take_replies(&mut second);
    assert_eq!(room.left(), ROOM);
    refused
}

/// All that the endpoint says is whole frames, or the rest of one that was taken in part before. Returns how many of them say that there is
/// no room.
pub fn take_replies(endpoint: &mut Endpoint) -> usize {
    let mut refused = 0;
    let mut rest = endpoint.output();
    while let Ok(Some((frame, length))) = ReplyFrame::decode(rest) {
        refused += usize::from(frame.result.err() == Some(Errno::ENOMEM));
        rest = &rest[length..];
    }
    endpoint.consume(endpoint.output().len());
    refused
}

/// A request of one of this number of devices, whose commands are close to those of these families, or any.
pub fn request(input: &mut Input<'_>, devices: u8, families: &[u32]) -> Vec<u8> {
    let tag = u32::from(input.u8() % 8);
    let kind = input.u8();
    // Names of open devices are small numbers.
    let handle = u32::from(input.u8() % 4);
    let request = match kind % 8 {
        0 => Request::Hello {
            lowest: VERSION,
            highest: VERSION,
        },
        1 => Request::Open {
            device: u16::from(input.u8() % devices),
            minor: u16::from(input.u8()),
            flags: u32::from(input.u8() % 3),
        },
        2 => Request::Read {
            handle,
            limit: input.u32(),
            flags: u32::from(input.u8() % 3),
        },
        3 => Request::Write {
            handle,
            flags: 0,
            data: input.block(),
        },
        4 => Request::Ioctl {
            handle,
            command: command(input, families),
            argument: input.u64().cast_signed(),
            limit: input.u16().into(),
            data: input.block(),
        },
        5 => Request::Poll {
            handle,
            events: u32::from(input.u8() % 8),
            flags: u32::from(input.u8() % 3),
        },
        6 => Request::Cancel {
            tag: u32::from(input.u8() % 8),
        },
        _ => Request::Close { handle },
    };
    let frame = RequestFrame { tag, request };
    let mut bytes = vec![0; frame.encoded_length()];
    // Too much data is refused here already.
    let length = frame.encode(&mut bytes).unwrap_or(0);
    bytes.truncate(length);
    bytes
}

/// A command close to that of one of the families, or any.
fn command(input: &mut Input<'_>, families: &[u32]) -> u32 {
    let number = usize::from(input.u8()) % (families.len() + 1);
    match families.get(number) {
        // The commands have close numbers.
        Some(family) => (family & !0xff) + input.u32() % 0x100,
        None => input.u32(),
    }
}

/// Ticks of one of two vCPUs.
pub fn ticks(input: &mut Input<'_>) -> Ticks {
    let flags = input.u8();
    let vcpu = u16::from(flags & 1);
    // Clocks don't tick for longer than 2^48 ticks.
    let count = |input: &mut Input<'_>, wanted: bool| {
        if wanted { input.u64() >> 16 } else { 0 }
    };
    let idle = count(input, flags & 2 != 0);
    let stolen = count(input, flags & 4 != 0);
    let lost = count(input, flags & 8 != 0);
    let sample = (flags & 16 != 0).then(|| Sample {
        vcpu,
        mode: Mode::ALL[usize::from(input.u8() % 4)],
        pid: i32::from(input.u8()),
        process_group: i32::from(input.u8()),
        pc: input.u64(),
        ..Sample::default()
    });
    Ticks {
        vcpu,
        idle,
        stolen,
        lost,
        ungathered: 0,
        sample,
    }
}

/// Two clients of prf with long writes, of which one has room at a time, and a long read.
fn without_room() -> Vec<u8> {
    let hello = [0, 1, 0, 0];
    let open = [0, 1, 1, 0, device::PRF.to_le_bytes()[0], 0, 0];
    let read = |limit: u32| [&[0, 3, 2, 1][..], &limit.to_le_bytes(), &[0]].concat();
    let write = wire::request(&RequestFrame {
        tag: 2,
        request: Request::Write {
            handle: 1,
            flags: 0,
            data: &[0; 190_000],
        },
    });
    // What is left comes in fours.
    let (begun, rest) = write.split_at(60 + write.len() % 4);
    let rest = u16::try_from(rest.len() / 4).unwrap();
    let begin = [&[4][..], &crate::input::block(begun)].concat();
    let end = [&[4 | ZEROS][..], &rest.to_le_bytes()].concat();
    let take = [7];
    let of_second = |step: &[u8]| [&[step[0] | SECOND][..], &step[1..]].concat();
    let first = |steps: &[&[u8]]| steps.concat();
    let second = |steps: &[&[u8]]| -> Vec<u8> {
        let steps = steps.iter().map(|step| of_second(step));
        steps.collect::<Vec<_>>().concat()
    };
    [
        first(&[&hello, &open, &begin]),
        second(&[&hello, &open, &read(1 << 20), &begin, &end, &take]),
        first(&[&end, &take]),
        second(&[&begin, &end, &read(4096), &take]),
    ]
    .concat()
}

/// A client of pcs, one of prf, a stream of bytes, and clients that request more memory than there is.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let hello = [0, 1, 0, 0].to_vec();
    let open = |number: u16| [0, 1, 1, 0, number.to_le_bytes()[0], 0, 0].to_vec();
    let tick = |flags: u8, rest: &[u8]| [&[5, flags][..], rest].concat();
    let sample = tick(16, &[1, 7, 1, 0, 0x10, 0x40, 0, 0, 0, 0, 0]);
    let ioctl = |family: u8, command: u32, argument: u64, data: &[u8]| {
        let low = (command & 0xff).to_le_bytes();
        let argument = argument.to_le_bytes();
        let data = crate::input::block(data);
        [&[0, 2, 4, 1, family][..], &low, &argument, &[64, 0], &data].concat()
    };
    let read = [0, 3, 2, 1, 0, 4, 0, 0, 0].to_vec();
    let write = [
        &[0, 4, 3, 1][..],
        &crate::input::block(&[1, 0x1000, 0x2000, 0x3000].map(u64::to_le_bytes).concat()),
    ]
    .concat();
    let pcs = [
        hello.clone(),
        open(device::PCS),
        ioctl(0, PROF_ALL, 0, &[]),
        sample.repeat(70),
        tick(2, &[0, 0, 9, 0, 0, 0, 0, 0]),
        ioctl(0, PCS_FLUSH, 0, &[]),
        read.clone(),
        ioctl(0, PCS_GETSTAT, 0, &[]),
        ioctl(0, PCS_STOP, 0, &[]),
        vec![7],
        read.clone(),
        [0, 5, 7, 1].to_vec(),
    ];
    let prf = [
        hello.clone(),
        open(device::PRF),
        write,
        ioctl(1, PRF_SETSTATE, 1, &[]),
        sample.repeat(5),
        read,
        ioctl(1, PRF_SETSTATE, 0, &[]),
        vec![7],
    ];
    let raw = wire::request(&RequestFrame {
        tag: 1,
        request: Request::Hello {
            lowest: VERSION,
            highest: VERSION,
        },
    });
    let bytes = [&[4][..], &crate::input::block(&raw), &[7]].concat();
    vec![
        ("pcs", pcs.concat()),
        ("prf", prf.concat()),
        ("bytes", bytes),
        ("room", without_room()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The long read of the second client, and its first long write: the other client holds the memory then.
    #[test]
    fn one_seed_exceeds_the_memory_limit() {
        assert_eq!(refusals(&without_room()), 2);
    }
}
