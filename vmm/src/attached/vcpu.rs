//! The thread that samples one vCPU of another program.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kvmprof_attach::remote::{Channel, RemoteState, RemoteVcpu};
use kvmprof_attach::tracer::{StopOutcome, TraceError};
use kvmprof_attach::{AttachError, Slots};
use kvmprof_introspection::{GuestKnowledge, Registers};
use kvmprof_profiling::kernel_capture::{CaptureOpener, VcpuThreadId};
use kvmprof_recording::file::RecordingFailure;

use super::attachment::ThreadFiles;
use super::backend::AttachedBackend;
use super::restart::{Restart, SamplingThread};
use crate::vcpu::{KernelClock, Presence, Sampler, StoppedState, Unseen, VcpuAccess};
use kvmprof_profiling::clock::{VcpuClock, monotonic_ns};
use kvmprof_profiling::sampling::{
    Doorbell, Gate, TickSender, VcpuShared, VcpuView, select_registers,
};
use kvmprof_profiling::{ProfilingConfig, signals};

/// The period at which the memory slots are checked, and whether the guest still exists, in ns.
pub(super) const REFRESH_NS: u64 = 1_000_000_000;
/// The period of the check of the memory slots while the host's kernel reads memory by them, in ns.
const SLOTS_NS: u64 = 100_000_000;
/// Maximum time that a vCPU's thread sleeps between two checks.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_nanos(REFRESH_NS);

