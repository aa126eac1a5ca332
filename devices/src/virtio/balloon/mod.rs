//! The memory balloon (section 5.5): pages that the guest gives up until the balloon is deflated, pages that it reports as
//! free, and statistics of its memory.
//!
//! Queue 0 inflates the balloon, and queue 1 deflates it. The queues of statistics and of reports follow, if the
//! driver has accepted these features.

mod statistics;

use kvmprof_recording::status::GuestMemoryStatus;
use virtio_bindings::virtio_ids::VIRTIO_ID_BALLOON;
use vm_memory::{Address, GuestAddress};

use super::turn::{GivesUp, give_up_for, take_turn};
use super::{
    Direction, GuestMemory, MmioTransport, QUEUE_FEATURES, QueueError, VirtioDevice, Virtqueue,
};

use statistics::STATISTICS_MAX;

/// Size of the device's pages in bytes, whatever the guest's page size is (section 5.5.6).
pub const PAGE: u64 = 4096;

/// Features (section 5.5.3), by the numbers of their bits.
const F_STATISTICS: u64 = 1;
const F_DEFLATE_ON_OOM: u64 = 2;
const F_REPORTING: u64 = 5;

/// Maximum number of entries of each queue.
const QUEUE_SIZE_MAX: u16 = 256;
/// The maximum number of pages that one turn takes from queue 0 or 1.
const PAGES_PER_TURN: usize = 1024;
/// The maximum number of reported bytes in one turn: returning pages to the host takes time.
const REPORTED_PER_TURN: usize = 256 << 20;
/// The maximum number of chains of a queue in one turn.
const CHAINS_PER_TURN: usize = 32;
/// Size of a page number in bytes.
const NUMBER: usize = 4;

/// Returns pages of guest memory to the host: they read as zeroes afterwards. The arguments are the first address and the number of bytes,
/// both multiples of [`PAGE`]. Parts of the range outside guest memory are left out. Returns the number of bytes that were returned to the host.
pub type GiveBack<'a> = &'a mut dyn FnMut(GuestAddress, u64) -> u64;

/// What the device has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalloonCounts {
    /// Bytes that the guest put into the balloon and that were returned to the host.
    pub inflated_bytes: u64,
    /// Bytes that the guest has taken out of the balloon.
    pub deflated_bytes: u64,
    /// Bytes that the guest reported as free and that were returned to the host.
    pub reported_bytes: u64,
    /// Pages that aren't in guest memory.
    pub refused_pages: u64,
    /// Sets of statistics that the guest has sent.
    pub statistics: u64,
    /// Unusable chains and rings of the guest's driver.
    pub queue_faults: u64,
}

/// The device.
#[derive(Debug, Default)]
pub struct Balloon {
    /// The requested size of the balloon, in pages.
    target: u32,
    /// The size of the balloon according to the driver, in pages.
    actual: u32,
    features: u64,
    statistics: GuestMemoryStatus,
    counts: BalloonCounts,
    /// The queues are unusable until a reset.
    broken: bool,
}

impl Balloon {
    /// What the device has done since the start.
    #[must_use]
    pub fn counts(&self) -> BalloonCounts {
        self.counts
    }

    /// The guest's last statistics of its memory.
    #[must_use]
    pub fn statistics(&self) -> GuestMemoryStatus {
        self.statistics
    }

    /// The requested size of the balloon, in bytes.
    #[must_use]
    pub fn target(&self) -> u64 {
        u64::from(self.target) * PAGE
    }

    /// The size of the balloon according to the guest, in bytes.
    #[must_use]
    pub fn actual(&self) -> u64 {
        u64::from(self.actual) * PAGE
    }

    fn has(&self, feature: u64) -> bool {
        self.features >> feature & 1 == 1
    }

