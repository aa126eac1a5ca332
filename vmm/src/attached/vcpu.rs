//! The thread that samples one vCPU of another program.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kvm_bindings::KVM_MP_STATE_HALTED;
use kvmprof_attach::sampling::SamplingHost;
use kvmprof_attach::tracer::{Look, SLOW_PAUSE, State, TraceError, TracedVcpu};
use kvmprof_attach::{AttachError, AttachedMemory, NestedGuest};
use kvmprof_introspection::{GuestKnowledge, Registers};
use kvmprof_recording::Sample;

use super::backend::AttachedBackend;
use crate::clock::{ElapsedTicks, Generation, TickSource, VcpuClock, monotonic_ns};
use crate::vcpu::{
    Doorbell, Gate, TickSender, VcpuShared, VcpuView, has_started, not_started, select_registers,
    signals,
};

/// The period at which the memory slots are checked, and whether the guest still exists, in ns.
pub(super) const REFRESH_NS: u64 = 1_000_000_000;
/// Maximum time that a vCPU's thread sleeps between two checks.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_nanos(REFRESH_NS);

/// The state that the threads of all vCPUs of a guest share.
pub struct AttachedCommon {
    /// Guest memory.
    pub memory: Arc<AttachedMemory>,
    /// What is known of the guest.
    pub knowledge: Arc<GuestKnowledge>,
    /// The gate that holds the vCPUs' threads until the guest's kernel has been looked for, so that the first samples have a process: on a
    /// busy host that takes seconds.
    pub sampled: Gate,
    /// Whether ticks have a random phase.
    pub jitter: bool,
    /// Maximum number of frames of a call stack.
    pub max_stack: usize,
    /// When the guest's memory slots were last read, in ns.
    pub refreshed: AtomicU64,
    /// Whether the guest may have rebooted, so that samples could be attributed to the wrong kernel.
    pub in_doubt: AtomicBool,
    /// Set once the guest has rebooted.
    pub has_rebooted: AtomicBool,
    /// The largest number of vCPUs that the guest has been seen to have.
    pub vcpus: AtomicU32,
    /// Set by the thread that detects the guest's end. Then the doorbell rings.
    pub guest_has_ended: Arc<AtomicBool>,
    /// Wakes up the thread that ends the profiling.
    pub doorbell: Arc<Doorbell>,
    /// The maker of programs that take samples in the host's kernel; `None` if this process takes samples.
    pub sampling: Option<Arc<SamplingHost>>,
    /// Set to end all threads. Each vCPU's thread is kicked then.
    pub stopping: Arc<AtomicBool>,
}

impl AttachedCommon {
    /// Reads the memory slots again if the VMM has changed them, and if `pause` ns have passed at `now` (ns) since a vCPU's thread did
    /// so last. `None` if the guest has ended.
    pub fn refresh_memory(&self, now: u64, pause: u64) -> Option<()> {
        let last = self.refreshed.load(Ordering::Relaxed);
        let is_due = now.saturating_sub(last) >= pause;
        let order = Ordering::Relaxed;
        if !is_due || (self.refreshed.compare_exchange(last, now, order, order)).is_err() {
            return Some(());
        }
        match self.memory.refresh() {
            Err(AttachError::Ended(_)) => {
                self.guest_has_ended.store(true, Ordering::Relaxed);
                // Without clients, nothing else may wake up that thread.
                self.doorbell.ring_anyway();
                return None;
            }
            Err(error) => log::debug!("{error}"),
            Ok(_) => {}
        }
        self.look_for_vcpus();
        Some(())
    }

    /// Logs that there are vCPUs which aren't sampled, if the guest has more vCPUs than before.
    fn look_for_vcpus(&self) {
        let Some(now) = self.memory.vcpu_count() else {
            return;
        };
        let before = self.vcpus.fetch_max(now, Ordering::Relaxed);
        if now > before {
            log::warn!(
                "The guest has {now} vCPUs by now, not {before}: those that were added aren't sampled; attach again for them"
            );
        }
    }
}

/// All that the thread owns.
pub struct AttachedVcpu {
    /// The vCPU's number, from 0, and the number of its CPU in the guest.
    pub vcpu: u16,
    pub cpu: u16,
    /// The vCPU itself.
    pub traced: TracedVcpu,
    /// The vCPU's state that other threads share.
    pub shared: Arc<VcpuShared>,
    /// The sender for its ticks.
    pub ticks: TickSender,
    /// The state that the threads of all vCPUs share.
    pub common: Arc<AttachedCommon>,
}

