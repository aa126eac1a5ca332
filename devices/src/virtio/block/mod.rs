//! The block device (section 5.2). It reads requests from guest memory, and writes answers to it. Its caller performs the requests, in
//! any order and at any time, but only one of each queue at a time. The device uses no file and doesn't block.
//!
//! An invalid request is answered with an error and counted. After an unusable chain the queue is unusable until the next reset. After a reset
//! the device doesn't access memory of the old driver any more. The answers to requests that are still being performed are dropped, and no new
//! request is handed out until these requests are over: an old write could overwrite a new one.

mod request;

pub use kvmprof_recording::status::BlockCounts;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;

pub use self::request::{Extent, Operation};
use self::request::{Limits, ParsedChain, Refusal, parse};
use super::{
    Direction, GuestMemory, MmioTransport, QUEUE_FEATURES, QueueError, VirtioDevice, Virtqueue,
    block::request::status,
};

/// Size of a sector in bytes. All addresses are in sectors.
pub const SECTOR: u64 = 512;
/// Size of a disk's serial number in bytes.
pub const SERIAL_MAX: usize = 20;
/// Maximum number of queues of a device.
pub const QUEUES_MAX: u16 = 16;

// Features (section 5.2.3), by the numbers of their bits.

/// The configuration has the maximum size of a segment.
pub const F_SIZE_MAX: u32 = 1;
/// The configuration has the maximum number of a request's segments.
pub const F_SEG_MAX: u32 = 2;
/// The disk can't be written.
pub const F_RO: u32 = 5;
/// The configuration has the block size.
pub const F_BLK_SIZE: u32 = 6;
/// The device may cache writes until a flush.
pub const F_FLUSH: u32 = 9;
/// There are several queues.
pub const F_MQ: u32 = 12;
/// Sectors can be discarded.
pub const F_DISCARD: u32 = 13;
/// Sectors can be zeroed without data.
pub const F_WRITE_ZEROES: u32 = 14;

/// Maximum number of entries of each queue.
const QUEUE_SIZE_MAX: u16 = 128;
/// Maximum number of segments of a request's data, and maximum size of each in bytes: together less than a chain may have.
const SEGMENTS_MAX: u32 = 126;
const SEGMENT_SIZE_MAX: u32 = 64 << 10;
/// Maximum number of invalid requests that are answered in one turn.
const BUDGET: usize = 64;

/// The properties of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSettings {
    /// The disk's size in sectors.
    pub sectors: u64,
    /// True if the disk can't be written.
    pub readonly: bool,
    /// The number of queues: 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// The disk's serial number in ASCII, padded with zeroes.
    pub serial: [u8; SERIAL_MAX],
}

/// A request that the caller has to perform.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// True if the data has to be on the disk before the request is answered, because the driver can't flush.
    pub write_through: bool,
    ticket: Ticket,
}

/// Identifies the request of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    queue: usize,
    generation: u64,
    kind: Kind,
}

/// The kinds of requests that have counts of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write(u64),
    Flush,
    Discard,
    WriteZeroes,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The request has succeeded. For a read, the bytes are its data.
    Done(&'a [u8]),
    /// The request has failed with an error of the host.
    Failed,
}

/// The next step of a queue.
#[derive(Debug)]
pub enum Next {
    /// Perform this request.
    Request(Request),
    /// There is nothing to do until the queue is notified.
    Nothing,
    /// There is more to do, after other queues have had their turns.
    More,
}

impl Request {
    /// The ticket that the answer needs.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }
}

/// The block device.
#[derive(Debug)]
pub struct Block {
    settings: BlockSettings,
    /// The features that the driver has accepted.
    features: u64,
    /// Incremented at each reset.
    generation: u64,
    /// For each queue: true while one of its requests is being performed.
    busy: Vec<bool>,
    /// Requests from before a reset that are still being performed.
    stale: usize,
    /// Queues that are unusable until a reset.
    broken: Vec<bool>,
    counts: BlockCounts,
    complained: bool,
}

