//! The ring that carries ticks from a vCPU's thread to the profiler's thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Wake;

use kvmprof_introspection::ProcessMap;
use kvmprof_recording::{MAX_STACK_FRAMES, Ticks};
use rtrb::{Consumer, Producer, RingBuffer};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Number of entries of a ring: 0.4 s of samples at the fastest clock, so that none is lost if the host
/// doesn't run the profiler for a while.
const RING_ENTRIES: usize = 4096;
/// Number of frames beside the entries: stacks of usual depth for all samples.
const RING_FRAMES: usize = RING_ENTRIES * 32;
/// Number of maps of processes beside the entries: each process sends one when it starts, and some more as it loads its
/// libraries.
const RING_MAPS: usize = 256;

/// Wakes up the profiler's thread, only if it sleeps.
#[derive(Debug)]
pub struct Doorbell {
    asleep: AtomicBool,
    event: EventFd,
}

impl Doorbell {
    /// A doorbell of a thread that is awake.
    ///
    /// # Errors
    /// The host can't make an eventfd.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            asleep: AtomicBool::new(false),
            event: EventFd::new(EFD_NONBLOCK)?,
        })
    }

    /// The event that the profiler's thread polls.
    pub fn event(&self) -> &EventFd {
        &self.event
    }

    /// Notes that the profiler is about to sleep. It must look at all rings once more after this call.
    pub fn sleeping(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Notes that the profiler is awake.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        // EAGAIN: it hasn't rung.
        let _ = self.event.read();
    }

    /// Rings, if the profiler sleeps. Call this after the entry is in the ring.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.ring_anyway();
        }
    }

    /// Rings, even if the profiler is awake.
    pub fn ring_anyway(&self) {
        // If the counter is full, it has rung already.
        let _ = self.event.write(1);
    }
}

/// For those that wake the profiler for another reason than an entry in a ring.
impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.ring_anyway();
    }
}

/// The vCPU thread's end.
#[derive(Debug)]
pub struct TickSender {
    ring: Producer<Ticks>,
    frames: Producer<u64>,
    maps: Producer<Arc<ProcessMap>>,
    doorbell: Arc<Doorbell>,
    // Counts that haven't found room yet.
    carried: Ticks,
}

/// The profiler's end.
#[derive(Debug)]
pub struct TickReceiver {
    ring: Consumer<Ticks>,
    frames: Consumer<u64>,
    maps: Consumer<Arc<ProcessMap>>,
    // The frames of the last ticks.
    stack: [u64; MAX_STACK_FRAMES],
}

/// The contents of a ring at one moment.
#[derive(Debug)]
pub struct Present {
    ticks: usize,
    maps: usize,
}

/// The ring of vCPU number `vcpu`.
pub fn tick_ring(vcpu: u16, doorbell: Arc<Doorbell>) -> (TickSender, TickReceiver) {
    let (producer, consumer) = RingBuffer::new(RING_ENTRIES);
    let (frames_producer, frames_consumer) = RingBuffer::new(RING_FRAMES);
    let (maps_producer, maps_consumer) = RingBuffer::new(RING_MAPS);
    let receiver = TickReceiver {
        ring: consumer,
        frames: frames_consumer,
        maps: maps_consumer,
        stack: [0; MAX_STACK_FRAMES],
    };
    let sender = TickSender {
        ring: producer,
        frames: frames_producer,
        maps: maps_producer,
        doorbell,
        carried: Ticks {
            vcpu,
            ..Ticks::default()
        },
    };
    (sender, receiver)
}

impl TickSender {
    /// Wakes up the profiler, if it sleeps, for an answer.
    pub fn ring(&self) {
        self.doorbell.ring();
    }

    /// Hands over `ticks`, and the `frames` of the sample's stack. If the ring is full, the sample counts as lost, and the
    /// counts go with the next ticks that find room. If there is no room only for the frames, the sample goes without them.
    pub fn send(&mut self, ticks: &Ticks, frames: &[u64]) {
        let mut whole = self.carried;
        whole.idle += ticks.idle;
        whole.stolen += ticks.stolen;
        whole.lost += ticks.lost;
        whole.sample = ticks.sample;
        if whole.total() == 0 {
            return;
        }
        if !self.ring.is_full()
            && let Some(sample) = &mut whole.sample
            && !push_frames(&mut self.frames, frames)
        {
            sample.stack = sample.stack.dropped();
        }
        match self.ring.push(whole) {
            Ok(()) => self.carried = self.nothing(),
            Err(_) => {
                whole.lost += u64::from(whole.sample.take().is_some());
                self.carried = whole;
            }
        }
        self.doorbell.ring();
    }

