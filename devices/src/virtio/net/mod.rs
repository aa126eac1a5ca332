//! The network device (section 5.1) with one pair of queues: frames between the guest and a [`Link`].
//!
//! Queue 0 goes to the driver, and queue 1 comes from the driver. Frames that can't be delivered are dropped and counted, as on any network:
//! frames of the guest while the link is down, and frames of the link that are longer than the guest's buffer. While the guest
//! offers no buffer at all, the link isn't read.

mod header;
mod stream;

use kvmprof_recording::status::FrameCounts;
use virtio_bindings::bindings::virtio_net::{
    VIRTIO_NET_F_MAC, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;

use super::turn::{GivesUp, take_turn};
use super::{
    Direction, GuestMemory, MmioTransport, QUEUE_FEATURES, QueueError, VirtioDevice, Virtqueue,
};

pub use header::{FRAME_MAX, FRAME_MIN, HEADER_SIZE, Offloads};
pub use stream::{FrameReader, FrameWriter, StreamError};

/// Maximum number of entries of each queue.
const QUEUE_SIZE_MAX: u16 = 256;
/// Maximum size of a frame with its header, in bytes.
const PACKET_MAX: usize = HEADER_SIZE + FRAME_MAX;
/// Maximum number of bytes that are moved in one direction before the other direction has its turn.
const BUDGET: usize = 256 << 10;
/// The minimum number of bytes that a frame counts as: short frames take time, too.
const FRAME_COST: usize = 4 << 10;

/// The result of sending a frame to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The link has taken the frame.
    Done,
    /// The link has no room now: the frame has to be sent again.
    Later,
    /// The link refuses the frame.
    Refused,
}

/// The link that the device is connected to. Each frame has its header before it, in both directions. No method blocks.
pub trait Link {
    /// True while there is a peer at the other end.
    fn is_up(&self) -> bool;

    /// From now on, frames that the guest receives may use `received`, and frames that it sends use at most `sent`.
    fn set_offloads(&mut self, received: Offloads, sent: Offloads);

    /// Sends a frame: a header, and [`FRAME_MIN`] to [`FRAME_MAX`] bytes.
    fn send(&mut self, packet: &[u8]) -> Sent;

    /// Puts the next received frame with its header into `packet`, and returns the number of bytes. `None`
    /// if there is none. `packet` has room for the longest frame.
    fn receive(&mut self, packet: &mut [u8]) -> Option<usize>;
}

/// What the device has done since the start. Frames to the guest are dropped if the guest's buffer was too short, or they used an offload that
/// wasn't negotiated; frames of the guest if the link was down or refused them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounts {
    /// Frames to the guest.
    pub received: FrameCounts,
    /// Frames of the guest. Malformed ones are too short, too long, or have a header that uses an offload that wasn't negotiated.
    pub sent: FrameCounts,
    /// Unusable chains and rings of the guest's driver.
    pub queue_faults: u64,
    /// How often the link has gone down.
    pub link_losses: u64,
}

/// What the device waits for after a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Another turn: the device has more to do after others have had their turn.
    pub turn: bool,
    /// A frame from the link.
    pub input: bool,
    /// Room for a frame in the link.
    pub room: bool,
}

/// The network device.
#[derive(Debug)]
pub struct Net {
    mac: [u8; 6],
    offered: Offloads,
    received: Offloads,
    sent: Offloads,
    /// The link hasn't been informed of the offloads yet.
    renegotiated: bool,
    up: bool,
    /// The queues are unusable until a reset.
    broken: bool,
    counts: NetCounts,
    incoming: Box<[u8]>,
    outgoing: Box<[u8]>,
    /// Length of the frame in `outgoing` that waits until the link has room for it.
    unsent: Option<usize>,
}

impl Net {
    /// A device with this MAC address. `offered` are the link's offloads, and `up` is the link's state.
    #[must_use]
    pub fn new(mac: [u8; 6], offered: Offloads, up: bool) -> Self {
        Self {
            mac,
            offered,
            received: Offloads::default(),
            sent: Offloads::default(),
            renegotiated: true,
            up,
            broken: false,
            counts: NetCounts::default(),
            incoming: vec![0; PACKET_MAX].into(),
            outgoing: vec![0; PACKET_MAX].into(),
            unsent: None,
        }
    }

    /// What the device has done since the start.
    #[must_use]
    pub fn counts(&self) -> NetCounts {
        self.counts
    }

    /// Whether the guest sees the link as up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// The device's MAC address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Moves frames in both directions, for a bounded time.
    fn serve(
        &mut self,
        queues: &mut [Virtqueue],
        memory: &GuestMemory,
        link: &mut dyn Link,
    ) -> Result<Wants, QueueError> {
        let [receive, transmit, ..] = queues else {
            return Ok(Wants::default());
        };
        let sending = self.transmit(transmit, memory, link)?;
        let receiving = self.receive(receive, memory, link)?;
        Ok(Wants {
            turn: sending.turn || receiving.turn,
            input: receiving.input,
            room: sending.room,
        })
    }

    /// Moves frames from the guest to the link.
    fn transmit(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        link: &mut dyn Link,
    ) -> Result<Wants, QueueError> {
        let mut left = BUDGET;
        loop {
            if self.unsent.is_some() && !self.send(link) {
                return Ok(Wants {
                    room: true,
                    ..Wants::default()
                });
            }
            if left == 0 {
                return Ok(Wants {
                    turn: true,
                    ..Wants::default()
                });
            }
            if !queue.begin(memory, Direction::ToDevice)? {
                return Ok(Wants::default());
            }
            let length = queue.remaining();
            left = left.saturating_sub(length.max(FRAME_COST));
            if self.fetch(queue, memory, length)? {
                self.unsent = Some(length);
            } else {
                self.counts.sent.malformed += 1;
            }
            queue.finish(memory)?;
        }
    }

