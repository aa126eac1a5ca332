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
    // When the tick is due that the thread sleeps for, in ns; 0 while it doesn't sleep.
    due: AtomicU64,
    // The period of that tick, in ns.
    period: AtomicU64,
}

impl Shared {
    /// The vCPUs that want ticks.
    fn ticked(&self) -> impl Iterator<Item = &Ticked> {
        let vcpus = self.vcpus.iter();
        vcpus.filter(|ticked| ticked.hz.load(Ordering::Acquire) != 0)
    }

    /// When the first tick after `now` (ns) that any vCPU is kicked on is due, at multiples of `period` (ns). `None` if there is none.
    fn next_due(&self, now: u64, period: u64) -> Option<u64> {
        // Of two ticks in a row at most one is left out, or else all are.
        let due = now - now % period + period;
        [due, due + period]
            .into_iter()
            .find(|due| self.ticked().any(|ticked| ticked.is_kicked_on(*due)))
    }
}

#[derive(Debug)]
struct Ticked {
    kicker: Arc<Kicker>,
    // Ticks a second; 0 while the vCPU is halted or its clock stands still.
    hz: AtomicU32,
    // No kick before this time, in ns.
    first: AtomicU64,
    // No kick at multiples of this time, in ns; 0 for none.
    left_out: AtomicU64,
    // When the last kick was, in ns; 0 before the first.
    kicked: AtomicU64,
}

impl Ticked {
    /// Whether the vCPU is kicked on the tick that is due at `due` (ns), if its clock has begun.
    fn is_kicked_on(&self, due: u64) -> bool {
        match self.left_out.load(Ordering::Relaxed) {
            0 => true,
            left_out => !due.is_multiple_of(left_out),
        }
    }
}

/// Drives the clocks of all vCPUs from a thread of its own, so that a tick costs the guest neither
/// the timer's interrupt nor its set-up. Ticks that coincide with those of the host's kernel are left
/// to the vCPUs' threads. The thread sleeps while no vCPU wants ticks.
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
                    left_out: AtomicU64::new(0),
                    kicked: AtomicU64::new(0),
                })
                .collect(),
            stopping: AtomicBool::new(false),
            delay: AtomicU64::new(0),
            due: AtomicU64::new(0),
            period: AtomicU64::new(0),
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

    /// The sum of the ticker thread's delays that make it miss ticks, in ns. While the thread is late, this grows, and while it notes that, this
    /// may be too little.
    pub fn delay(&self) -> u64 {
        let noted = self.shared.delay.load(Ordering::Acquire);
        let late = match self.shared.due.load(Ordering::Relaxed) {
            0 => 0,
            due => monotonic_ns().saturating_sub(due),
        };
        let is_long = late >= self.shared.period.load(Ordering::Relaxed);
        noted + if is_long { late } else { 0 }
    }

    /// When vCPU `index` was last kicked, in ns of CLOCK_MONOTONIC; 0 if it never was.
    pub fn kicked(&self, index: u16) -> u64 {
        let ticked = self.shared.vcpus.get(usize::from(index));
        ticked.map_or(0, |ticked| ticked.kicked.load(Ordering::Relaxed))
    }

    /// Kicks vCPU `index` at each multiple of its period (of CLOCK_MONOTONIC) from time `first`
    /// on, in ns, but not at multiples of `left_out` (ns); 0 Hz ends that.
    pub fn set(&self, index: u16, hz: u32, first: u64, left_out: Option<u64>) {
        let Some(ticked) = self.shared.vcpus.get(usize::from(index)) else {
            return;
        };
        ticked.first.store(first, Ordering::Relaxed);
        ticked
            .left_out
            .store(left_out.unwrap_or(0), Ordering::Relaxed);
        let before = ticked.hz.swap(hz, Ordering::Release);
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
        let Some(due) = shared.next_due(now, period) else {
            thread::park();
            continue;
        };
        let Some(late) = sleep_until(shared, due, period) else {
            // Woken up before it was due: another rate may be wanted.
            continue;
        };
        // It slept when it was due: whether it then waited for a processor, or one for its own wake-up, is the
        // host's business alike.
        if late >= period {
            shared.delay.fetch_add(late, Ordering::Release);
        }
        for ticked in shared.ticked() {
            if ticked.is_kicked_on(due) && due >= ticked.first.load(Ordering::Relaxed) {
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

/// Sleeps until `due` (ns), and returns how much later it is, in ns; `None` if it is earlier.
fn sleep_until(shared: &Shared, due: u64, period: u64) -> Option<u64> {
    shared.period.store(period, Ordering::Relaxed);
    shared.due.store(due, Ordering::Relaxed);
    thread::park_timeout(Duration::from_nanos(due.saturating_sub(monotonic_ns())));
    shared.due.store(0, Ordering::Relaxed);
    monotonic_ns().checked_sub(due)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// vCPUs with these rates (Hz), and multiples of these times (ns) left out.
    fn shared(vcpus: &[(u32, u64)]) -> Shared {
        let ticked = |&(hz, left_out): &(u32, u64)| Ticked {
            kicker: Arc::default(),
            hz: AtomicU32::new(hz),
            first: AtomicU64::new(0),
            left_out: AtomicU64::new(left_out),
            kicked: AtomicU64::new(0),
        };
        Shared {
            vcpus: vcpus.iter().map(ticked).collect(),
            stopping: AtomicBool::new(false),
            delay: AtomicU64::new(0),
            due: AtomicU64::new(0),
            period: AtomicU64::new(0),
        }
    }

    #[test]
    fn sleeps_through_ticks_that_no_vcpu_is_kicked_on() {
        let dues = |vcpus: &[(u32, u64)]| {
            [0, 2 * MS + 1, 3 * MS].map(|now| shared(vcpus).next_due(now, MS))
        };
        let all = [MS, 3 * MS, 4 * MS].map(Some);
        let without_each_fourth = [MS, 3 * MS, 5 * MS].map(Some);
        assert_eq!(dues(&[(1000, 0)]), all);
        assert_eq!(dues(&[(1000, 4 * MS)]), without_each_fourth);
        assert_eq!(dues(&[(1000, 4 * MS), (1000, 0)]), all);
        assert_eq!(dues(&[(1000, 4 * MS), (0, 0)]), without_each_fourth);
        assert_eq!(dues(&[(1000, MS)]), [None; 3]);
    }

    #[test]
    fn is_late_while_it_is_not_woken_up() {
        let late = shared(&[(1000, 0)]);
        late.delay.store(7, Ordering::Relaxed);
        late.period.store(MS, Ordering::Relaxed);
        let ticker = Ticker {
            shared: Arc::new(late),
            thread: None,
        };
        assert_eq!(ticker.delay(), 7);
        let due = &ticker.shared.due;
        due.store(monotonic_ns() + 1000 * MS, Ordering::Relaxed);
        assert_eq!(ticker.delay(), 7);
        due.store(monotonic_ns() - 5 * MS, Ordering::Relaxed);
        assert!(ticker.delay() >= 7 + 5 * MS);
    }
}