    /// Hands over `map`, ahead of the ticks that are sent next. False if there is no room.
    pub fn send_map(&mut self, map: Arc<ProcessMap>) -> bool {
        self.maps.push(map).is_ok()
    }

    fn nothing(&self) -> Ticks {
        Ticks {
            vcpu: self.carried.vcpu,
            ..Ticks::default()
        }
    }
}

/// Pushes all of `frames` or none of them.
fn push_frames(ring: &mut Producer<u64>, frames: &[u64]) -> bool {
    match ring.write_chunk_uninit(frames.len()) {
        Ok(chunk) => {
            chunk.fill_from_iter(frames.iter().copied());
            true
        }
        Err(_) => false,
    }
}

impl TickReceiver {
    /// The ring's contents now.
    pub fn present(&self) -> Present {
        // The order matters: this way, all maps that were sent before these ticks are present.
        let ticks = self.ring.slots();
        Present {
            ticks,
            maps: self.maps.slots(),
        }
    }

    /// Takes the next ticks of the `present` contents, if there are any left, and the frames of their sample's stack. Adds the maps
    /// that were sent before them to `maps`.
    pub fn pop(
        &mut self,
        present: &mut Present,
        maps: &mut Vec<Arc<ProcessMap>>,
    ) -> Option<(Ticks, &[u64])> {
        present.ticks = present.ticks.checked_sub(1)?;
        let ticks = self.ring.pop().ok()?;
        if let Ok(chunk) = self.maps.read_chunk(std::mem::take(&mut present.maps)) {
            maps.extend(chunk);
        }
        let count = ticks.sample.map_or(0, |sample| sample.stack.frames());
        let stack = self.stack.get_mut(..count)?;
        // The frames were delivered before the ticks.
        let chunk = self.frames.read_chunk(count).ok()?;
        for (frame, place) in chunk.into_iter().zip(&mut *stack) {
            *place = frame;
        }
        Some((ticks, stack))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_recording::{ClockLedger, Sample, StackEnd, StackSummary};

    #[test]
    fn a_full_ring_loses_samples_and_counts_them() {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let (mut sender, mut receiver) = tick_ring(3, doorbell);
        let sampled = Ticks {
            vcpu: 3,
            idle: 2,
            ..Sample::default().into()
        };
        let sent = RING_ENTRIES + 10;
        for _ in 0..sent {
            sender.send(&sampled, &[]);
        }
        let mut ledger = ClockLedger::default();
        let mut present = receiver.present();
        while let Some((ticks, _)) = receiver.pop(&mut present, &mut Vec::new()) {
            ledger.enter(&ticks);
        }
        assert_eq!(ledger.sampled, RING_ENTRIES as u64);
        assert_eq!(ledger.lost, 0);
        sender.send(&sampled, &[]);
        let mut present = receiver.present();
        ledger.enter(&receiver.pop(&mut present, &mut Vec::new()).unwrap().0);
        assert_eq!(ledger.lost, 10);
        assert_eq!(ledger.ticks, 3 * (sent as u64 + 1));
        assert!(ledger.balances());
    }

    #[test]
    fn frames_follow_their_sample_or_are_marked_as_dropped() {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let (mut sender, mut receiver) = tick_ring(0, doorbell);
        let frames: Vec<u64> = (0..100).collect();
        let stack = StackSummary {
            kernel: 60,
            user: 40,
            host: 0,
            kernel_end: StackEnd::Complete,
            user_end: StackEnd::Absent,
        };
        let ticks = Ticks::from(Sample {
            stack,
            ..Sample::default()
        });
        for _ in 0..RING_ENTRIES {
            sender.send(&ticks, &frames);
        }
        let (mut whole, mut all) = (0, 0);
        let mut present = receiver.present();
        while let Some((ticks, handed_over)) = receiver.pop(&mut present, &mut Vec::new()) {
            let (expected, frames) = match handed_over.len() {
                0 => (stack.dropped(), &[][..]),
                _ => (stack, &frames[..]),
            };
            assert_eq!(
                (ticks.sample.unwrap().stack, handed_over),
                (expected, frames)
            );
            whole += usize::from(!frames.is_empty());
            all += 1;
        }
        assert_eq!(whole, RING_FRAMES / frames.len());
        assert_eq!(all, RING_ENTRIES);
    }

    #[test]
    fn the_doorbell_is_rung_only_while_the_reader_sleeps() {
        let doorbell = Doorbell::new().unwrap();
        doorbell.ring();
        assert!(doorbell.event().read().is_err());
        doorbell.sleeping();
        doorbell.ring();
        doorbell.ring();
        assert_eq!(doorbell.event().read().unwrap(), 1);
    }
}
