//! One thread that kicks all vCPUs on their ticks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::elsewhere::Elsewhere;
use super::grid::aligned_start;
use super::monotonic_ns;
use super::punctual::be_punctual;
use crate::vcpu::Kicker;

/// The pause between two looks at the processors that vCPUs run on, in ns.
const PAUSE: u64 = 10_000_000;

/// Shared by the ticker's thread and the vCPU threads.
#[derive(Debug)]
struct Shared {
    vcpus: Box<[Ticked]>,
    stopping: AtomicBool,
    // How long after its time the host ran the ticker's thread, in ns: of whole periods.
    delay: AtomicU64,
}

impl Shared {
    /// The vCPUs that want ticks.
    fn ticked(&self) -> impl Iterator<Item = &Ticked> {
        let vcpus = self.vcpus.iter();
        vcpus.filter(|ticked| ticked.hz.load(Ordering::Relaxed) != 0)
    }
}

#[derive(Debug)]
struct Ticked {
    kicker: Arc<Kicker>,
    // Ticks a second; 0 while the vCPU is halted or its clock stands still.
    hz: AtomicU32,
    // No kick before this time, in ns.
    first: AtomicU64,
    // When the last kick was, in ns; 0 before the first.
    kicked: AtomicU64,
}

/// Drives the clocks of all vCPUs from a thread of its own, so that a tick costs the guest neither
/// the timer's interrupt nor its set-up. The thread sleeps while no vCPU wants ticks.
#[derive(Debug)]
pub struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts the thread; `kickers` are the vCPUs' in order of their index.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(kickers: &[Arc<Kicker>]) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            vcpus: kickers
                .iter()
                .map(|kicker| Ticked {
                    kicker: Arc::clone(kicker),
                    hz: AtomicU32::new(0),
                    first: AtomicU64::new(0),
                    kicked: AtomicU64::new(0),
                })
                .collect(),
            stopping: AtomicBool::new(false),
            delay: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("ticker".into())
            .spawn(move || {
                be_punctual();
                kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Ticker);
                run(&of_thread);
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The sum of the ticker thread's delays that made it miss ticks, in ns.
    pub fn delay(&self) -> u64 {
        self.shared.delay.load(Ordering::Relaxed)
    }

    /// When vCPU `index` was last kicked, in ns of CLOCK_MONOTONIC; 0 if it never was.
    pub fn kicked(&self, index: u16) -> u64 {
        let ticked = self.shared.vcpus.get(usize::from(index));
        ticked.map_or(0, |ticked| ticked.kicked.load(Ordering::Relaxed))
    }

    /// Kicks vCPU `index` at each multiple of its period (of CLOCK_MONOTONIC) from time `first`
    /// on, in ns; 0 Hz ends that.
    pub fn set(&self, index: u16, hz: u32, first: u64) {
        let Some(ticked) = self.shared.vcpus.get(usize::from(index)) else {
            return;
        };
        ticked.first.store(first, Ordering::Relaxed);
        let before = ticked.hz.swap(hz, Ordering::Relaxed);
        if before == 0
            && hz != 0
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of that thread has been reported already.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    let mut elsewhere = Elsewhere::of_this_thread();
    let mut looked = 0;
    while !shared.stopping.load(Ordering::Relaxed) {
        // All vCPUs share one rate, but a change reaches them one after the other.
        let rate = shared
            .ticked()
            .map(|ticked| ticked.hz.load(Ordering::Relaxed))
            .max();
        let Some(hz @ 1..) = rate else {
            thread::park();
            continue;
        };
        let period = 1_000_000_000 / u64::from(hz);
        let now = monotonic_ns();
        let due = aligned_start(now, hz) + period;
        thread::park_timeout(Duration::from_nanos(due - now));
        let late = monotonic_ns().checked_sub(due);
        // Woken up before it was due: another rate may be wanted.
        let Some(late) = late else {
            continue;
        };
        // It slept when it was due: whether it then waited for a processor, or one for its own wake-up, is the
        // host's business alike.
        if late >= period {
            shared.delay.fetch_add(late, Ordering::Relaxed);
        }
        for ticked in shared.ticked() {
            if due >= ticked.first.load(Ordering::Relaxed) {
                ticked.kicked.store(monotonic_ns(), Ordering::Relaxed);
                ticked.kicker.kick();
            }
        }
        if due - looked >= PAUSE {
            looked = due;
            let began = aligned_start(monotonic_ns(), hz);
            elsewhere.avoid(
                shared
                    .ticked()
                    .filter_map(|ticked| ticked.kicker.processor()),
            );
            // Moving to another processor may have taken longer than a period.
            let missed = aligned_start(monotonic_ns(), hz) - began;
            shared.delay.fetch_add(missed, Ordering::Relaxed);
        }
    }
}
