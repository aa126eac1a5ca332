//! The thread that takes the samples of one vCPU from the host's kernel, and accounts for its ticks.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kvmprof_attach::Slots;
use kvmprof_attach::sampling::SamplingHost;
use kvmprof_attach::tracer::{Look, TracedVcpu};
use kvmprof_introspection::{ProcessPlaces, VcpuIntrospector};
use kvmprof_recording::Ticks;

use super::capture::{Capture, VcpuThreadId};
use super::reckoning::Reckoning;
use super::ring::Entry;
use super::sample::Reader;
use crate::attached::vcpu::AttachedCommon;
use crate::clock::{ClockSetting, Generation, Grid, ThreadTimes, TickSource, monotonic_ns};
use crate::vcpu::{TickSender, VcpuShared, select_registers, signals};

/// How long a thread sleeps that waits for nothing, unless it is kicked.
const LONG: Duration = Duration::from_secs(3600);
/// Periods between two looks into the ring, within these bounds.
const PERIODS: u64 = 100;
const SHORTEST: u64 = 10_000_000;
const LONGEST: u64 = 100_000_000;
/// Between two looks at the registers of a guest that hasn't said yet where its processes are, in ns.
const PAUSE: u64 = 250_000_000;

/// All that the thread owns.
pub struct KernelVcpu {
    /// The vCPU's number, from 0.
    pub vcpu: u16,
    /// The vCPU's thread in its VMM, and its descriptor.
    pub tid: i32,
    pub descriptor: i32,
    /// The same vCPU, to be asked for its registers until it is known where its processes are.
    pub traced: TracedVcpu,
    /// What other threads hold of it.
    pub shared: Arc<VcpuShared>,
    /// The way for its ticks.
    pub ticks: TickSender,
    /// What it shares with its like.
    pub common: Arc<AttachedCommon>,
    /// The host's kernel.
    pub host: Arc<SamplingHost>,
}

impl KernelVcpu {
    /// Starts the thread. `ended` is called on it once the vCPU's thread has ended.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(
        self,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<thread::JoinHandle<()>> {
        let pid = self.common.memory.machine().pid;
        let stopping = Arc::clone(&self.common.stopping);
        let knowledge = Arc::clone(&self.common.knowledge);
        let introspector = VcpuIntrospector::new(knowledge, self.vcpu);
        let spawned = thread::Builder::new().name(format!("sampler {}", self.vcpu));
        spawned.spawn(move || {
            let schedstat = format!("/proc/{pid}/task/{}/schedstat", self.tid);
            if let Ok(schedstat) = File::open(schedstat) {
                let mut sampler = Sampler {
                    vcpu: self,
                    introspector,
                    schedstat,
                    places: None,
                    looked: 0,
                    generation: 0,
                    setting: ClockSetting::default(),
                    clock: None,
                };
                sampler.run(&stopping);
            }
            if !stopping.load(Ordering::Relaxed) {
                ended();
            }
        })
    }
}

/// While ticks are made.
struct Clock {
    hz: u32,
    grid: Grid,
    reckoning: Reckoning,
    /// `None`: the host's kernel has refused it meanwhile.
    capture: Option<Capture>,
    /// The memory slots that the program knows.
    slots: Arc<Slots>,
}

struct Sampler {
    vcpu: KernelVcpu,
    introspector: VcpuIntrospector,
    /// Of the vCPU's thread.
    schedstat: File,
    places: Option<ProcessPlaces>,
    /// When registers were looked at last, in ns.
    looked: u64,
    generation: Generation,
    setting: ClockSetting,
    clock: Option<Clock>,
}

impl Sampler {
    /// Samples until the end, or until the vCPU's thread has gone.
    fn run(&mut self, stopping: &AtomicBool) {
        self.vcpu.shared.kicker.attach();
        while !stopping.load(Ordering::Relaxed) && self.poll().is_some() {
            signals::wait_for_kick(self.sleep());
            self.vcpu.shared.kicker.seen();
        }
        self.finish();
    }

    fn sleep(&self) -> Duration {
        self.clock.as_ref().map_or(LONG, |clock| {
            let periods = clock.grid.period().saturating_mul(PERIODS);
            Duration::from_nanos(periods.clamp(SHORTEST, LONGEST))
        })
    }

    /// Takes what there is, and does what the profiler wants. `None` once the vCPU's thread has gone.
    fn poll(&mut self) -> Option<()> {
        self.take()?;
        self.follow_requests()?;
        if self.clock.is_some() {
            self.keep_current()?;
        }
        Some(())
    }