impl Block {
    /// A device for a disk with these properties.
    #[must_use]
    pub fn new(settings: BlockSettings) -> Self {
        let settings = BlockSettings {
            queues: settings.queues.clamp(1, QUEUES_MAX),
            ..settings
        };
        let queues = usize::from(settings.queues);
        Self {
            settings,
            features: 0,
            generation: 0,
            busy: vec![false; queues],
            stale: 0,
            broken: vec![false; queues],
            counts: BlockCounts::default(),
            complained: false,
        }
    }

    /// What the guest has done since the start.
    #[must_use]
    pub fn counts(&self) -> BlockCounts {
        self.counts
    }

    fn accepted(&self, feature: u32) -> bool {
        self.features >> feature & 1 == 1
    }

    fn limits(&self) -> Limits {
        Limits {
            sectors: self.settings.sectors,
            readonly: self.settings.readonly,
            discard: self.accepted(F_DISCARD),
            write_zeroes: self.accepted(F_WRITE_ZEROES),
            serial: self.settings.serial,
        }
    }

    /// Takes the queue's next request. The result is false in place of the request if the request has been answered at once.
    fn next(
        &mut self,
        index: usize,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
    ) -> Result<Option<Result<Request, ()>>, QueueError> {
        if !queue.begin(memory, Direction::Request)? {
            return Ok(None);
        }
        let operation = match parse(queue, memory, &self.limits())? {
            ParsedChain::Operation(operation) => operation,
            ParsedChain::Answered => {
                queue.finish(memory)?;
                return Ok(Some(Err(())));
            }
            ParsedChain::Refused(refusal) => {
                self.counts.refused += 1;
                let code = match refusal {
                    Refusal::Unsupported => status::UNSUPPORTED,
                    Refusal::Invalid => status::ERROR,
                };
                request::answer(queue, memory, code)?;
                queue.finish(memory)?;
                return Ok(Some(Err(())));
            }
        };
        if let Some(busy) = self.busy.get_mut(index) {
            *busy = true;
        }
        Ok(Some(Ok(Request {
            write_through: !self.accepted(F_FLUSH) && operation.changes(),
            ticket: Ticket {
                queue: index,
                generation: self.generation,
                kind: Kind::of(&operation),
            },
            operation,
        })))
    }

    fn count(&mut self, kind: Kind, answer: Answer<'_>) {
        let counts = &mut self.counts;
        let Answer::Done(data) = answer else {
            counts.errors += 1;
            return;
        };
        match kind {
            Kind::Read => {
                counts.reads += 1;
                counts.bytes_read += data.len() as u64;
            }
            Kind::Write(bytes) => {
                counts.writes += 1;
                counts.bytes_written += bytes;
            }
            Kind::Flush => counts.flushes += 1,
            Kind::Discard => counts.discards += 1,
            Kind::WriteZeroes => counts.zeroings += 1,
        }
    }

    fn give_up(&mut self, queue: usize, error: QueueError) {
        self.counts.queue_faults += 1;
        if let Some(broken) = self.broken.get_mut(queue) {
            *broken = true;
        }
        // Log only the first: a hostile guest must not be able to fill the log.
        if !std::mem::replace(&mut self.complained, true) {
            log::warn!("virtio-blk: queue {queue} not served before the next reset: {error}");
        }
    }
}

impl Kind {
    fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Read { .. } => Self::Read,
            Operation::Write { data, .. } => Self::Write(data.len() as u64),
            Operation::Flush => Self::Flush,
            Operation::Discard(_) => Self::Discard,
            Operation::WriteZeroes(_) => Self::WriteZeroes,
        }
    }
}