impl AttachedVcpu {
    /// Starts the thread. `ended` is called on it once the vCPU's thread has ended.
    ///
    /// # Errors
    /// The host gives no thread, or the vCPU's thread has ended.
    pub fn start(
        self,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<thread::JoinHandle<()>> {
        let pid = self.common.memory.machine().pid;
        let tid = self.traced.thread();
        let mut sampler = Sampler {
            view: VcpuView::new(
                self.vcpu,
                Arc::clone(&self.common.memory),
                Arc::clone(&self.common.knowledge),
                self.common.max_stack,
            ),
            ticks: self.ticks,
            shared: self.shared,
            knowledge: Arc::clone(&self.common.knowledge),
            generation: 0,
            known: Known {
                nested: self.common.memory.nested_guest(self.traced.descriptor()),
                ..Known::default()
            },
            traced: self.traced,
            failures: Failures::default(),
            common: Arc::clone(&self.common),
        };
        sampler.view.introspector.renumber(self.cpu);
        let common = self.common;
        let spawned = thread::Builder::new().name(format!("tracer {}", self.vcpu));
        spawned.spawn(move || {
            let backend = AttachedBackend::new(pid, tid);
            if let Ok(backend) = backend {
                let clock = VcpuClock::with_backend(sampler.view.vcpu, backend, common.jitter);
                sampler.run(clock, &common.stopping);
            }
            if !common.stopping.load(Ordering::Relaxed) {
                ended();
            }
        })
    }
}

/// The kinds of errors that were reported. Each kind is reported once.
#[derive(Debug, Default)]
struct Failures {
    reported: Vec<std::mem::Discriminant<TraceError>>,
}

impl Failures {
    fn report(&mut self, vcpu: u16, error: &TraceError) {
        let kind = std::mem::discriminant(error);
        if !self.reported.contains(&kind) {
            self.reported.push(kind);
            log::warn!("A tick of vCPU {vcpu} is lost: {error}");
        }
    }
}

/// Whether the vCPU's thread is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    There,
    Gone,
}

/// The state of the vCPU that is kept between two looks.
#[derive(Default)]
struct Known {
    /// An application processor that has not had its SIPI yet has no meaningful registers.
    started: bool,
    /// The guest's registers at the last look.
    registers: Option<Registers>,
    /// The check whether the registers are those of a nested guest.
    nested: Option<NestedGuest>,
}

struct Sampler {
    view: VcpuView<Arc<AttachedMemory>>,
    traced: TracedVcpu,
    ticks: TickSender,
    shared: Arc<VcpuShared>,
    knowledge: Arc<GuestKnowledge>,
    generation: Generation,
    known: Known,
    failures: Failures,
    common: Arc<AttachedCommon>,
}

impl Sampler {
    /// Samples until the end, or until the vCPU's thread has ended.
    fn run(&mut self, mut clock: VcpuClock<AttachedBackend>, stopping: &AtomicBool) {
        // Nobody waits for this thread's answers before it is attached.
        self.common.sampled.pass();
        self.shared.kicker.attach();
        let mut presence = self.follow_requests(&mut clock, monotonic_ns());
        while presence == Presence::There && !stopping.load(Ordering::Relaxed) {
            let sleep = clock.backend().sleep(monotonic_ns());
            let is_slow = self.traced.is_slow();
            signals::wait_for_kick(if is_slow {
                sleep.min(SLOW_PAUSE)
            } else {
                sleep
            });
            self.shared.kicker.seen();
            // The next tick may come much later, or not at all.
            self.traced.let_go();
            let now = monotonic_ns();
            let signal = clock.backend_mut().pass(now).then(signals::alarm);
            // The VMM may have changed the guest's memory slots, or ended the guest.
            if self.common.refresh_memory(now, REFRESH_NS).is_none() {
                break;
            }
            // While there are no ticks, nothing else tells whether the vCPU's thread is there.
            if clock.hz() == 0 && !self.traced.has_thread() {
                break;
            }
            presence = match clock.on_interrupt(now, signal) {
                Some(elapsed) if elapsed.sample => self.sample(&mut clock, now, elapsed),
                Some(elapsed) => {
                    self.view.send(&mut self.ticks, elapsed, None);
                    Presence::There
                }
                None => Presence::There,
            };
            if presence == Presence::There {
                presence = self.follow_requests(&mut clock, now);
            }
        }
        self.finish(&mut clock);
    }

