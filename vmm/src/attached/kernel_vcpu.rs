//! The thread that takes the samples of one vCPU from the host's kernel, and accounts for its ticks.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kvmprof_attach::sampling::SamplingHost;
use kvmprof_attach::tracer::{Look, SLOW_PAUSE, TracedVcpu};
use kvmprof_attach::{AttachedMemory, NestedGuest, Slots};
use kvmprof_introspection::{ProcessPlaces, Registers};
use kvmprof_recording::StackParts;

use super::vcpu::{AttachedCommon, LONGEST_SLEEP, REFRESH_NS};
use crate::clock::{ClockSetting, Generation, Grid, ThreadTimes, TickSource, monotonic_ns};
use crate::kernel_capture::{Capture, Contents, KernelTicks, Reader, VcpuThreadId};
use crate::vcpu::{TickSender, VcpuShared, VcpuView, select_registers, signals};

/// The pause between two looks into the ring: this number of periods, within these bounds (ns), and no longer than half of the ring takes to fill.
const PERIODS: u64 = 100;
const SHORTEST: u64 = 10_000_000;
const LONGEST: u64 = 100_000_000;
/// The pause between two looks at the registers of a guest whose processes haven't been located yet, in ns. If they still aren't located, or
/// only by a guess, after [`MANY_LOOKS`], the pause doubles after each [`FEW_LOOKS`], up to 8 times its length.
const PAUSE: u64 = 250_000_000;
const MANY_LOOKS: u32 = 16;
const FEW_LOOKS: u32 = 4;
/// The pause before another try after the host's kernel has refused to take samples, in ns: memory or descriptors may be short for a moment.
const RETRY: u64 = 1_000_000_000;

/// All that the thread owns.
pub struct KernelVcpu {
    /// The vCPU's number, from 0, and the number of its CPU in the guest.
    pub vcpu: u16,
    pub cpu: u16,
    /// The vCPU itself. Its registers are read until its processes are located.
    pub traced: TracedVcpu,
    /// The vCPU's state that other threads share.
    pub shared: Arc<VcpuShared>,
    /// The sender for its ticks.
    pub ticks: TickSender,
    /// The state that the threads of all vCPUs share.
    pub common: Arc<AttachedCommon>,
    /// The host's kernel.
    pub host: Arc<SamplingHost>,
}

