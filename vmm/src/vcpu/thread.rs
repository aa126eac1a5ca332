//! The loop around KVM_RUN.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvm_ioctls::{VcpuExit, VcpuFd};

use super::kernel_clock::KernelClock;
use super::kernel_sampling::KernelSampling;
use super::own_vcpu::OwnVcpu;
use super::restart::{OnReset, Restart, Restarted};
use super::sampler::Sampler;
use kvmprof_introspection::{GuestKnowledge, IntrospectionError};
use kvmprof_machine::failure::{FailureCause, GuestFailure};
use kvmprof_machine::{GuestMemory, MachineDevices, MachineError, PowerRequest, VcpuState};
use kvmprof_profiling::clock::{VcpuClock, monotonic_ns};
use kvmprof_profiling::counters::VcpuCounting;
use kvmprof_profiling::profil::{ProfiledProcesses, VcpuStores};
use kvmprof_profiling::sampling::{
    Gate, GuestExit, RegisterSource, TickSender, VcpuShared, VcpuView,
};
use kvmprof_profiling::{ProfilingConfig, signals};

/// Maximum time that a guest's end waits until its image has been read, which takes 0.1 to 0.7 s of processor
/// time and begins when the guest starts.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two checks whether the image has been read.
const IMAGE_PAUSE: Duration = Duration::from_millis(10);

/// Why a vCPU's thread has ended.
#[derive(Debug)]
pub enum Ending {
    /// The thread was asked to end.
    Stopped,
    /// The guest has powered itself off.
    PowerOff,
    /// The guest was reset, and isn't to restart.
    Reset,
    /// The guest was reset, and couldn't be restarted.
    NotRestarted(MachineError),
    /// The guest has failed, and no vCPU can continue.
    GuestFailure(GuestFailure),
    /// The guest's image doesn't show where its processes are.
    Unprofilable(IntrospectionError),
    /// The host failed the vCPU.
    HostFailure(io::Error),
}

/// The state that all vCPU threads of a machine share.
pub struct VcpuCommon {
    /// Guest memory.
    pub memory: GuestMemory,
    /// The devices, which answer the exits.
    pub devices: Arc<MachineDevices>,
    /// The knowledge of the guest.
    pub knowledge: Arc<GuestKnowledge>,
    /// The host kernel's sampling, if the host's kernel takes samples.
    pub sampling: Option<Arc<KernelSampling>>,
    /// How the guest is profiled.
    pub profiling: Arc<ProfilingConfig>,
    /// The source of the registers.
    pub registers: RegisterSource,
    /// The processes that profil and pcsample profile.
    pub profiled: Arc<ProfiledProcesses>,
    /// The gate, which holds the threads until the guest may start.
    pub gate: Arc<Gate>,
    /// The second gate, which holds the threads of a recorded guest until its image has been read: on a host that has no other processor, the guest would keep
    /// the reader from its work, and the first samples would have no process.
    pub known: Arc<Gate>,
    /// The restarts of the guest.
    pub restart: Arc<Restart>,
    /// Whether all threads are to end. After this is set, each vCPU has to be kicked.
    pub stopping: Arc<AtomicBool>,
}

/// The state that a vCPU's thread owns.
pub struct VcpuThread {
    /// The vCPU's index, from 0.
    pub vcpu: u16,
    /// KVM's descriptor of the vCPU.
    pub fd: VcpuFd,
    /// The vCPU's initial state.
    pub initial: Box<VcpuState>,
    /// The vCPU's state that other threads share.
    pub shared: Arc<VcpuShared>,
    /// The sender of its ticks.
    pub ticks: TickSender,
    /// The counts that the vCPU makes for processes.
    pub counting: VcpuCounting,
    /// The state that all vCPU threads share.
    pub common: Arc<VcpuCommon>,
}

impl VcpuThread {
    /// Starts the thread, which calls `ended` when the vCPU has ended.
    ///
    /// # Errors
    /// The host can't start a thread.
    pub fn start(
        self,
        ended: impl FnOnce(Ending) + Send + 'static,
    ) -> io::Result<thread::JoinHandle<()>> {
        let name = format!("vcpu {}", self.vcpu);
        // The vCPU's state has some KiB. It isn't on the thread's stack, because samples of the host's stacks copy a part of that.
        let boxed = Box::new(self);
        (thread::Builder::new().name(name)).spawn(move || ended(boxed.run()))
    }

