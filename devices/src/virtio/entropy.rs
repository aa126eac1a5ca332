//! The entropy device (section 5.4): a queue of buffers that the device fills with random bytes.

use std::io;

use kvmprof_recording::status::EntropyStatus;
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;

use super::turn::{GivesUp, take_turn};
use super::{Direction, GuestMemory, MmioTransport, QueueError, VirtioDevice, Virtqueue};

/// Maximum number of entries of the queue.
const QUEUE_SIZE_MAX: u16 = 64;
/// Maximum number of bytes that a request gets, however long its buffer is. The driver asks again for more.
const REQUEST_MAX: usize = 4096;
/// Maximum number of requests in one turn.
const BUDGET: usize = 16;

/// The source of random bytes. It fills the whole buffer, or returns an error.
pub type Source<'a> = &'a mut dyn FnMut(&mut [u8]) -> io::Result<()>;

/// The device.
#[derive(Debug, Default)]
pub struct Entropy {
    counts: EntropyStatus,
    /// The queue is unusable until a reset.
    broken: bool,
}

impl Entropy {
    /// What the device has done since the start.
    #[must_use]
    pub fn counts(&self) -> EntropyStatus {
        self.counts
    }

    /// Answers the requests of one turn; true if there are more.
    fn serve(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        source: Source<'_>,
    ) -> Result<bool, QueueError> {
        let mut random = [0; REQUEST_MAX];
        for _ in 0..BUDGET {
            if !queue.begin(memory, Direction::ToDriver)? {
                return Ok(false);
            }
            let length = queue.remaining().min(REQUEST_MAX);
            let Some(bytes) = random.get_mut(..length) else {
                return Ok(false);
            };
            if let Err(error) = source(bytes) {
                self.counts.source_errors += 1;
                if self.counts.source_errors == 1 {
                    log::error!("virtio-entropy: the host gives no random bytes: {error}");
                }
                // The request stays in progress: the next notification tries again.
                return Ok(false);
            }
            queue.write(memory, bytes)?;
            queue.finish(memory)?;
            self.counts.requests += 1;
            self.counts.bytes += length as u64;
        }
        Ok(true)
    }
}

impl GivesUp for Entropy {
    const NAME: &str = "virtio-entropy";

    fn has_given_up(&self) -> bool {
        self.broken
    }

    fn give_up(&mut self) -> &mut u64 {
        self.broken = true;
        &mut self.counts.queue_faults
    }
}

impl VirtioDevice for Entropy {
    fn device_id(&self) -> u32 {
        VIRTIO_ID_RNG
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_count(&self) -> usize {
        1
    }

    fn queue_size_max(&self) -> u16 {
        QUEUE_SIZE_MAX
    }

    fn configuration(&self) -> Vec<u8> {
        Vec::new()
    }

    fn reset(&mut self) {
        self.broken = false;
    }
}

impl MmioTransport<Entropy> {
    /// Answers requests for a bounded time. True if there is more to do after others have had their turn.
    pub fn serve(&mut self, memory: &GuestMemory, source: Source<'_>) -> bool {
        take_turn(self, memory, |device, queues| match queues {
            [queue, ..] => device.serve(queue, memory, source),
            [] => Ok(false),
        })
    }
}