impl VirtioDevice for Block {
    fn device_id(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn features(&self) -> u64 {
        let always = 1 << F_SIZE_MAX | 1 << F_SEG_MAX | 1 << F_BLK_SIZE | 1 << F_MQ;
        let other = if self.settings.readonly {
            1 << F_RO
        } else {
            1 << F_FLUSH | 1 << F_DISCARD | 1 << F_WRITE_ZEROES
        };
        always | other | QUEUE_FEATURES
    }

    fn queue_count(&self) -> usize {
        self.settings.queues.into()
    }

    fn queue_size_max(&self) -> u16 {
        QUEUE_SIZE_MAX
    }

    /// `struct virtio_blk_config` (section 5.2.4).
    fn configuration(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(60);
        bytes.extend(self.settings.sectors.to_le_bytes());
        bytes.extend(SEGMENT_SIZE_MAX.to_le_bytes());
        bytes.extend(SEGMENTS_MAX.to_le_bytes());
        // The device has no geometry.
        bytes.extend([0; 4]);
        bytes.extend(512_u32.to_le_bytes());
        // The device has no topology, and its cache mode can't be changed.
        bytes.extend([0; 10]);
        bytes.extend(self.settings.queues.to_le_bytes());
        bytes.extend(request::DISCARD.sectors.to_le_bytes());
        bytes.extend(request::DISCARD.segments.to_le_bytes());
        // The block size of most file systems: discarding less frees nothing.
        bytes.extend(8_u32.to_le_bytes());
        bytes.extend(request::ZEROES.sectors.to_le_bytes());
        bytes.extend(request::ZEROES.segments.to_le_bytes());
        // Writing zeroes may free space.
        bytes.extend([1, 0, 0, 0]);
        bytes
    }

    fn driver_ok(&mut self, features: u64) {
        self.features = features;
    }

    fn reset(&mut self) {
        self.features = 0;
        self.generation += 1;
        self.stale += self.busy.iter().filter(|busy| **busy).count();
        self.busy.fill(false);
        self.broken.fill(false);
    }
}

impl MmioTransport<Block> {
    /// The next step of queue `index`: nothing while one of its requests is being performed. The caller has to answer each request by
    /// [`MmioTransport::answer`].
    pub fn next(&mut self, index: usize, memory: &GuestMemory) -> Next {
        let next = self.next_of(index, memory);
        self.note_used(memory);
        next
    }

    fn next_of(&mut self, index: usize, memory: &GuestMemory) -> Next {
        for _ in 0..BUDGET {
            let Some((device, queues)) = self.running() else {
                return Next::Nothing;
            };
            let Some(queue) = queues.get_mut(index) else {
                return Next::Nothing;
            };
            let is_free = |queues: &[bool]| queues.get(index) == Some(&false);
            if device.stale > 0 || !is_free(&device.broken) || !is_free(&device.busy) {
                return Next::Nothing;
            }
            match device.next(index, queue, memory) {
                Ok(Some(Ok(request))) => return Next::Request(request),
                Ok(Some(Err(()))) => {}
                Ok(None) => return Next::Nothing,
                Err(error) => {
                    device.give_up(index, error);
                    self.need_reset();
                    return Next::Nothing;
                }
            }
        }
        Next::More
    }

    /// Answers the request with this ticket. True if the answer makes it necessary to serve all queues.
    pub fn answer(&mut self, ticket: Ticket, answer: Answer<'_>, memory: &GuestMemory) -> bool {
        let device = self.device_mut();
        device.count(ticket.kind, answer);
        if ticket.generation != device.generation {
            device.stale = device.stale.saturating_sub(1);
            return device.stale == 0;
        }
        if let Some(busy) = device.busy.get_mut(ticket.queue) {
            *busy = false;
        }
        if let Some((device, queues)) = self.running()
            && let Some(queue) = queues.get_mut(ticket.queue)
            // The driver may have turned the queue off meanwhile.
            && queue.in_progress()
            && let Err(error) = request::finish(queue, memory, answer)
        {
            device.give_up(ticket.queue, error);
            self.need_reset();
        }
        self.note_used(memory);
        false
    }
}