    fn run(self: Box<Self>) -> Ending {
        let common = Arc::clone(&self.common);
        let ThreadState {
            mut vcpu,
            mut sampler,
            initial,
        } = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => return Ending::HostFailure(error),
        };
        kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Vcpu);
        common.gate.pass();
        common.known.pass();
        sampler.shared().kicker.attach();
        // Requests may have been made before the kicker knew this thread.
        sampler.follow_requests(&mut vcpu, monotonic_ns());
        let ending = run_guest(&mut vcpu, &initial, &mut sampler, &common);
        sampler.finish(&mut vcpu);
        ending
    }

    /// Makes what the thread needs. A function of its own, so that the stack below the guest's exits stays short.
    #[inline(never)]
    fn prepare(self: Box<Self>) -> io::Result<ThreadState> {
        let Self {
            vcpu,
            fd,
            initial,
            shared,
            ticks,
            counting,
            common,
        } = *self;
        signals::let_through_in_kvm_run(&fd)?;
        let clock = VcpuClock::for_this_thread(vcpu, common.profiling.jitter)?;
        let sampling = common.sampling.as_deref();
        let kernel = sampling.map(|sampling| KernelClock::for_this_thread(vcpu, &fd, sampling));
        let knowledge = &common.knowledge;
        let view = VcpuView::new(
            vcpu,
            common.memory.clone(),
            Arc::clone(knowledge),
            common.profiling.max_stack,
        );
        let mut sampler = Box::new(Sampler::new(
            view,
            clock,
            kernel.transpose()?,
            shared,
            Arc::clone(knowledge),
            ticks,
        ));
        // The first vCPU waits for no SIPI.
        sampler.started = vcpu == 0;
        let slots = sampling.map_or_else(Arc::default, KernelSampling::slots);
        let stores = VcpuStores::new(Arc::clone(&common.profiled));
        let vcpu = OwnVcpu::new(fd, common.registers, slots, stores, counting);
        Ok(ThreadState {
            vcpu: Box::new(vcpu),
            sampler,
            initial,
        })
    }
}

/// What a vCPU's thread works with. It isn't on the thread's stack: see [`VcpuThread::start`].
struct ThreadState {
    vcpu: Box<OwnVcpu>,
    sampler: Box<Sampler<OwnVcpu>>,
    initial: Box<VcpuState>,
}

fn run_guest(
    vcpu: &mut OwnVcpu,
    initial: &VcpuState,
    sampler: &mut Sampler<OwnVcpu>,
    common: &VcpuCommon,
) -> Ending {
    stand_still(vcpu, sampler, common);
    loop {
        if common.stopping.load(Ordering::Relaxed) {
            return Ending::Stopped;
        }
        if common.restart.is_requested() {
            match restart(vcpu, initial, sampler, common) {
                ControlFlow::Continue(()) => continue,
                ControlFlow::Break(ending) => return ending,
            }
        }
        match vcpu.fd.run() {
            Ok(exit) => {
                sampler.shared().set_in_exit(true);
                let caused = GuestExit::of(&exit);
                let answered = answer(exit, &common.devices);
                if let Some(caused) = caused {
                    sampler.shared().exits.count(caused);
                    sampler.exited(vcpu, caused);
                }
                match answered {
                    ControlFlow::Continue(()) => {}
                    ControlFlow::Break(Stop::Power(PowerRequest::PowerOff)) => {
                        return Ending::PowerOff;
                    }
                    ControlFlow::Break(Stop::Power(PowerRequest::Reset)) => {
                        await_knowledge(common);
                        sampler.locate_kernel(vcpu);
                        if common.restart.is_end() {
                            return Ending::Reset;
                        }
                        common.restart.request();
                    }
                    ControlFlow::Break(Stop::Failure) => {
                        return failure(&mut vcpu.fd, sampler.view.vcpu, &common.memory);
                    }
                }
                sampler.shared().set_in_exit(false);
            }
            Err(error) if error.errno() == libc::EINTR => {
                sampler.shared().exits.count_interrupted();
                vcpu.returned();
                sampler.interrupted(vcpu, signals::take_pending());
                stand_still(vcpu, sampler, common);
            }
            // This is an application processor that was woken up, but hasn't been started.
            Err(error) if error.errno() == libc::EAGAIN => {}
            Err(error) => {
                return Ending::HostFailure(io::Error::from_raw_os_error(error.errno()));
            }
        }
    }
}