    /// Takes the pages whose numbers are in the chains of `queue`. True if there may be more.
    fn take_pages(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        mut give_back: Option<GiveBack<'_>>,
    ) -> Result<bool, QueueError> {
        let mut left = PAGES_PER_TURN;
        for _ in 0..CHAINS_PER_TURN {
            if !queue.begin(memory, Direction::ToDevice)? {
                return Ok(false);
            }
            let mut numbers = vec![0; NUMBER * left.min(queue.readable() / NUMBER)];
            queue.read(memory, &mut numbers)?;
            let pages = numbers.len() / NUMBER;
            match &mut give_back {
                Some(give_back) => self.inflate(&numbers, *give_back),
                None => self.counts.deflated_bytes += pages as u64 * PAGE,
            }
            left -= pages;
            if queue.readable() >= NUMBER {
                return Ok(true);
            }
            queue.finish(memory)?;
        }
        Ok(true)
    }

    /// Returns the pages with these numbers to the host, adjacent pages in one call.
    fn inflate(&mut self, numbers: &[u8], give_back: GiveBack<'_>) {
        let pages = numbers.as_chunks::<NUMBER>().0.iter();
        let mut pages = pages.map(|number| u64::from(u32::from_le_bytes(*number)));
        let Some(mut first) = pages.next() else {
            return;
        };
        let mut end = first + 1;
        for page in pages.map(Some).chain([None]) {
            if page == Some(end) {
                end += 1;
                continue;
            }
            let bytes = (end - first) * PAGE;
            let taken = give_back(GuestAddress(first * PAGE), bytes);
            self.counts.inflated_bytes += taken;
            self.counts.refused_pages += (bytes - taken.min(bytes)) / PAGE;
            if let Some(page) = page {
                (first, end) = (page, page + 1);
            }
        }
    }

    /// Takes pages that the guest reports as free. True if there may be more.
    fn take_reports(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
        give_back: GiveBack<'_>,
    ) -> Result<bool, QueueError> {
        for _ in 0..CHAINS_PER_TURN {
            if !queue.begin(memory, Direction::Memory)? {
                return Ok(false);
            }
            let counts = &mut self.counts;
            queue.take_memory(REPORTED_PER_TURN, |address, bytes| {
                if let Some((first, bytes)) = whole_pages(address, bytes as u64) {
                    counts.reported_bytes += give_back(first, bytes);
                }
            });
            if queue.writable() > 0 {
                return Ok(true);
            }
            queue.finish(memory)?;
        }
        Ok(true)
    }

    /// Reads statistics. Their chain is kept until the device asks for statistics again.
    fn take_statistics(
        &mut self,
        queue: &mut Virtqueue,
        memory: &GuestMemory,
    ) -> Result<(), QueueError> {
        if queue.in_progress() || !queue.begin(memory, Direction::ToDevice)? {
            return Ok(());
        }
        let mut bytes = vec![0; queue.readable().min(STATISTICS_MAX)];
        queue.read(memory, &mut bytes)?;
        self.statistics = statistics::decode(&bytes);
        self.counts.statistics += 1;
        Ok(())
    }

    fn serve(
        &mut self,
        queues: &mut [Virtqueue],
        memory: &GuestMemory,
        give_back: GiveBack<'_>,
    ) -> Result<bool, QueueError> {
        let [inflate, deflate, rest @ ..] = queues else {
            return Ok(false);
        };
        let mut more = self.take_pages(inflate, memory, Some(&mut *give_back))?;
        more |= self.take_pages(deflate, memory, None)?;
        let mut rest = rest.iter_mut();
        if self.has(F_STATISTICS)
            && let Some(queue) = rest.next()
        {
            self.take_statistics(queue, memory)?;
        }
        if self.has(F_REPORTING)
            && let Some(queue) = rest.next()
        {
            more |= self.take_reports(queue, memory, give_back)?;
        }
        Ok(more)
    }
}

/// The whole pages in a range of guest memory, if there are any.
fn whole_pages(address: GuestAddress, bytes: u64) -> Option<(GuestAddress, u64)> {
    let first = address.checked_align_up(PAGE)?;
    let end = address.checked_add(bytes)?.0 / PAGE * PAGE;
    let bytes = end.checked_sub(first.0).filter(|bytes| *bytes > 0)?;
    Some((first, bytes))
}

