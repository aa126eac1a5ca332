//! The network device.

use std::collections::VecDeque;

use kvmprof_devices::virtio::net::{FRAME_MAX, HEADER_SIZE, Link, Net, Offloads, Sent, Wants};

use vm_memory::{Bytes, GuestAddress};

use super::driver::{Descriptor, Driver, INDIRECT, NEEDS_RESET, NEXT, SIZE, STATUS, WRITE};

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const MAC: [u8; 6] = [2, 1, 2, 3, 4, 5];
/// The configuration interrupt.
const CONFIGURATION: u32 = 2;
/// Features: checksums and TSO over IPv4, as received and as sent.
const RECEIVED_OFFLOADS: u64 = 1 << 1 | 1 << 7;
const SENT_OFFLOADS: u64 = 1 << 0 | 1 << 11;

/// A link that keeps the frames it gets.
struct Wire {
    up: bool,
    /// The number of frames that it has room for.
    room: usize,
    sent: Vec<Vec<u8>>,
    coming: VecDeque<Vec<u8>>,
    offloads: Option<(Offloads, Offloads)>,
}

impl Wire {
    fn new() -> Self {
        Self {
            up: true,
            room: usize::MAX,
            sent: Vec::new(),
            coming: VecDeque::new(),
            offloads: None,
        }
    }
}

impl Link for Wire {
    fn is_up(&self) -> bool {
        self.up
    }

    fn set_offloads(&mut self, received: Offloads, sent: Offloads) {
        self.offloads = Some((received, sent));
    }

    fn send(&mut self, packet: &[u8]) -> Sent {
        if packet.ends_with(b"refuse me") {
            return Sent::Refused;
        }
        if self.room == 0 {
            return Sent::Later;
        }
        self.room -= 1;
        self.sent.push(packet.to_vec());
        Sent::Done
    }

    fn receive(&mut self, packet: &mut [u8]) -> Option<usize> {
        let coming = self.coming.pop_front()?;
        packet[..coming.len()].copy_from_slice(&coming);
        Some(coming.len())
    }
}

/// A frame of `length` bytes behind an empty header.
fn packet(length: usize, byte: u8) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_SIZE];
    bytes.extend(vec![byte; length]);
    bytes
}

/// The same as the guest gets it, in one buffer.
fn received(length: usize, byte: u8) -> Vec<u8> {
    let mut bytes = packet(length, byte);
    bytes[10] = 1;
    bytes
}

struct Bench {
    driver: Driver<Net>,
    wire: Wire,
}

impl Bench {
    fn with(offered: Offloads, features: u64) -> Self {
        Self {
            driver: Driver::running(Net::new(MAC, offered, true), features | 1 << 5 | 1 << 16),
            wire: Wire::new(),
        }
    }

    fn new() -> Self {
        Self::with(Offloads::default(), 0)
    }

    fn serve(&mut self) -> Wants {
        let memory = self.driver.memory.clone();
        self.driver.device.serve(&memory, &mut self.wire)
    }

    /// The link's state as the guest reads it.
    fn shown_up(&self) -> bool {
        self.driver.read(0x104) >> 16 & 1 == 1
    }
}

const INPUT: Wants = Wants {
    turn: false,
    input: true,
    room: false,
};

#[test]
fn frames_pass_in_both_directions() {
    let mut bench = Bench::new();
    assert_eq!(bench.driver.read(8), 1);
    let mut configuration = [0; 8];
    bench.driver.device.read(0x100, &mut configuration);
    assert_eq!(configuration, [2, 1, 2, 3, 4, 5, 1, 0]);
    bench.driver.provide(RECEIVE, 1526);
    bench.driver.send(TRANSMIT, &packet(60, 7));
    bench.wire.coming.push_back(packet(1514, 8));
    assert_eq!(bench.serve(), Wants::default());
    assert_eq!(bench.wire.sent, [packet(60, 7)]);
    assert_eq!(bench.driver.take(TRANSMIT).len(), 1);
    assert_eq!(bench.driver.take(RECEIVE), [received(1514, 8)]);
    assert!(bench.driver.device.take_interrupt());
    let counts = bench.driver.device.device().counts();
    assert_eq!((counts.sent.frames, counts.sent.bytes), (1, 60));
    assert_eq!((counts.received.frames, counts.received.bytes), (1, 1514));
}