/// Waits while the profiler pauses the vCPU, until the vCPU may continue, is to restart, or is to end.
fn stand_still(vcpu: &mut OwnVcpu, sampler: &mut Sampler<OwnVcpu>, common: &VcpuCommon) {
    sampler.stand_still(vcpu, || {
        common.stopping.load(Ordering::Relaxed) || common.restart.is_requested()
    });
}

/// Does this vCPU's part of a restart. If the vCPU was paused, it is paused afterwards, too.
fn restart(
    vcpu: &mut OwnVcpu,
    initial: &VcpuState,
    sampler: &mut Sampler<OwnVcpu>,
    common: &VcpuCommon,
) -> ControlFlow<Ending> {
    if common.restart.on_reset() == OnReset::Exit {
        // The request came from outside the guest.
        await_knowledge(common);
        sampler.locate_kernel(vcpu);
        return ControlFlow::Break(Ending::Reset);
    }
    finish_exit(vcpu, sampler, common);
    sampler.suspend(vcpu);
    // The thread doesn't answer requests before it has met the other threads.
    sampler.shared().set_in_exit(true);
    let restarted = common.restart.carry_out(|| {
        // No vCPU runs before all threads have done this.
        common.profiled.restart(monotonic_ns());
        initial.restore(&vcpu.fd)
    });
    sampler.shared().set_in_exit(false);
    match restarted {
        Ok(Restarted::Yes) => {}
        Ok(Restarted::Stopped) => return ControlFlow::Break(Ending::Stopped),
        Err(error) => return ControlFlow::Break(Ending::NotRestarted(error)),
    }
    sampler.start_anew(vcpu);
    stand_still(vcpu, sampler, common);
    ControlFlow::Continue(())
}

/// Makes KVM finish the instruction that made the last exit, without executing another one. Otherwise KVM would write the instruction's
/// result into registers that are set later (kernel: Documentation/virt/kvm/api.rst, 4.10).
fn finish_exit(vcpu: &mut OwnVcpu, sampler: &mut Sampler<OwnVcpu>, common: &VcpuCommon) {
    /// Maximum number of exits of an instruction. An access of several parts exits for each part.
    const MAX_PARTS: usize = 16;

    vcpu.fd.set_kvm_immediate_exit(1);
    for _ in 0..MAX_PARTS {
        match vcpu.fd.run() {
            // A reset that it requests is being done already.
            Ok(exit) => drop(answer(exit, &common.devices)),
            Err(_) => break,
        }
    }
    vcpu.fd.set_kvm_immediate_exit(0);
    vcpu.returned();
    sampler.interrupted(vcpu, signals::take_pending());
}

/// Waits until the image of a guest that resets itself has been read. Without the image, a panic of the guest's kernel can't be detected.
fn await_knowledge(common: &VcpuCommon) {
    let deadline = Instant::now() + IMAGE_TIMEOUT;
    let stopping = || common.stopping.load(Ordering::Relaxed);
    while common.knowledge.is_pending() && !stopping() && Instant::now() < deadline {
        thread::sleep(IMAGE_PAUSE);
    }
}

/// The reason why KVM_RUN isn't entered again after an exit.
enum Stop {
    Power(PowerRequest),
    // The run page has the cause.
    Failure,
}

fn answer(exit: VcpuExit<'_>, devices: &MachineDevices) -> ControlFlow<Stop> {
    match exit {
        VcpuExit::IoIn(port, data) => devices.port_read(port, data),
        VcpuExit::IoOut(port, data) => {
            return devices.port_write(port, data).map_break(Stop::Power);
        }
        VcpuExit::MmioRead(gpa, data) => devices.mmio_read(gpa, data),
        VcpuExit::MmioWrite(gpa, data) => {
            return devices.mmio_write(gpa, data).map_break(Stop::Power);
        }
        VcpuExit::Intr | VcpuExit::IrqWindowOpen => {}
        _ => return ControlFlow::Break(Stop::Failure),
    }
    ControlFlow::Continue(())
}

/// The ending of a vCPU whose last exit kvmprof doesn't handle.
fn failure(fd: &mut VcpuFd, vcpu: u16, memory: &GuestMemory) -> Ending {
    let cause = FailureCause::of_last_exit(fd);
    Ending::GuestFailure(GuestFailure::capture(fd, usize::from(vcpu), memory, cause))
}
