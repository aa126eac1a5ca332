//! The network device, and the stream of frames from a network's other end.

use kvmprof_devices::virtio::net::{
    FRAME_MAX, FrameReader, HEADER_SIZE, Link, Net, Offloads, Sent,
};

use crate::driver::Driver;
use crate::driver_steps::{self, STEPS, step};
use crate::input::{Input, block};

/// A link whose frames come from the input, by the stream protocol.
#[derive(Default)]
struct Wire {
    reader: FrameReader,
    sent: usize,
    is_broken: bool,
}

impl Wire {
    /// Bytes of the stream have come.
    fn come(&mut self, bytes: &[u8]) {
        let room = self.reader.room();
        let count = bytes.len().min(room.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.reader.filled(count);
    }
}

impl Link for Wire {
    fn is_up(&self) -> bool {
        !self.is_broken
    }

    fn set_offloads(&mut self, _received: Offloads, _sent: Offloads) {}

    fn send(&mut self, packet: &[u8]) -> Sent {
        assert!(packet.len() <= HEADER_SIZE + FRAME_MAX);
        self.sent += 1;
        match self.sent % 7 {
            0 => Sent::Later,
            1 => Sent::Refused,
            _ => Sent::Done,
        }
    }

    fn receive(&mut self, packet: &mut [u8]) -> Option<usize> {
        match self.reader.next_frame() {
            Ok(frame) => {
                let frame = frame?;
                packet[..HEADER_SIZE].fill(0);
                packet[HEADER_SIZE..HEADER_SIZE + frame.len()].copy_from_slice(frame);
                Some(HEADER_SIZE + frame.len())
            }
            Err(_) => {
                self.is_broken = true;
                None
            }
        }
    }
}

/// What a driver and the network do, one after the other.
pub fn run(data: &[u8]) {
    let mut driver = Driver::new(Net::new([2, 1, 2, 3, 4, 5], Offloads::ALL, true));
    let mut wire = Wire::default();
    let mut input = Input::new(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        if input.u8().is_multiple_of(4) {
            wire.come(input.block());
        } else {
            step(&mut driver, &mut input);
        }
        let Driver { device, memory, .. } = &mut driver;
        device.serve(memory, &mut wire);
        device.take_interrupt();
    }
}

/// Frames in both directions, and a length that no frame has.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let driver = |steps: Vec<u8>| [vec![1], steps].concat();
    let frame = |length: u32, bytes: &[u8]| {
        let framed = [&length.to_be_bytes()[..], bytes].concat();
        [vec![0], block(&framed)].concat()
    };
    let start = driver(driver_steps::start());
    let room = driver(driver_steps::provide(0, 1526));
    let sent = driver(driver_steps::send(1, &[0; 12 + 60]));
    vec![
        (
            "receive",
            [start.clone(), room.repeat(4), frame(60, &[1; 60])].concat(),
        ),
        ("send", [start.clone(), sent.repeat(8)].concat()),
        ("length", [start, room, frame(u32::MAX, &[1; 60])].concat()),
    ]
}