impl GivesUp for Balloon {
    const NAME: &str = "virtio-balloon";

    fn has_given_up(&self) -> bool {
        self.broken
    }

    fn give_up(&mut self) -> &mut u64 {
        self.broken = true;
        &mut self.counts.queue_faults
    }
}

impl VirtioDevice for Balloon {
    fn device_id(&self) -> u32 {
        VIRTIO_ID_BALLOON
    }

    fn features(&self) -> u64 {
        1 << F_STATISTICS | 1 << F_DEFLATE_ON_OOM | 1 << F_REPORTING | QUEUE_FEATURES
    }

    fn queue_count(&self) -> usize {
        4
    }

    fn queue_size_max(&self) -> u16 {
        QUEUE_SIZE_MAX
    }

    fn configuration(&self) -> Vec<u8> {
        [self.target.to_le_bytes(), self.actual.to_le_bytes()].concat()
    }

    fn write_configuration(&mut self, offset: usize, data: &[u8]) {
        let mut bytes = self.actual.to_le_bytes();
        let place = offset.checked_sub(bytes.len()).and_then(|start| {
            let end = start.checked_add(data.len())?;
            bytes.get_mut(start..end)
        });
        if let Some(place) = place {
            place.copy_from_slice(data);
            self.actual = u32::from_le_bytes(bytes);
        }
    }

    fn driver_ok(&mut self, features: u64) {
        self.features = features;
    }

    fn reset(&mut self) {
        self.actual = 0;
        self.features = 0;
        self.statistics = GuestMemoryStatus::default();
        self.broken = false;
    }
}

impl MmioTransport<Balloon> {
    /// Takes pages, reports and statistics for a bounded time. True if there is more to do after other devices have had their turns.
    pub fn serve(&mut self, memory: &GuestMemory, give_back: GiveBack<'_>) -> bool {
        take_turn(self, memory, |device, queues| {
            device.serve(queues, memory, give_back)
        })
    }

    /// Requests a size of the balloon in bytes, rounded down to whole pages, and tells the guest.
    pub fn set_target(&mut self, bytes: u64) {
        self.device_mut().target = u32::try_from(bytes / PAGE).unwrap_or(u32::MAX);
        self.note_configuration();
    }

    /// Asks the guest for statistics, if it supports them and has answered the last request.
    pub fn ask_for_statistics(&mut self, memory: &GuestMemory) {
        if let Some((device, [_, _, queue, ..])) = self.running()
            && device.has(F_STATISTICS)
            && !device.broken
            && let Err(error) = queue.finish(memory)
        {
            give_up_for(device, &error);
        }
        self.note_used(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_are_taken() {
        let taken = |address, bytes| whole_pages(GuestAddress(address), bytes);
        assert_eq!(taken(0x1000, 0x2000), Some((GuestAddress(0x1000), 0x2000)));
        assert_eq!(taken(0x1001, 0x2fff), Some((GuestAddress(0x2000), 0x2000)));
        assert_eq!(taken(0x1001, 0x1ffe), None);
        assert_eq!(taken(u64::MAX - 1, 1), None);
        assert_eq!(taken(u64::MAX - 1, 9), None);
    }

    #[test]
    fn the_driver_writes_only_what_it_holds() {
        let mut balloon = Balloon::default();
        balloon.write_configuration(4, &7_u32.to_le_bytes());
        assert_eq!(balloon.actual(), 7 * PAGE);
        for (offset, bytes) in [(0, 4), (3, 4), (5, 4), (8, 1), (usize::MAX, 8), (4, 8)] {
            balloon.write_configuration(offset, &vec![0xff; bytes]);
        }
        balloon.write_configuration(5, &[1]);
        assert_eq!((balloon.target(), balloon.actual()), (0, 0x107 * PAGE));
    }
}
