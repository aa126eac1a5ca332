//! Refuses requests that no program serves any more, so that the guest's calls fail instead of blocking forever.
//!
//! The layout of requests and answers is that of `include/uapi/linux/fuse.h` in the kernel.

use super::super::turn::{GivesUp, take_turn};
use super::super::{Direction, GuestMemory, MmioTransport, QueueError, Virtqueue};
use super::FileSystem;

/// The number of bytes that are read of a request (`struct fuse_in_header`): `len`, `opcode` and `unique`.
const REQUEST: usize = 16;
/// Bytes of an answer without data (`struct fuse_out_header`): `len`, `error` and `unique`.
const ANSWER: u32 = 16;
const EIO: i32 = 5;
/// Maximum number of requests of a queue in one turn.
const REQUESTS_PER_TURN: usize = 64;

/// Counts of requests that came while no program served the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalCounts {
    /// Requests that were answered with an error (EIO), or needed no answer.
    pub refused: u64,
    /// Chains and rings of the guest's driver that can't be used.
    pub queue_faults: u64,
}

/// Whether requests are refused.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    is_on: bool,
    /// The queues are unusable until a reset.
    broken: bool,
    counts: RefusalCounts,
}

impl Refusal {
    pub fn reset(&mut self) {
        self.is_on = false;
        self.broken = false;
    }
}

impl FileSystem {
    /// Counts of requests that came while no program served the folder, since the start.
    #[must_use]
    pub fn refusals(&self) -> RefusalCounts {
        self.refusal.counts
    }

    /// True if there may be more.
    fn refuse(
        &mut self,
        queues: &mut [Virtqueue],
        memory: &GuestMemory,
    ) -> Result<bool, QueueError> {
        let mut more = false;
        for queue in queues {
            more |= refuse_turn(queue, memory, &mut self.refusal.counts.refused)?;
        }
        Ok(more)
    }
}

fn refuse_turn(
    queue: &mut Virtqueue,
    memory: &GuestMemory,
    refused: &mut u64,
) -> Result<bool, QueueError> {
    for _ in 0..REQUESTS_PER_TURN {
        if !queue.begin(memory, Direction::Request)? {
            return Ok(false);
        }
        let mut request = [0; REQUEST];
        queue.read(memory, &mut request)?;
        // Requests such as FORGET have no room for an answer, and need none.
        if queue.writable() >= ANSWER as usize {
            let (_, unique) = request.split_at(REQUEST / 2);
            let answer: [&[u8]; 3] = [&ANSWER.to_le_bytes(), &(-EIO).to_le_bytes(), unique];
            queue.write(memory, &answer.concat())?;
        }
        queue.finish(memory)?;
        *refused += 1;
    }
    Ok(true)
}

impl GivesUp for FileSystem {
    const NAME: &str = "virtio-fs";

    fn has_given_up(&self) -> bool {
        self.refusal.broken
    }

    fn give_up(&mut self) -> &mut u64 {
        self.refusal.broken = true;
        &mut self.refusal.counts.queue_faults
    }
}

impl MmioTransport<FileSystem> {
    /// Makes [`refuse_requests`](Self::refuse_requests) refuse requests until the next reset, first those that the program hasn't
    /// answered. Call this when the program that served the queues can't access them any more.
    pub fn begin_to_refuse(&mut self, memory: &GuestMemory) {
        take_turn(self, memory, |device, queues| {
            if !device.refusal.is_on {
                for queue in queues {
                    queue.take_over(memory)?;
                }
            }
            device.refusal.is_on = true;
            Ok(())
        });
    }

    /// Refuses the requests in the queues for a bounded time, if no program serves them. True if there is more to do after other
    /// devices have had their turns.
    pub fn refuse_requests(&mut self, memory: &GuestMemory) -> bool {
        if !self.device().refusal.is_on {
            return false;
        }
        take_turn(self, memory, |device, queues| device.refuse(queues, memory))
    }
}