impl KernelVcpu {
    /// Starts the thread. `ended` is called on it once the vCPU's thread has ended.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn start(
        self,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<thread::JoinHandle<()>> {
        let pid = self.common.memory.machine().pid;
        let stopping = Arc::clone(&self.common.stopping);
        let knowledge = Arc::clone(&self.common.knowledge);
        let memory = Arc::clone(&self.common.memory);
        let mut view = VcpuView::new(self.vcpu, memory, knowledge, self.common.max_stack);
        view.introspector.renumber(self.cpu);
        let spawned = thread::Builder::new().name(format!("sampler {}", self.vcpu));
        spawned.spawn(move || {
            let schedstat = format!("/proc/{pid}/task/{}/schedstat", self.traced.thread());
            if let Ok(schedstat) = File::open(schedstat) {
                let descriptor = self.traced.descriptor();
                let mut sampler = Sampler {
                    nested: self.common.memory.nested_guest(descriptor),
                    vcpu: self,
                    view,
                    schedstat,
                    places: None,
                    registers: Registers::default(),
                    looked: 0,
                    looks: 0,
                    tried: 0,
                    has_warned: false,
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

/// The state while ticks are made.
struct Clock {
    hz: u32,
    ticks: KernelTicks,
    /// The memory slots that the program knows, and the parts of stacks that it copies.
    slots: Arc<Slots>,
    stacks: StackParts,
}

struct Sampler {
    vcpu: KernelVcpu,
    /// The check whether the vCPU's registers are those of a nested guest.
    nested: Option<NestedGuest>,
    view: VcpuView<Arc<AttachedMemory>>,
    /// The scheduler statistics of the vCPU's thread.
    schedstat: File,
    places: Option<ProcessPlaces>,
    /// The registers at the last look, and its time, in ns.
    registers: Registers,
    looked: u64,
    /// The number of looks.
    looks: u32,
    /// When the host's kernel was last asked to take samples, in ns, and whether a warning about a refusal was logged.
    tried: u64,
    has_warned: bool,
    generation: Generation,
    setting: ClockSetting,
    clock: Option<Clock>,
}

impl Sampler {
    /// Samples until the end, or until the vCPU's thread has ended.
    fn run(&mut self, stopping: &AtomicBool) {
        // Nobody waits for this thread's answers before it is attached.
        self.vcpu.common.sampled.pass();
        self.vcpu.shared.kicker.attach();
        while !stopping.load(Ordering::Relaxed) && self.poll().is_some() {
            signals::wait_for_kick(self.sleep());
            self.vcpu.shared.kicker.seen();
            self.vcpu.traced.let_go();
        }
        self.finish();
    }

    fn sleep(&self) -> Duration {
        if self.vcpu.traced.is_slow() {
            return SLOW_PAUSE;
        }
        self.clock.as_ref().map_or(LONGEST_SLEEP, |clock| {
            let capture = clock.ticks.capture();
            let room = capture.map_or(PERIODS, |capture| capture.room() / 2);
            let periods = clock.ticks.period().saturating_mul(PERIODS.min(room));
            Duration::from_nanos(periods.clamp(SHORTEST, LONGEST))
        })
    }

    /// Takes the samples in the ring, and follows the profiler's requests. `None` once the vCPU's thread has ended.
    fn poll(&mut self) -> Option<()> {
        self.take()?;
        self.follow_requests()?;
        if self.clock.is_some() {
            return self.keep_current();
        }
        // While there are no ticks, nothing else tells whether the guest and the vCPU's thread are there.
        (self.vcpu.common).refresh_memory(monotonic_ns(), REFRESH_NS)?;
        self.vcpu.traced.has_thread().then_some(())
    }

    /// Hands over all samples, and the account of the other ticks until now.
    fn take(&mut self) -> Option<()> {
        let Some(clock) = &mut self.clock else {
            return Some(());
        };
        let reader = Reader {
            places: self.places.as_ref(),
            registers: self.registers,
            long_mask: self.vcpu.host.long_mask(),
            setting: self.setting,
            is_in_doubt: self.vcpu.common.in_doubt.load(Ordering::Relaxed),
            host: self.vcpu.host.host_stacks(),
        };
        let schedstat = &self.schedstat;
        let times = || ThreadTimes::read(schedstat);
        let taken = (clock.ticks).take(&reader, times, &mut self.view, &mut self.vcpu.ticks);
        let unread = &self.vcpu.shared.unread_processes;
        unread.store(self.view.unread_processes, Ordering::Relaxed);
        taken.ok()
    }

    fn follow_requests(&mut self) -> Option<()> {
        let (generation, setting) = self.vcpu.shared.control.requested();
        if generation == self.generation {
            return Some(());
        }
        let hz = setting.source.map_or(0, TickSource::hz);
        self.setting = setting;
        self.view.follow(&setting);
        if self.vcpu.common.knowledge.is_unlocated() {
            self.look(monotonic_ns())?;
        }
        if hz != self.clock.as_ref().map_or(0, |clock| clock.hz) {
            self.clock = None;
            if hz != 0 {
                self.restart(hz)?;
            }
        }
        if self.clock.is_some() {
            self.keep_current()?;
        }
        let control = &self.vcpu.shared.control;
        // The vCPU's ticks are accounted for later. A thread that needs the account now has to request it.
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
        let capture = self.capture(grid.period());
        self.clock = Some(Clock {
            hz,
            ticks: KernelTicks::new(grid, now, times, capture),
            slots,
            stacks: self.setting.stacks,
        });
        Some(())
    }

    /// Makes the host's kernel take samples; `None` if it refuses.
    fn capture(&mut self, period: u64) -> Option<Capture> {
        self.tried = monotonic_ns();
        let thread = VcpuThreadId {
            descriptor: self.vcpu.traced.descriptor(),
            tid: self.vcpu.traced.thread(),
        };
        let memory = &self.vcpu.common.memory;
        let contents = Contents {
            places: self.places.as_ref(),
            stacks: self.setting.stacks,
        };
        let started = Capture::start(&self.vcpu.host, &memory.slots(), thread, contents, period);
        let vcpu = self.vcpu.vcpu;
        match started {
            Ok(capture) => return Some(capture),
            Err(error) if self.has_warned => log::debug!("Ticks of vCPU {vcpu} are lost: {error}"),
            Err(error) => {
                self.has_warned = true;
                log::warn!("Ticks of vCPU {vcpu} are lost until it is sampled again: {error}");
            }
        }
        None
    }

    /// Whether the host's kernel has refused to take samples, and it is time to ask again.
    fn is_to_retry(&self, now: u64) -> bool {
        let is_refused = |clock: &Clock| clock.ticks.capture().is_none();
        self.clock.as_ref().is_some_and(is_refused) && now.saturating_sub(self.tried) >= RETRY
    }

    /// Replaces the program if the places of processes, the memory slots or the wanted parts of stacks have changed.
    fn keep_current(&mut self) -> Option<()> {
        let now = monotonic_ns();
        let mut has_moved = false;
        if self.is_to_look(now) {
            let before = self.places.clone();
            self.look(now)?;
            has_moved = self.places != before;
        }
        self.vcpu.common.refresh_memory(now, LONGEST)?;
        let slots = self.vcpu.common.memory.slots();
        let clock = self.clock.as_ref()?;
        let stacks = self.setting.stacks;
        let has_changed = !Arc::ptr_eq(&slots, &clock.slots) || clock.stacks != stacks;
        let period = clock.ticks.period();
        if has_moved || has_changed || self.is_to_retry(now) {
            let capture = self.capture(period);
            // The old program's samples are read with the places that it was made for.
            self.take_old(has_moved)?;
            let clock = self.clock.as_mut()?;
            clock.ticks.replace(capture);
            (clock.slots, clock.stacks) = (slots, stacks);
        }
        Some(())
    }

    /// Whether the vCPU's processes aren't located yet, or not for sure, and it is time to look again.
    fn is_to_look(&self, now: u64) -> bool {
        let is_open = self.places.is_none() || !self.view.introspector.places_are_sure();
        let doublings = self.looks.saturating_sub(MANY_LOOKS).div_ceil(FEW_LOOKS);
        is_open && now.saturating_sub(self.looked) >= PAUSE << doublings.min(3)
    }

    /// Takes the samples of the previous program, without the places that it didn't have.
    fn take_old(&mut self, without_places: bool) -> Option<()> {
        let places = self.places.take_if(|_| without_places);
        let taken = self.take();
        self.places = self.places.take().or(places);
        taken
    }

    /// Stops the vCPU once, to locate its processes.
    fn look(&mut self, now: u64) -> Option<()> {
        self.looked = now;
        self.looks = self.looks.saturating_add(1);
        let memory = &self.vcpu.common.memory;
        let introspector = &mut self.view.introspector;
        let nested = self.nested.as_ref();
        let looked = self.vcpu.traced.look(|vcpu| {
            if nested.is_some_and(NestedGuest::runs) {
                return Ok(None);
            }
            let (regs, sregs) = vcpu.registers()?;
            let registers = select_registers(&regs, &sregs);
            introspector.identify(memory, &registers, false, false);
            Ok(Some((introspector.places(memory, &registers), registers)))
        });
        match looked {
            Ok(Look::Gone) => None,
            Ok(Look::Seen(Some((places, registers)))) => {
                (self.places, self.registers) = (places, registers);
                Some(())
            }
            Ok(_) => Some(()),
            Err(error) => {
                log::debug!("Where processes are isn't looked for now: {error}");
                Some(())
            }
        }
    }

    /// Ends the clock. No tick follows, and no other thread needs to wait for this one.
    fn finish(&mut self) {
        // The vCPU's thread may have ended, so that its last ticks can't be accounted for.
        let _ = self.take();
        self.clock = None;
        let shared = &self.vcpu.shared;
        shared.control.finish();
        shared.kicker.detach();
        self.vcpu.ticks.ring();
    }
}
