//! The vCPUs' clocks: sets how they run, and takes the ticks that they have delivered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kvmprof_introspection::ProcessMap;
use kvmprof_recording::{ClockLedger, Ticks};

use crate::clock::{ClockSetting, ClockSource, Generation, TickSource};
use crate::config::ProfilingConfig;
use crate::sampling::{RegisterSource, TickReceiver, VcpuShared};

/// Maximum time to wait for the answer of a vCPU's thread that is busy with an exit. A thread that is stuck there
/// (at a stalled terminal) must not delay a client for long.
const MAX_WAIT_IN_EXIT: Duration = Duration::from_millis(200);
/// Maximum time to wait for the answers of other threads. They answer as soon as the host runs them, and until
/// then ticks are missing in the accounts.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The plan of the clocks.
#[derive(Clone, Debug)]
pub struct ClockPlan {
    /// How the guest is profiled.
    pub profiling: Arc<ProfilingConfig>,
    /// The source of samples while consumers need more than that of `profiling` can capture.
    pub fallback: ClockSource,
    /// The source of samples for recordings, which need call stacks and mappings.
    pub of_recordings: ClockSource,
    /// The source of registers.
    pub registers: RegisterSource,
}

/// The profiler's state of one vCPU.
#[derive(Debug)]
struct VcpuLink {
    shared: Arc<VcpuShared>,
    ring: TickReceiver,
    ledger: ClockLedger,
}

/// The clocks of all vCPUs.
#[derive(Debug)]
pub struct Clocks {
    plan: ClockPlan,
    /// The requested setting of all vCPUs. While they are paused, it is the setting for afterwards.
    setting: ClockSetting,
    is_paused: bool,
    vcpus: Vec<VcpuLink>,
    // The maps that came with the last ticks; empty in between.
    maps: Vec<Arc<ProcessMap>>,
}

/// A flush in progress: vCPUs were requested to deliver every tick that is due, including the ticks of halted vCPUs.
#[derive(Debug)]
pub struct Flush {
    begun: Instant,
    /// The requested vCPUs, by their index, with the generations of the setting.
    asked: Vec<(usize, Generation)>,
}

impl Flush {
    /// The time at which the flush began.
    pub fn begun(&self) -> Instant {
        self.begun
    }
}

impl Clocks {
    /// The clocks of the vCPUs whose threads have the other ends of `vcpus`. The clocks are stopped.
    pub fn new(vcpus: Vec<(Arc<VcpuShared>, TickReceiver)>, plan: ClockPlan) -> Self {
        let link = |(shared, ring)| VcpuLink {
            shared,
            ring,
            ledger: ClockLedger::default(),
        };
        Self {
            plan,
            setting: ClockSetting::default(),
            is_paused: false,
            vcpus: vcpus.into_iter().map(link).collect(),
            maps: Vec::new(),
        }
    }

    /// The plan of the clocks.
    pub fn plan(&self) -> &ClockPlan {
        &self.plan
    }

    /// The requested setting. While the vCPUs are paused, it is the setting for afterwards.
    pub fn setting(&self) -> ClockSetting {
        self.setting
    }

    /// The source of samples now: [`ClockPlan::fallback`] if that takes samples on any vCPU.
    pub fn source(&self) -> ClockSource {
        let wanted = self.plan.profiling.source;
        let is_in_kernel = || {
            let mut vcpus = self.vcpus.iter();
            vcpus.all(|vcpu| vcpu.shared.control.is_in_kernel())
        };
        match self.setting.source {
            Some(TickSource::Clock(_)) if wanted == ClockSource::Kernel && !is_in_kernel() => {
                self.plan.fallback
            }
            _ => wanted,
        }
    }

    /// True while something makes ticks, or will make ticks after the pause of the vCPUs.
    pub fn is_ticking(&self) -> bool {
        self.setting.source.is_some()
    }

    /// True while the vCPUs are paused.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Pauses all vCPUs, after they have delivered every tick that is due, or lets them continue.
    pub fn pause(&mut self, is_paused: bool) -> Flush {
        self.is_paused = is_paused;
        self.ask_all()
    }

    /// Requests `setting` of all vCPUs. They deliver every tick that is due before they follow it.
    pub fn set(&mut self, setting: ClockSetting) -> Flush {
        self.setting = setting;
        self.ask_all()
    }

    /// Requests an answer of every vCPU thread, without a change of the clocks.
    pub fn ask_all(&self) -> Flush {
        self.ask(|_| true)
    }

    /// Begins to collect every tick that is due now. A vCPU that runs delivers its ticks by itself, so that only
    /// halted vCPUs get a request.
    pub fn flush(&self) -> Flush {
        self.ask(|vcpu| vcpu.shared.control.is_halted())
    }