/// The state that the threads of all vCPUs of a guest share.
pub struct AttachedCommon {
    /// Guest memory, for the question whether its slots have changed.
    pub control: Arc<Channel>,
    /// What is known of the guest.
    pub knowledge: Arc<GuestKnowledge>,
    /// The gate that holds the vCPUs' threads until the guest's kernel has been looked for, so that the first samples have a process: on a
    /// busy host that takes seconds.
    pub sampled: Gate,
    /// How the guest is profiled.
    pub profiling: Arc<ProfilingConfig>,
    /// When the guest's memory slots were last read, in ns.
    pub refreshed: AtomicU64,
    /// Whether the guest may have rebooted, so that samples could be attributed to the wrong kernel.
    pub in_doubt: AtomicBool,
    /// Restarts of the guest.
    pub restart: Arc<Restart>,
    /// Set once the guest runs another kernel than the known one.
    pub has_other_kernel: AtomicBool,
    /// The largest number of vCPUs that the guest has been seen to have.
    pub vcpus: AtomicU32,
    /// Set by the thread that detects the guest's end. Then the doorbell rings.
    pub guest_has_ended: Arc<AtomicBool>,
    /// Set once the process that traces has ended.
    pub tracer_has_ended: Arc<AtomicBool>,
    /// Whether the recording has failed, if nobody else gets samples.
    pub only_output: Option<RecordingFailure>,
    /// Wakes up the thread that ends the profiling.
    pub doorbell: Arc<Doorbell>,
    /// The maker of programs that take samples in the host's kernel; `None` if this process takes samples.
    pub sampling: Option<Arc<CaptureOpener>>,
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
        match self.control.refresh() {
            Err(AttachError::Ended(_)) => {
                self.guest_has_ended.store(true, Ordering::Relaxed);
                // Without clients, nothing else may wake up that thread.
                self.doorbell.ring_anyway();
                return None;
            }
            Err(error) => log::debug!("{error}"),
            Ok(vcpus) => self.note_vcpus(vcpus),
        }
        Some(())
    }

    /// Logs that there are vCPUs which aren't sampled, if the guest has more vCPUs `now` than before.
    fn note_vcpus(&self, now: Option<u32>) {
        let Some(now) = now else {
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

/// A vCPU that is to be sampled.
pub struct SampledVcpu {
    /// The number of its CPU in the guest.
    pub cpu: u16,
    /// The vCPU itself.
    pub remote: RemoteVcpu,
    /// The files of its thread.
    pub files: ThreadFiles,
}

/// A vCPU of another program. One thread looks at it.
pub struct AttachedVcpu {
    /// The vCPU's number, from 0.
    pub vcpu: u16,
    /// The vCPU itself.
    remote: RemoteVcpu,
    failures: Failures,
    /// The state that the threads of all vCPUs share.
    common: Arc<AttachedCommon>,
}

impl AttachedVcpu {
    /// Starts the thread that samples vCPU number `vcpu`, whose thread has these `files`. It sends `ticks`. `ended` is
    /// called on it once the vCPU's thread has ended.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn sample(
        vcpu: u16,
        SampledVcpu { cpu, remote, files }: SampledVcpu,
        shared: Arc<VcpuShared>,
        ticks: TickSender,
        common: &Arc<AttachedCommon>,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<thread::JoinHandle<()>> {
        let mut attached = Self {
            vcpu,
            remote,
            failures: Failures::default(),
            common: Arc::clone(common),
        };
        let thread = common.restart.join();
        let kind = match common.sampling {
            None => "tracer",
            Some(_) => "sampler",
        };
        let spawned = thread::Builder::new().name(format!("{kind} {vcpu}"));
        spawned.spawn(move || {
            kvmprof_sandbox::enter(kvmprof_sandbox::Thread::AttachedVcpu);
            // Without its files, the vCPU's thread has ended.
            if let Ok(mut sampler) = attached.sampler(cpu, files, shared, ticks) {
                attached.run(&mut sampler, &thread);
            }
            drop(thread);
            if !attached.common.stopping.load(Ordering::Relaxed) {
                ended();
            }
        })
    }

    fn sampler(
        &self,
        cpu: u16,
        files: ThreadFiles,
        shared: Arc<VcpuShared>,
        ticks: TickSender,
    ) -> io::Result<Sampler<Self>> {
        let knowledge = &self.common.knowledge;
        let mut view = VcpuView::new(
            self.vcpu,
            Arc::clone(self.remote.memory()),
            Arc::clone(knowledge),
            self.common.profiling.max_stack,
        );
        view.introspector.renumber(cpu);
        let backend = AttachedBackend::new(files)?;
        let kernel = match self.common.sampling.clone() {
            None => None,
            Some(host) => {
                let thread = VcpuThreadId {
                    descriptor: self.remote.descriptor(),
                    tid: self.remote.thread(),
                };
                let schedstat = backend.schedstat()?;
                Some(KernelClock::of_another_process(
                    self.vcpu, host, thread, schedstat,
                ))
            }
        };
        let clock = VcpuClock::with_backend(self.vcpu, backend, self.common.profiling.jitter);
        let knowledge = Arc::clone(knowledge);
        Ok(Sampler::new(view, clock, kernel, shared, knowledge, ticks))
    }

    /// Samples until the end, or until the vCPU's thread has ended.
    fn run(&mut self, sampler: &mut Sampler<Self>, thread: &SamplingThread) {
        // No thread waits for this one's answers before it is attached.
        self.common.sampled.pass();
        sampler.shared().kicker.attach();
        let mut presence = sampler.follow_requests(self, monotonic_ns());
        while presence == Presence::There && !self.common.stopping.load(Ordering::Relaxed) {
            let sleep = match sampler.running_kernel().and_then(KernelClock::pause) {
                Some(pause) => pause,
                None => sampler.clock_mut().backend().sleep(monotonic_ns()),
            };
            signals::wait_for_kick(sleep);
            if thread.is_to_wait() {
                self.restart(sampler, thread);
            }
            presence = self.turn(sampler);
        }
        sampler.finish(self);
    }

    /// Lets go of what is known of the guest, which restarts.
    fn restart(&mut self, sampler: &mut Sampler<Self>, thread: &SamplingThread) {
        sampler.suspend(self);
        // The thread doesn't answer requests meanwhile.
        sampler.shared().set_in_exit(true);
        thread.wait(&self.common.stopping);
        sampler.shared().set_in_exit(false);
        sampler.start_anew(self);
    }

    fn turn(&mut self, sampler: &mut Sampler<Self>) -> Presence {
        let now = monotonic_ns();
        let is_in_kernel = sampler.running_kernel().is_some();
        // The VMM may have changed the guest's memory slots, which the host's kernel knows by the program, or ended the guest.
        let pause = if is_in_kernel { SLOTS_NS } else { REFRESH_NS };
        if self.common.refresh_memory(now, pause).is_none() {
            return Presence::Gone;
        }
        let clock = sampler.clock_mut();
        // While there are no ticks, nothing else tells whether the vCPU's thread is there.
        if !is_in_kernel && clock.hz() == 0 && !self.remote.has_thread() {
            return Presence::Gone;
        }
        let signal = clock.backend_mut().pass(now).then(signals::alarm);
        sampler.interrupted(self, signal)
    }

    /// What a failed look at `now` means.
    fn after(&mut self, now: u64, error: &TraceError) -> Unseen {
        // It is the same thread if its VMM's main thread has run the vCPU.
        let may_be_over = matches!(error, TraceError::OtherProgram);
        if may_be_over && self.common.refresh_memory(now, 0).is_none() {
            return Unseen::Gone;
        }
        match error {
            // kvmprof says so when it ends for this.
            TraceError::NoTracer => {}
            _ if self.common.sampling.is_some() => {
                log::debug!("Where processes are isn't looked for now: {error}");
            }
            _ => self.failures.report(self.vcpu, error),
        }
        Unseen::Refused
    }
}

impl VcpuAccess for AttachedVcpu {
    type Memory = Arc<Channel>;
    type Backend = AttachedBackend;

    fn look<T>(
        &mut self,
        now: u64,
        look: impl FnOnce(&mut dyn StoppedState) -> Result<T, TraceError>,
    ) -> Result<T, Unseen> {
        let looked = self.remote.look(|state| look(state));
        match looked {
            Ok(StopOutcome::Stopped(seen)) => Ok(seen),
            Ok(StopOutcome::Suspended) => Err(Unseen::Suspended),
            Ok(StopOutcome::Busy) => Err(Unseen::Traced),
            Ok(StopOutcome::Gone) => Err(Unseen::Gone),
            Err(error) => Err(self.after(now, &error)),
        }
    }

    fn slots(&self) -> Arc<Slots> {
        self.common.control.slots()
    }

    fn held(&self) -> u64 {
        self.remote.held()
    }

    fn is_in_doubt(&self) -> bool {
        self.common.in_doubt.load(Ordering::Relaxed)
    }
}

impl StoppedState for RemoteState<'_> {
    fn registers(&mut self) -> Result<Registers, TraceError> {
        let (regs, sregs) = RemoteState::registers(self)?;
        Ok(select_registers(&regs, &sregs))
    }

    fn mp_state(&mut self) -> Result<u32, TraceError> {
        RemoteState::mp_state(self)
    }

    fn is_in_guest(&self) -> bool {
        RemoteState::is_in_guest(self)
    }

    fn runs_nested_guest(&self) -> bool {
        RemoteState::runs_nested_guest(self)
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
