//! The way from a vCPU's thread to the profiler's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use kvmprof_devices::profiling::Ticks;
use rtrb::{Consumer, Producer, RingBuffer};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Entries of a ring: 0.4 s of samples at the fastest clock, so that a profiler that the host
/// keeps waiting loses none.
pub const RING_ENTRIES: usize = 4096;

/// Wakes the profiler's thread up, only if it sleeps.
#[derive(Debug)]
pub struct Doorbell {
    asleep: AtomicBool,
    event: EventFd,
}

impl Doorbell {
    /// A doorbell of a thread that is awake.
    ///
    /// # Errors
    /// When the host gives no eventfd.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            asleep: AtomicBool::new(false),
            event: EventFd::new(EFD_NONBLOCK)?,
        })
    }

    /// What the profiler's thread polls.
    pub fn event(&self) -> &EventFd {
        &self.event
    }

    /// The profiler is about to sleep; it must look at all rings once more after this.
    pub fn sleeping(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The profiler is awake.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        // EAGAIN: it hasn't rung.
        let _ = self.event.read();
    }

    /// Rings, if the profiler sleeps. To be called after the entry is in the ring.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.ring_anyway();
        }
    }

    /// Rings.
    pub fn ring_anyway(&self) {
        // A full counter has rung already.
        let _ = self.event.write(1);
    }
}

/// The vCPU thread's end.
#[derive(Debug)]
pub struct TickSender {
    ring: Producer<Ticks>,
    doorbell: Arc<Doorbell>,
    // Counts that found no room yet.
    carried: Ticks,
}

/// The profiler's end.
pub type TickReceiver = Consumer<Ticks>;

/// The ring of vCPU number `vcpu`.
pub fn tick_ring(vcpu: u16, doorbell: Arc<Doorbell>) -> (TickSender, TickReceiver) {
    let (producer, consumer) = RingBuffer::new(RING_ENTRIES);
    let sender = TickSender {
        ring: producer,
        doorbell,
        carried: Ticks {
            vcpu,
            ..Ticks::default()
        },
    };
    (sender, consumer)
}

impl TickSender {
    /// Hands `ticks` over. When the ring is full the sample counts as lost, and the counts go
    /// with the next ticks that find room.
    pub fn send(&mut self, ticks: &Ticks) {
        let mut whole = self.carried;
        whole.idle += ticks.idle;
        whole.stolen += ticks.stolen;
        whole.lost += ticks.lost;
        whole.sample = ticks.sample;
        if whole.total() == 0 {
            return;
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

    fn nothing(&self) -> Ticks {
        Ticks {
            vcpu: self.carried.vcpu,
            ..Ticks::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_devices::profiling::{ClockLedger, Sample};

    #[test]
    fn a_full_ring_loses_samples_and_counts_them() {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let (mut sender, mut receiver) = tick_ring(3, doorbell);
        let sampled = Ticks {
            vcpu: 3,
            idle: 2,
            sample: Some(Sample::default()),
            ..Ticks::default()
        };
        let sent = RING_ENTRIES + 10;
        for _ in 0..sent {
            sender.send(&sampled);
        }
        let mut ledger = ClockLedger::default();
        while let Ok(ticks) = receiver.pop() {
            ledger.enter(&ticks);
        }
        assert_eq!(ledger.sampled, RING_ENTRIES as u64);
        assert_eq!(ledger.lost, 0);
        sender.send(&sampled);
        ledger.enter(&receiver.pop().unwrap());
        assert_eq!(ledger.lost, 10);
        assert_eq!(ledger.ticks, 3 * (sent as u64 + 1));
        assert!(ledger.balances());
    }

    #[test]
    fn the_doorbell_rings_only_for_a_sleeper() {
        let doorbell = Doorbell::new().unwrap();
        doorbell.ring();
        assert!(doorbell.event().read().is_err());
        doorbell.sleeping();
        doorbell.ring();
        doorbell.ring();
        assert_eq!(doorbell.event().read().unwrap(), 1);
    }
}