    /// Hands over all samples, and what became of the other ticks until now.
    fn take(&mut self) -> Option<()> {
        let Some(clock) = &mut self.clock else {
            return Some(());
        };
        let reader = Reader {
            vcpu: self.vcpu.vcpu,
            places: self.places.as_ref(),
            knows_privilege: self.vcpu.host.knows_privilege(),
            setting: self.setting,
        };
        let in_doubt = self.vcpu.common.in_doubt.load(Ordering::Relaxed);
        let (mut sampled, mut lost) = (0, 0);
        let sender = &mut self.vcpu.ticks;
        if let Some(capture) = &mut clock.capture {
            capture.drain(|entry| match entry {
                Entry::Lost(count) => lost += count,
                Entry::Sample(..) if in_doubt => lost += 1,
                Entry::Sample(interrupted, record) => match reader.sample(interrupted, &record) {
                    None => lost += 1,
                    Some((sample, frame)) => {
                        sampled += 1;
                        let ticks = Ticks {
                            vcpu: reader.vcpu,
                            sample: Some(sample),
                            ..Ticks::default()
                        };
                        sender.send(&ticks, frame.as_slice());
                    }
                },
            });
        }
        let times = ThreadTimes::read(&self.schedstat).ok()?;
        let now = monotonic_ns();
        let passed = clock.grid.take(now);
        let elapsed = (clock.reckoning).account(now, times, passed, sampled, lost);
        let ticks = Ticks {
            vcpu: reader.vcpu,
            idle: elapsed.idle,
            stolen: elapsed.stolen,
            lost: elapsed.lost,
            ..Ticks::default()
        };
        sender.send(&ticks, &[]);
        Some(())
    }

    fn follow_requests(&mut self) -> Option<()> {
        let (generation, setting) = self.vcpu.shared.control.requested();
        if generation == self.generation {
            return Some(());
        }
        let hz = setting.source.map_or(0, TickSource::hz);
        self.setting = setting;
        if self.vcpu.common.knowledge.is_unlocated() {
            self.look(monotonic_ns())?;
        }
        if hz != self.clock.as_ref().map_or(0, |clock| clock.hz) {
            self.clock = None;
            if hz != 0 {
                self.restart(hz)?;
            }
        }
        let control = &self.vcpu.shared.control;
        // Its ticks are accounted for later: whoever wants them now has to ask.
        control.set_halted(hz != 0);
        self.generation = generation;
        control.acknowledge(generation);
        self.vcpu.ticks.ring();
        Some(())
    }

    fn restart(&mut self, hz: u32) -> Option<()> {
        if self.places.is_none() {
            self.look(monotonic_ns())?;
        }
        let times = ThreadTimes::read(&self.schedstat).ok()?;
        let now = monotonic_ns();
        let grid = Grid::new(now, hz, None);
        let slots = self.vcpu.common.memory.slots();
        self.clock = Some(Clock {
            hz,
            grid,
            reckoning: Reckoning::new(grid.period(), now, times),
            capture: self.capture(grid.period()),
            slots,
        });
        Some(())
    }

    fn capture(&self, period: u64) -> Option<Capture> {
        let thread = VcpuThreadId {
            descriptor: self.vcpu.descriptor,
            tid: self.vcpu.tid,
        };
        let memory = &self.vcpu.common.memory;
        let places = self.places.as_ref();
        let started = Capture::start(&self.vcpu.host, memory, thread, places, period);
        let warn = |error: &_| log::warn!("Ticks of vCPU {} are lost: {error}", self.vcpu.vcpu);
        started.inspect_err(warn).ok()
    }

    /// Has the program read where processes are now, if that is news.
    fn keep_current(&mut self) -> Option<()> {
        let now = monotonic_ns();
        let mut is_news = false;
        if self.places.is_none() && now.saturating_sub(self.looked) >= PAUSE {
            self.look(now)?;
            is_news = self.places.is_some();
        }
        self.vcpu.common.refresh_memory()?;
        let slots = self.vcpu.common.memory.slots();
        let clock = self.clock.as_ref()?;
        if is_news || !Arc::ptr_eq(&slots, &clock.slots) {
            let capture = self.capture(clock.grid.period());
            // What the old program has sampled is read by what it was told.
            self.take_old(is_news)?;
            let clock = self.clock.as_mut()?;
            (clock.capture, clock.slots) = (capture, slots);
        }
        Some(())
    }

    /// Takes what the program before has sampled, without the places that it didn't know.
    fn take_old(&mut self, without_places: bool) -> Option<()> {
        let places = self.places.take_if(|_| without_places);
        let taken = self.take();
        self.places = self.places.take().or(places);
        taken
    }

    /// Stops the vCPU once, to learn where its processes are.
    fn look(&mut self, now: u64) -> Option<()> {
        self.looked = now;
        let memory = &self.vcpu.common.memory;
        let introspector = &mut self.introspector;
        let looked = self.vcpu.traced.look(|vcpu| {
            let (regs, sregs) = vcpu.registers()?;
            let registers = select_registers(&regs, &sregs);
            introspector.identify(memory, &registers, false, false);
            Ok(introspector.places(memory, &registers))
        });
        match looked {
            Ok(Look::Gone) => None,
            Ok(Look::Seen(places)) => {
                self.places = places;
                Some(())
            }
            Ok(_) => Some(()),
            Err(error) => {
                log::debug!("Where processes are isn't looked for now: {error}");
                Some(())
            }
        }
    }

    /// The thread ends: no tick follows, and nobody needs to wait.
    fn finish(&mut self) {
        // There may be nothing to account by any more.
        let _ = self.take();
        self.clock = None;
        let shared = &self.vcpu.shared;
        shared.control.finish();
        shared.kicker.detach();
        self.vcpu.ticks.ring();
    }
}
