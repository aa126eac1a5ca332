//! The arithmetic of a queue's indices, which wrap around at 65536, against a plain model.

use kvmprof_devices::virtio::{Direction, GuestMemory, QueueError, QueueLayout, Virtqueue};
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::driver::WRITE;

const SIZE_MAX: u16 = 32;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x4000;
const BUFFERS: u64 = 0x1_0000;
/// Bytes of each buffer.
const LENGTH: u32 = 64;

/// A queue, its memory, and the driver's state: the next indices of available and of used chains.
struct Pair {
    queue: Virtqueue,
    memory: GuestMemory,
    size: u16,
    offered: u16,
    begun: u16,
    returned: u16,
}

impl Pair {
    /// A queue of `size` entries whose indices are at `start`, with nothing in progress.
    fn new(size: u16, start: u16) -> Self {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 0x2_0000)]).unwrap();
        for index in [AVAILABLE + 2, USED + 2] {
            memory.write_obj(start, GuestAddress(index)).unwrap();
        }
        let mut queue = Virtqueue::new(SIZE_MAX).unwrap();
        let layout = QueueLayout {
            size: size.into(),
            descriptors: 0,
            available: AVAILABLE,
            used: USED,
        };
        queue.set_up(layout, &memory).unwrap();
        queue.take_over(&memory).unwrap();
        Self {
            queue,
            memory,
            size,
            offered: start,
            begun: start,
            returned: start,
        }
    }

    fn put<T: vm_memory::ByteValued>(&self, value: T, address: u64) {
        self.memory.write_obj(value, GuestAddress(address)).unwrap();
    }

    /// Entries that the device has.
    fn outstanding(&self) -> u16 {
        self.offered.wrapping_sub(self.returned)
    }

    /// The place of index `index` in a ring with entries of `width` bytes.
    fn slot(&self, ring: u64, index: u16, width: u64) -> u64 {
        ring + 4 + width * u64::from(index % self.size)
    }

    /// The driver offers a chain of one buffer; each entry has its own.
    fn offer(&mut self) {
        let head = self.offered % self.size;
        let descriptor = 16 * u64::from(head);
        self.put(BUFFERS + u64::from(head) * u64::from(LENGTH), descriptor);
        self.put(LENGTH, descriptor + 8);
        self.put(WRITE, descriptor + 12);
        self.put(head, self.slot(AVAILABLE, self.offered, 2));
        self.offered = self.offered.wrapping_add(1);
        self.put(self.offered, AVAILABLE + 2);
    }

    /// The device takes the next chain, if there is one, writes this many bytes and returns it.
    fn serve(&mut self, bytes: usize) {
        let is_there = self.queue.begin(&self.memory, Direction::ToDriver).unwrap();
        assert_eq!(is_there, self.begun != self.offered);
        if !is_there {
            return;
        }
        let filler = u8::try_from(self.begun % 251).unwrap();
        let written = self
            .queue
            .write(&self.memory, &vec![filler; bytes])
            .unwrap();
        assert_eq!(written, bytes.min(LENGTH as usize));
        self.queue.finish(&self.memory).unwrap();
        assert!(self.queue.take_interrupt(&self.memory));
        // It was returned as the oldest available one.
        let entry: [u32; 2] = (self.memory)
            .read_obj(GuestAddress(self.slot(USED, self.begun, 8)))
            .unwrap();
        let head = self.begun % self.size;
        assert_eq!(entry, [head.into(), u32::try_from(written).unwrap()]);
        let mut buffer = vec![0; written];
        let place = BUFFERS + u64::from(head) * u64::from(LENGTH);
        self.memory
            .read_slice(&mut buffer, GuestAddress(place))
            .unwrap();
        assert!(buffer.iter().all(|byte| *byte == filler));
        self.begun = self.begun.wrapping_add(1);
        let index: u16 = self.memory.read_obj(GuestAddress(USED + 2)).unwrap();
        assert_eq!(index, self.begun);
    }
}

/// Start indices of rings: often shortly before they wrap around.
fn start() -> impl Strategy<Value = u16> {
    prop_oneof![any::<u16>(), u16::MAX - 100..=u16::MAX]
}

fn size() -> impl Strategy<Value = u16> {
    (0..=5_u32).prop_map(|order| 1 << order)
}

proptest! {
    #[test]
    fn chains_are_taken_once_in_order_and_returned(
        size in size(),
        start in start(),
        steps in prop::collection::vec((0..5_u16, 0..5_usize, 0..80_usize), 1..100),
    ) {
        let mut pair = Pair::new(size, start);
        for (offers, serves, bytes) in steps {
            for _ in 0..offers {
                if pair.outstanding() < size {
                    pair.offer();
                }
            }
            for _ in 0..serves {
                pair.serve(bytes);
                pair.returned = pair.begun;
            }
        }
    }

    #[test]
    fn no_more_can_be_available_than_there_are_entries(
        size in size(),
        start in start(),
        ahead in prop_oneof![0..70_u16, any::<u16>()],
    ) {
        let mut pair = Pair::new(size, start);
        pair.offer();
        pair.put(start.wrapping_add(ahead), AVAILABLE + 2);
        let begun = pair.queue.begin(&pair.memory, Direction::ToDriver);
        let expected = if ahead > size {
            Err(QueueError::AvailableIndex)
        } else {
            Ok(ahead > 0)
        };
        prop_assert_eq!(begun, expected);
    }
}