#[test]
fn frames_may_be_in_indirect_chains() {
    const INDIRECT_FEATURE: u64 = 1 << 28;
    const TABLE: u64 = 0x30_0000;
    let mut bench = Bench::with(Offloads::default(), INDIRECT_FEATURE);
    let bytes = packet(60, 7);
    let (header, frame) = bytes.split_at(HEADER_SIZE);
    let memory = bench.driver.memory.clone();
    for (part, at) in [(header, TABLE + 0x1000), (frame, TABLE + 0x2000)] {
        memory.write_slice(part, GuestAddress(at)).unwrap();
    }
    // Two descriptors: address, length, flags (the first one has a next), next.
    let table: [u64; 4] = [
        TABLE + 0x1000,
        12 | u64::from(NEXT) << 32 | 1 << 48,
        TABLE + 0x2000,
        60,
    ];
    memory.write_obj(table, GuestAddress(TABLE)).unwrap();
    let descriptor = Descriptor::new(TABLE, 32, INDIRECT, 0);
    bench.driver.describe(TRANSMIT, 0, descriptor);
    bench.driver.offer(TRANSMIT, 0);
    bench.serve();
    assert_eq!(bench.wire.sent, [bytes]);
}

#[test]
fn the_link_is_read_while_the_guest_has_buffers() {
    let mut bench = Bench::new();
    for byte in 0..3 {
        bench.wire.coming.push_back(packet(60, byte));
    }
    assert_eq!(bench.serve(), Wants::default());
    assert_eq!(bench.wire.coming.len(), 3);
    for _ in 0..4 {
        bench.driver.provide(RECEIVE, 1526);
    }
    assert_eq!(bench.serve(), INPUT);
    let frames = bench.driver.take(RECEIVE);
    assert_eq!(frames, [received(60, 0), received(60, 1), received(60, 2)]);
}

#[test]
fn frames_without_a_long_enough_buffer_are_dropped_and_counted() {
    let mut bench = Bench::new();
    bench.driver.provide(RECEIVE, 100);
    bench.wire.coming.push_back(packet(89, 1));
    bench.wire.coming.push_back(packet(88, 2));
    assert_eq!(bench.serve(), Wants::default());
    assert_eq!(bench.driver.take(RECEIVE), [received(88, 2)]);
    let counts = bench.driver.device.device().counts();
    assert_eq!(counts.received.dropped, 1);
}

#[test]
fn a_full_link_gets_the_same_frame_again() {
    let mut bench = Bench::new();
    bench.wire.room = 1;
    for byte in 0..3 {
        bench.driver.send(TRANSMIT, &packet(60, byte));
    }
    assert!(bench.serve().room);
    assert!(bench.serve().room);
    assert_eq!(bench.wire.sent.len(), 1);
    bench.wire.room = 2;
    assert!(!bench.serve().room);
    assert_eq!(bench.wire.sent[2], packet(60, 2));
    assert_eq!(bench.driver.device.device().counts().sent.frames, 3);
}

#[test]
fn frames_into_a_link_that_is_down_or_refuses_them_are_dropped() {
    let mut bench = Bench::new();
    let mut refused = packet(60, 1);
    refused.extend(b"refuse me");
    bench.driver.send(TRANSMIT, &refused);
    assert!(!bench.serve().room);
    bench.wire.up = false;
    bench.driver.send(TRANSMIT, &packet(60, 2));
    bench.serve();
    assert_eq!(bench.driver.take(TRANSMIT).len(), 2);
    assert!(bench.wire.sent.is_empty());
    assert_eq!(bench.driver.device.device().counts().sent.dropped, 2);
}

#[test]
fn the_guest_is_notified_of_link_down_and_link_up() {
    let mut bench = Bench::new();
    assert!(bench.shown_up());
    let generation = bench.driver.read(0xfc);
    bench.serve();
    assert_eq!(bench.driver.read(0xfc), generation);
    bench.wire.up = false;
    bench.serve();
    assert!(!bench.shown_up());
    assert_ne!(bench.driver.read(0xfc), generation);
    assert_eq!(bench.driver.read(0x60), CONFIGURATION);
    bench.driver.write(0x64, CONFIGURATION);
    bench.wire.up = true;
    bench.serve();
    assert!(bench.shown_up());
    assert_eq!(bench.driver.read(0x60), CONFIGURATION);
    assert_eq!(bench.driver.device.device().counts().link_losses, 1);
}

#[test]
fn a_waiting_frame_is_dropped_with_the_link() {
    let mut bench = Bench::new();
    bench.wire.room = 0;
    bench.driver.send(TRANSMIT, &packet(60, 1));
    assert!(bench.serve().room);
    bench.wire.up = false;
    assert!(!bench.serve().room);
    bench.wire.up = true;
    bench.wire.room = 1;
    bench.serve();
    assert!(bench.wire.sent.is_empty());
    assert_eq!(bench.driver.device.device().counts().sent.dropped, 1);
}