    /// Sends the request to the `chosen` vCPUs. The flush waits for them, and for those that haven't answered an earlier request.
    fn ask(&self, chosen: impl Fn(&VcpuLink) -> bool) -> Flush {
        let setting = ClockSetting {
            paused: self.is_paused,
            ..self.setting
        };
        let mut asked = Vec::new();
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            let control = &vcpu.shared.control;
            if chosen(vcpu) {
                asked.push((index, control.request(setting)));
                vcpu.shared.kicker.kick();
            } else if !control.has_acknowledged(control.generation()) {
                asked.push((index, control.generation()));
            }
        }
        Flush {
            begun: Instant::now(),
            asked,
        }
    }

    /// Whether all requested vCPUs have answered, or have taken too long. After that, the ticks that they had to
    /// deliver are in their rings.
    pub fn is_over(&self, flush: &Flush) -> bool {
        self.is_over_after(flush, flush.begun.elapsed())
    }

    /// The result of [`Self::is_over`] this long after `flush` began.
    fn is_over_after(&self, flush: &Flush, waited: Duration) -> bool {
        flush.asked.iter().all(|(index, generation)| {
            self.vcpus.get(*index).is_none_or(|vcpu| {
                let shared = &vcpu.shared;
                let longest = if shared.is_in_exit() {
                    MAX_WAIT_IN_EXIT
                } else {
                    MAX_WAIT
                };
                !shared.kicker.is_attached()
                    || shared.control.has_acknowledged(*generation)
                    || waited >= longest
            })
        })
    }

    /// Takes everything that the vCPUs have delivered by now. Calls `each` with each run of ticks and the frames of its sample's
    /// stack, after the maps of processes that the sample needs. True if there was anything.
    pub fn drain(
        &mut self,
        mut each: impl FnMut(&mut Vec<Arc<ProcessMap>>, &Ticks, &[u64]),
    ) -> bool {
        let mut any = false;
        for vcpu in &mut self.vcpus {
            // A vCPU can fill its ring as fast as it is emptied, so that ticks that come meanwhile stay for the next call.
            let mut present = vcpu.ring.present();
            while let Some((ticks, frames)) = vcpu.ring.pop(&mut present, &mut self.maps) {
                any = true;
                vcpu.ledger.enter(&ticks);
                each(&mut self.maps, &ticks, frames);
                self.maps.clear();
            }
        }
        any
    }

    /// The state that the profiler shares with the thread of vCPU `index`.
    pub fn vcpu(&self, index: usize) -> Option<&VcpuShared> {
        self.vcpus.get(index).map(|vcpu| &*vcpu.shared)
    }

    /// The number of vCPUs.
    pub fn count(&self) -> usize {
        self.vcpus.len()
    }

    /// The number of ticks that each vCPU's clock has made.
    pub fn ticks(&self) -> Vec<u64> {
        self.ledgers().map(|ledger| ledger.ticks).collect()
    }

    /// The number of samples of the host's kernel whose process it couldn't read.
    pub fn unread_processes(&self) -> u64 {
        let vcpus = self.vcpus.iter();
        vcpus
            .map(|vcpu| vcpu.shared.unread_processes.load(Ordering::Relaxed))
            .sum()
    }

    /// The account of each vCPU's clock.
    pub fn ledgers(&self) -> impl ExactSizeIterator<Item = ClockLedger> {
        self.vcpus.iter().map(|vcpu| vcpu.ledger)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::sampling::{Doorbell, TickSender, tick_ring};

    /// Clocks of vCPUs without threads, and the threads' ends.
    fn clocks(vcpus: u16) -> (Clocks, Vec<(Arc<VcpuShared>, TickSender)>) {
        // A kick signals this thread, which acts as the vCPU's.
        crate::signals::block().unwrap();
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let (mut links, mut threads) = (Vec::new(), Vec::new());
        for vcpu in 0..vcpus {
            let (sender, receiver) = tick_ring(vcpu, Arc::clone(&doorbell));
            let shared = Arc::<VcpuShared>::default();
            links.push((Arc::clone(&shared), receiver));
            threads.push((shared, sender));
        }
        assert!(doorbell.event().as_raw_fd() >= 0);
        let plan = ClockPlan {
            profiling: Arc::default(),
            fallback: ClockSource::Thread,
            of_recordings: ClockSource::Thread,
            registers: RegisterSource::Ioctls,
        };
        (Clocks::new(links, plan), threads)
    }

    fn setting(hz: u32) -> ClockSetting {
        ClockSetting {
            source: TickSource::clock(hz),
            ..ClockSetting::default()
        }
    }

    #[test]
    fn a_setting_completes_when_all_vcpus_have_acknowledged() {
        let (mut clocks, threads) = clocks(3);
        let flush = clocks.set(setting(100));
        let is_over = clocks.is_over(&flush);
        assert!(is_over, "threads that don't run need not answer");
        for (shared, _) in &threads {
            shared.kicker.attach();
        }
        let flush = clocks.set(setting(200));
        for (shared, _) in &threads {
            assert!(!clocks.is_over(&flush));
            let (generation, asked) = shared.control.requested();
            assert_eq!(asked, setting(200));
            shared.control.acknowledge(generation);
        }
        assert!(clocks.is_over(&flush));
        assert!(clocks.is_ticking());
    }

    #[test]
    fn a_pause_outlasts_changes_of_the_setting() {
        let (mut clocks, threads) = clocks(1);
        let requested = || threads[0].0.control.requested().1;
        clocks.set(setting(100));
        for paused in [false, true, false] {
            clocks.pause(paused);
            assert!(clocks.is_paused() == paused && requested().paused == paused);
            clocks.set(setting(200));
            let expected = ClockSetting {
                paused,
                ..setting(200)
            };
            assert_eq!(requested(), expected);
        }
    }

    #[test]
    fn a_flush_asks_halted_vcpus_and_waits_for_older_answers() {
        let (mut clocks, threads) = clocks(3);
        for (shared, _) in &threads {
            shared.kicker.attach();
        }
        let requested = |index: usize| threads[index].0.control.requested().0;
        let change = clocks.set(setting(100));
        for index in [0, 1] {
            threads[index].0.control.acknowledge(requested(index));
        }
        threads[1].0.control.set_halted(true);
        let flush = clocks.flush();
        // The first one runs and needs no request. The last one still has to answer the change.
        assert_eq!(flush.asked, [(1, requested(1)), (2, requested(2))]);
        threads[2].0.control.acknowledge(requested(2));
        assert!(clocks.is_over(&change) && !clocks.is_over(&flush));
        threads[1].0.control.acknowledge(requested(1));
        assert!(clocks.is_over(&flush));
    }

    #[test]
    fn a_later_acknowledgement_or_the_end_covers_earlier_requests() {
        let (mut clocks, threads) = clocks(1);
        let shared = &threads[0].0;
        shared.kicker.attach();
        let first = clocks.set(setting(100));
        let second = clocks.set(setting(0));
        shared.control.acknowledge(shared.control.requested().0);
        assert!(clocks.is_over(&first) && clocks.is_over(&second));
        let last = clocks.set(setting(100));
        assert!(!clocks.is_over(&last));
        shared.kicker.detach();
        assert!(clocks.is_over(&last));
    }

    /// The thread may be stuck in the exit. If it returns, it has as much time as all others.
    #[test]
    fn a_vcpu_in_an_exit_handler_has_a_shorter_timeout() {
        let (mut clocks, threads) = clocks(2);
        for (shared, _) in &threads {
            shared.kicker.attach();
        }
        let flush = clocks.set(setting(100));
        let [stuck, other] = [0, 1].map(|index: usize| &threads[index].0);
        other.control.acknowledge(other.control.requested().0);
        let instant = Duration::from_nanos(1);
        for (is_in_exit, longest) in [(true, MAX_WAIT_IN_EXIT), (false, MAX_WAIT)] {
            stuck.set_in_exit(is_in_exit);
            assert!(!clocks.is_over_after(&flush, longest - instant));
            assert!(clocks.is_over_after(&flush, longest));
        }
    }

    #[test]
    fn every_tick_is_entered_once() {
        let (mut clocks, mut threads) = clocks(2);
        for count in 1..=5 {
            for (vcpu, (_, sender)) in (0..).zip(&mut threads) {
                let ticks = Ticks {
                    vcpu,
                    idle: count,
                    stolen: 1,
                    ..Ticks::default()
                };
                sender.send(&ticks, &[]);
            }
        }
        let mut seen = 0;
        assert!(clocks.drain(|maps, ticks, frames| {
            assert!(maps.is_empty() && frames.is_empty());
            seen += ticks.total();
        }));
        assert!(!clocks.drain(|_, _, _| {}));
        assert_eq!(seen, 2 * (15 + 5));
        for ledger in clocks.ledgers() {
            assert!(ledger.balances());
            assert_eq!((ledger.ticks, ledger.idle, ledger.stolen), (20, 15, 5));
        }
    }

    /// A vCPU that is faster than the consumers doesn't delay them.
    #[test]
    fn ticks_that_arrive_during_a_drain_wait_for_the_next() {
        let (mut clocks, mut threads) = clocks(1);
        let sender = &mut threads[0].1;
        let mut sent = 0;
        let mut send = || {
            let map = ProcessMap::new(0x1000, sent, 0, Vec::new());
            assert!(sender.send_map(Arc::new(map)));
            let ticks = Ticks {
                lost: 1,
                ..Ticks::default()
            };
            sender.send(&ticks, &[]);
            sent += 1;
        };
        send();
        send();
        let mut taken = Vec::new();
        for expected in [2, 4, 8] {
            taken.clear();
            clocks.drain(|maps, _, _| {
                taken.extend(maps.drain(..).map(|map| map.pid));
                send();
                send();
            });
            // All maps that were present come before the first tick.
            assert_eq!(taken.len(), expected);
            assert!(taken.is_sorted());
        }
        assert_eq!(taken, (6..14).collect::<Vec<_>>());
    }
}