    /// Reads the chain in progress, of `length` bytes. False if it has no valid frame.
    fn fetch(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        length: usize,
    ) -> Result<bool, QueueError> {
        if length < HEADER_SIZE + FRAME_MIN {
            return Ok(false);
        }
        let Some(packet) = self.outgoing.get_mut(..length) else {
            return Ok(false);
        };
        queue.read(memory, packet)?;
        let header = packet.first_chunk_mut();
        Ok(header.is_some_and(|header| self.sent.check(header, length - HEADER_SIZE)))
    }

    /// Sends the waiting frame to the link. False if the link has no room.
    fn send(&mut self, link: &mut dyn Link) -> bool {
        let length = self.unsent.unwrap_or_default();
        let packet = self.outgoing.get(..length).unwrap_or_default();
        let sent = if link.is_up() {
            link.send(packet)
        } else {
            Sent::Refused
        };
        match sent {
            Sent::Later => return false,
            Sent::Refused => self.counts.sent.dropped += 1,
            Sent::Done => {
                self.counts.sent.frames += 1;
                self.counts.sent.bytes += length.saturating_sub(HEADER_SIZE) as u64;
            }
        }
        self.unsent = None;
        true
    }

    /// Moves frames from the link to the guest.
    fn receive(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        link: &mut dyn Link,
    ) -> Result<Wants, QueueError> {
        let mut left = BUDGET;
        while left > 0 {
            if !queue.begin(memory, Direction::ToDriver)? {
                return Ok(Wants::default());
            }
            let Some(length) = link.receive(&mut self.incoming) else {
                return Ok(Wants {
                    input: link.is_up(),
                    ..Wants::default()
                });
            };
            left = left.saturating_sub(length.max(FRAME_COST));
            self.deliver(queue, memory, length)?;
        }
        Ok(Wants {
            turn: true,
            ..Wants::default()
        })
    }

    /// Puts the frame of `length` bytes, with its header, into the chain in progress, or drops it.
    fn deliver(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        length: usize,
    ) -> Result<(), QueueError> {
        let fits = (HEADER_SIZE + FRAME_MIN..=queue.remaining()).contains(&length);
        let packet = self.incoming.get_mut(..length).filter(|_| fits);
        let packet = packet.and_then(|packet| {
            let header = packet.first_chunk_mut()?;
            let usable = self.received.check(header, length - HEADER_SIZE);
            // One buffer for each frame (section 5.1.6.4.1).
            let [.., buffers, _] = header;
            *buffers = 1;
            usable.then_some(packet)
        });
        let Some(packet) = packet else {
            self.counts.received.dropped += 1;
            return Ok(());
        };
        queue.write(memory, packet)?;
        queue.finish(memory)?;
        self.counts.received.frames += 1;
        self.counts.received.bytes += (length - HEADER_SIZE) as u64;
        Ok(())
    }

    /// Takes over the link's state. True if it has changed.
    fn follow(&mut self, up: bool) -> bool {
        if self.up && !up {
            self.counts.link_losses += 1;
        }
        std::mem::replace(&mut self.up, up) != up
    }
}

impl GivesUp for Net {
    const NAME: &str = "virtio-net";

    fn has_given_up(&self) -> bool {
        self.broken
    }

    fn give_up(&mut self) -> &mut u64 {
        self.broken = true;
        &mut self.counts.queue_faults
    }
}

impl VirtioDevice for Net {
    fn device_id(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn features(&self) -> u64 {
        let own = 1 << VIRTIO_NET_F_MAC | 1 << VIRTIO_NET_F_STATUS;
        // Long frames have chains of many descriptors. Without indirect descriptors they would fill the queue.
        own | self.offered.features() | QUEUE_FEATURES
    }

    fn queue_count(&self) -> usize {
        2
    }

    fn queue_size_max(&self) -> u16 {
        QUEUE_SIZE_MAX
    }

    fn configuration(&self) -> Vec<u8> {
        let status = if self.up { VIRTIO_NET_S_LINK_UP } else { 0 };
        let mut bytes = self.mac.to_vec();
        bytes.extend(status.to_le_bytes().first_chunk::<2>().unwrap_or(&[0; 2]));
        bytes
    }

    fn driver_ok(&mut self, features: u64) {
        self.received = Offloads::of_received(features);
        self.sent = Offloads::of_sent(features);
        self.renegotiated = true;
    }

    fn reset(&mut self) {
        self.received = Offloads::default();
        self.sent = Offloads::default();
        self.renegotiated = true;
        self.broken = false;
        self.unsent = None;
    }
}

impl MmioTransport<Net> {
    /// Moves frames between the guest and `link` for a bounded time, and tells the guest when the link goes up or down. Call it
    /// when the driver has notified a queue or the transport asks for it, when `link` has what the last call wanted,
    /// and when the link has gone up or down.
    pub fn serve(&mut self, memory: &GuestMemory, link: &mut dyn Link) -> Wants {
        let device = self.device_mut();
        if std::mem::take(&mut device.renegotiated) {
            link.set_offloads(device.received, device.sent);
        }
        let wants = take_turn(self, memory, |device, queues| {
            device.serve(queues, memory, link)
        });
        // This comes last, because this turn may have found out that the other end is gone.
        if self.device_mut().follow(link.is_up()) {
            self.note_configuration();
        }
        wants
    }
}