    /// Follows the profiler's requests, and acknowledges them.
    fn follow_requests(&mut self, clock: &mut VcpuClock<AttachedBackend>, now: u64) -> Presence {
        let (generation, setting) = self.shared.control.requested();
        if generation == self.generation {
            return Presence::There;
        }
        let presence = if self.knowledge.is_unlocated() {
            self.locate_kernel()
        } else {
            Presence::There
        };
        let elapsed = clock.account_halted(now);
        self.view.send(&mut self.ticks, elapsed, None);
        self.view.follow(&setting);
        let hz = setting.source.map_or(0, TickSource::hz);
        if hz != clock.hz() {
            clock.restart(hz, monotonic_ns());
            self.shared.control.set_halted(false);
        }
        self.generation = generation;
        self.shared.control.acknowledge(generation);
        self.ticks.ring();
        presence
    }

    /// Locates the guest's kernel, without a sample.
    fn locate_kernel(&mut self) -> Presence {
        let (view, knowledge) = (&self.view, &self.knowledge);
        let nested = self.known.nested.as_ref();
        let looked = self.traced.look(|vcpu| {
            if nested.is_some_and(NestedGuest::runs) {
                return Ok(());
            }
            let (regs, sregs) = vcpu.registers()?;
            knowledge.locate(&view.memory, &select_registers(&regs, &sregs));
            Ok(())
        });
        match looked {
            Ok(Look::Gone) => Presence::Gone,
            Ok(_) => Presence::There,
            Err(error) => self.after(monotonic_ns(), &error),
        }
    }

    /// What a failed look at `now` means for the vCPU's thread.
    fn after(&mut self, now: u64, error: &TraceError) -> Presence {
        // It is the same thread if its VMM's main thread has run the vCPU.
        let may_be_over = matches!(error, TraceError::OtherProgram);
        if may_be_over && self.common.refresh_memory(now, 0).is_none() {
            return Presence::Gone;
        }
        self.failures.report(self.view.vcpu, error);
        Presence::There
    }

    fn sample(
        &mut self,
        clock: &mut VcpuClock<AttachedBackend>,
        time: u64,
        mut elapsed: ElapsedTicks,
    ) -> Presence {
        let (view, ticks, known) = (&mut self.view, &mut self.ticks, &mut self.known);
        view.clear();
        if self.common.in_doubt.load(Ordering::Relaxed) {
            elapsed.lost += 1;
            view.send(ticks, elapsed, None);
            return Presence::There;
        }
        let looked = self
            .traced
            .look(|vcpu| capture(vcpu, view, ticks, known, time));
        let mut presence = Presence::There;
        let mut seen = None;
        match looked {
            Ok(Look::Seen(sample)) => seen = Some(sample),
            // The host has suspended the VMM.
            Ok(Look::Suspended) => elapsed.stolen += 1,
            Ok(Look::Busy) => elapsed.lost += 1,
            Ok(Look::Gone) => {
                elapsed.lost += 1;
                presence = Presence::Gone;
            }
            Err(error) => {
                elapsed.lost += 1;
                presence = self.after(time, &error);
            }
        }
        let sample = seen.map(|(sample, _)| sample);
        self.view.send(&mut self.ticks, elapsed, sample);
        if seen.is_some_and(|(_, halted)| halted) {
            clock.halt();
        }
        self.shared.control.set_halted(clock.is_halted());
        presence
    }

    /// Ends the clock. No tick follows, and no other thread needs to wait for this one.
    fn finish(&mut self, clock: &mut VcpuClock<AttachedBackend>) {
        let elapsed = clock.account_halted(monotonic_ns());
        self.view.send(&mut self.ticks, elapsed, None);
        clock.stop();
        self.shared.control.finish();
        self.shared.kicker.detach();
        self.ticks.ring();
    }
}

/// The sample of a vCPU that stands still, and whether it is halted.
fn capture(
    vcpu: &mut State<'_>,
    view: &mut VcpuView<Arc<AttachedMemory>>,
    ticks: &mut TickSender,
    known: &mut Known,
    time: u64,
) -> Result<(Sample, bool), TraceError> {
    if !known.started {
        known.started = has_started(vcpu.mp_state()?);
    }
    if !known.started {
        return Ok((not_started(view.vcpu, time), true));
    }
    if known.nested.as_ref().is_some_and(NestedGuest::runs) {
        let halted = vcpu.mp_state()? == KVM_MP_STATE_HALTED;
        let sample = view.capture_nested(known.registers.as_ref(), halted, time);
        return Ok((sample, halted));
    }
    let (regs, sregs) = vcpu.registers()?;
    let registers = select_registers(&regs, &sregs);
    known.registers = Some(registers);
    let behind_hlt = view.is_behind_hlt(&registers);
    // A VMM that answers HLT itself waits outside KVM_RUN.
    let halted = behind_hlt && (!vcpu.is_in_guest() || vcpu.mp_state()? == KVM_MP_STATE_HALTED);
    let sample = view.capture(&registers, halted, behind_hlt, time, ticks);
    Ok((sample, halted))
}