#[test]
fn invalid_frames_are_counted() {
    let mut bench = Bench::new();
    for length in [1, HEADER_SIZE, HEADER_SIZE + 13] {
        bench.driver.send(TRANSMIT, &vec![0; length]);
    }
    // More work for the host than was negotiated: a checksum, a segment.
    for place in [0, 1] {
        let mut bytes = packet(60, 1);
        bytes[place] = 1;
        bench.driver.send(TRANSMIT, &bytes);
    }
    // Longer than any frame, but no longer than a chain may be.
    let long = Descriptor::new(0, u32::try_from(HEADER_SIZE + FRAME_MAX + 1).unwrap(), 0, 0);
    bench.driver.describe(TRANSMIT, 5, long);
    bench.driver.offer(TRANSMIT, 5);
    bench.driver.send(TRANSMIT, &packet(14, 9));
    bench.serve();
    assert_eq!(bench.wire.sent, [packet(14, 9)]);
    assert_eq!(bench.driver.take(TRANSMIT).len(), 7);
    assert_eq!(bench.driver.device.device().counts().sent.malformed, 6);
    assert_eq!(bench.driver.device.device().counts().queue_faults, 0);
}

#[test]
fn a_turn_is_bounded() {
    let mut bench = Bench::new();
    let length = 60_000;
    for index in 0..SIZE {
        let descriptor = Descriptor::new(0x20_0000, length, 0, 0);
        bench.driver.describe(TRANSMIT, index, descriptor);
        bench.driver.offer(TRANSMIT, index);
    }
    assert!(bench.serve().turn);
    assert_eq!(bench.wire.sent.len(), 5);
    for _ in 0..3 {
        bench.serve();
    }
    assert_eq!(bench.wire.sent.len(), usize::from(SIZE));
}

#[test]
fn dropped_frames_count_towards_a_turn() {
    let mut bench = Bench::new();
    bench.driver.provide(RECEIVE, 20);
    for _ in 0..1000 {
        bench.wire.coming.push_back(packet(60, 1));
    }
    assert!(bench.serve().turn);
    assert_eq!(bench.wire.coming.len(), 1000 - 64);
}

/// Each kind of an invalid chain is among the console's attacks.
#[test]
fn an_invalid_chain_disables_the_queues_until_a_reset() {
    let mut bench = Bench::new();
    bench
        .driver
        .describe(TRANSMIT, 3, Descriptor::new(0x20_0000, 60, WRITE, 0));
    bench.driver.offer(TRANSMIT, 3);
    assert_eq!(bench.serve(), Wants::default());
    assert_eq!(bench.driver.device.device().counts().queue_faults, 1);
    assert_ne!(bench.driver.read(STATUS) & NEEDS_RESET, 0);
    // After that, nothing for any frame.
    bench.driver.send(TRANSMIT, &packet(60, 1));
    assert_eq!(bench.serve(), Wants::default());
    assert!(bench.wire.sent.is_empty());
    bench.driver.start(0);
    bench.driver.send(TRANSMIT, &packet(60, 1));
    bench.serve();
    assert_eq!(bench.wire.sent, [packet(60, 1)]);
}

#[test]
fn offloads_are_those_of_the_driver() {
    let mut bench = Bench::with(Offloads::ALL, RECEIVED_OFFLOADS);
    bench.serve();
    let some = Offloads {
        checksum: true,
        tso4: true,
        ..Offloads::default()
    };
    assert_eq!(bench.wire.offloads, Some((some, Offloads::default())));
    bench.driver.start(SENT_OFFLOADS);
    bench.serve();
    assert_eq!(bench.wire.offloads, Some((Offloads::default(), some)));
    bench.wire.offloads = None;
    bench.serve();
    assert_eq!(bench.wire.offloads, None);
    bench.driver.write(STATUS, 0);
    bench.serve();
    let none = Offloads::default();
    assert_eq!(bench.wire.offloads, Some((none, none)));
}

#[test]
fn segments_pass_only_if_negotiated() {
    let mut segment = packet(4000, 1);
    segment[..10].copy_from_slice(&[1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0]);
    for (features, passes) in [(RECEIVED_OFFLOADS | SENT_OFFLOADS, true), (0, false)] {
        let mut bench = Bench::with(Offloads::ALL, features);
        bench.driver.provide(RECEIVE, 4096);
        bench.driver.send(TRANSMIT, &segment);
        bench.wire.coming.push_back(segment.clone());
        bench.serve();
        assert_eq!(!bench.wire.sent.is_empty(), passes);
        let mut as_received = segment.clone();
        as_received[10] = 1;
        let expected = if passes { vec![as_received] } else { vec![] };
        assert_eq!(bench.driver.take(RECEIVE), expected);
        let counts = bench.driver.device.device().counts();
        assert_eq!(counts.received.dropped, u64::from(!passes));
        assert_eq!(counts.sent.malformed, u64::from(!passes));
    }
}
