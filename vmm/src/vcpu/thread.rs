//! The loop around KVM_RUN.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvm_ioctls::{VcpuExit, VcpuFd};

use super::capture::RegisterSource;
use super::exits::{ExitCounter, ExitTotals, GuestExit};
use super::kernel_clock::{KernelClock, KernelSampling};
use super::restart::{OnReset, Restart, Restarted};
use super::sampler::Sampler;
use super::view::VcpuView;
use super::{Gate, Kicker, TaskRequest, TickSender, signals};
use crate::clock::{ClockControl, ClockSetting, Ticker, VcpuClock, monotonic_ns};
use crate::counters::VcpuCounting;
use crate::machine::failure::{FailureCause, GuestFailure};
use crate::machine::{GuestMemory, MachineDevices, MachineError, PowerRequest, VcpuState};
use crate::profil::{ProfiledProcesses, VcpuStores};
use kvmprof_introspection::{GuestKnowledge, IntrospectionError};

/// Maximum time that a guest's end waits until its image has been read, which takes 0.1 to 0.7 s of processor
/// time and begins when the guest starts.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two checks whether the image has been read.
const IMAGE_PAUSE: Duration = Duration::from_millis(10);

/// The state of one vCPU that other threads share.
#[derive(Debug, Default)]
pub struct VcpuShared {
    /// Makes the thread leave KVM_RUN.
    pub kicker: Arc<Kicker>,
    /// Sets the clock.
    pub control: ClockControl,
    /// Has it look at the guest's tasks.
    pub tasks: TaskRequest,
    /// Counts why KVM_RUN has returned.
    pub exits: ExitTotals,
    in_exit: AtomicBool,
}

impl VcpuShared {
    /// True while its thread answers an exit, which may take any time.
    pub fn is_in_exit(&self) -> bool {
        self.in_exit.load(Ordering::Relaxed)
    }

    pub(crate) fn set_in_exit(&self, is_in_exit: bool) {
        self.in_exit.store(is_in_exit, Ordering::Relaxed);
    }
}

/// Why a vCPU's thread has ended.
#[derive(Debug)]
pub enum Ending {
    /// It was asked to.
    Stopped,
    /// The guest has powered itself off.
    PowerOff,
    /// The guest was reset, and isn't to start anew.
    Reset,
    /// The guest was reset, and couldn't be started anew.
    NotRestarted(MachineError),
    /// The guest has failed in a way that no vCPU can go on from.
    GuestFailure(GuestFailure),
    /// The guest's image says nothing of its processes.
    Unprofilable(IntrospectionError),
    /// The host has failed the vCPU.
    HostFailure(io::Error),
}

/// What all vCPU threads of a machine share.
pub struct VcpuCommon {
    /// Guest memory.
    pub memory: GuestMemory,
    /// What answers the exits.
    pub devices: Arc<MachineDevices>,
    /// What is known of the guest.
    pub knowledge: Arc<GuestKnowledge>,
    /// Drives the clocks, if they have no timers of their own.
    pub ticker: Option<Arc<Ticker>>,
    /// Has the host's kernel take samples, where it can.
    pub sampling: Option<Arc<KernelSampling>>,
    /// Whether ticks have a random phase.
    pub jitter: bool,
    /// Most frames of a call stack.
    pub max_stack: usize,
    /// Where registers are read.
    pub registers: RegisterSource,
    /// The processes that profil and pcsample profile.
    pub profiled: Arc<ProfiledProcesses>,
    /// Held until the guest may start.
    pub gate: Arc<Gate>,
    /// Starts the guest anew.
    pub restart: Arc<Restart>,
    /// Set, and each vCPU kicked, to end all threads.
    pub stopping: Arc<AtomicBool>,
}

/// All that a vCPU's thread owns.
pub struct VcpuThread {
    /// The vCPU's index, from 0.
    pub vcpu: u16,
    /// KVM's descriptor of it.
    pub fd: VcpuFd,
    /// How it starts.
    pub initial: Box<VcpuState>,
    /// What other threads hold of it.
    pub shared: Arc<VcpuShared>,
    /// The way for its ticks.
    pub ticks: TickSender,
    /// Counts for processes.
    pub counting: VcpuCounting,
    /// What it shares with its like.
    pub common: Arc<VcpuCommon>,
}

impl VcpuThread {
    /// Starts the thread. `ended` is called on it when the vCPU has ended.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(
        self,
        ended: impl FnOnce(Ending) + Send + 'static,
    ) -> io::Result<thread::JoinHandle<()>> {
        let name = format!("vcpu {}", self.vcpu);
        // Not on the thread's stack, of which samples of the host's stacks copy a part: the vCPU's state has some KiB.
        let boxed = Box::new(self);
        (thread::Builder::new().name(name)).spawn(move || ended(boxed.run()))
    }

    fn run(self: Box<Self>) -> Ending {
        let Self {
            vcpu,
            mut fd,
            initial,
            shared,
            ticks,
            counting,
            common,
        } = *self;
        let prepared = signals::let_through_in_kvm_run(&fd)
            .and_then(|()| VcpuClock::for_this_thread(vcpu, common.ticker.clone(), common.jitter));
        let kernel = common.sampling.clone();
        let kernel = kernel.map(|sampling| KernelClock::for_this_thread(vcpu, &fd, sampling));
        let (clock, kernel) = match (prepared, kernel.transpose()) {
            (Ok(clock), Ok(kernel)) => (clock, kernel),
            (Err(error), _) | (_, Err(error)) => return Ending::HostFailure(error),
        };
        let mut sampler = Sampler {
            view: VcpuView::new(
                vcpu,
                common.memory.clone(),
                Arc::clone(&common.knowledge),
                common.max_stack,
            ),
            clock,
            kernel,
            setting: ClockSetting::default(),
            exits: ExitCounter::new(monotonic_ns() ^ u64::from(vcpu)),
            event: None,
            shared: Arc::clone(&shared),
            knowledge: Arc::clone(&common.knowledge),
            ticks,
            stores: VcpuStores::new(Arc::clone(&common.profiled)),
            counting,
            registers: common.registers,
            started: vcpu == 0,
            generation: 0,
            is_sampling: false,
        };
        kvmprof_sandbox::enter(match common.sampling {
            Some(_) => kvmprof_sandbox::Thread::VcpuWithBpf,
            None => kvmprof_sandbox::Thread::Vcpu,
        });
        common.gate.pass();
        shared.kicker.attach();
        // Requests from before the kicker knew this thread.
        sampler.follow_requests(&mut fd, monotonic_ns());
        let ending = run_guest(&mut fd, &initial, &mut sampler, &common);
        sampler.finish();
        shared.kicker.detach();
        ending
    }
}

fn run_guest(
    fd: &mut VcpuFd,
    initial: &VcpuState,
    sampler: &mut Sampler,
    common: &VcpuCommon,
) -> Ending {
    stand_still(fd, sampler, common);
    loop {
        if common.stopping.load(Ordering::Relaxed) {
            return Ending::Stopped;
        }
        if common.restart.is_requested() {
            match restart(fd, initial, sampler, common) {
                ControlFlow::Continue(()) => continue,
                ControlFlow::Break(ending) => return ending,
            }
        }
        match fd.run() {
            Ok(exit) => {
                sampler.shared.set_in_exit(true);
                let caused = GuestExit::of(&exit);
                let answered = answer(exit, &common.devices);
                if let Some(caused) = caused {
                    sampler.shared.exits.count(caused);
                    sampler.exited(fd, caused);
                }
                match answered {
                    ControlFlow::Continue(()) => {}
                    ControlFlow::Break(Stop::Power(PowerRequest::PowerOff)) => {
                        return Ending::PowerOff;
                    }
                    ControlFlow::Break(Stop::Power(PowerRequest::Reset)) => {
                        await_knowledge(common);
                        sampler.locate_kernel(fd);
                        if common.restart.is_end() {
                            return Ending::Reset;
                        }
                        common.restart.request();
                    }
                    ControlFlow::Break(Stop::Failure) => {
                        return failure(fd, sampler.view.vcpu, &common.memory);
                    }
                }
                sampler.shared.set_in_exit(false);
            }
            Err(error) if error.errno() == libc::EINTR => {
                sampler.shared.exits.count_interrupted();
                sampler.interrupted(fd, signals::take_pending());
                stand_still(fd, sampler, common);
            }
            // An application processor that was woken up but has not been started.
            Err(error) if error.errno() == libc::EAGAIN => {}
            Err(error) => {
                return Ending::HostFailure(io::Error::from_raw_os_error(error.errno()));
            }
        }
    }
}

/// Where the profiler has paused the vCPU: waits until it may go on, is to start anew, or to end.
fn stand_still(fd: &mut VcpuFd, sampler: &mut Sampler, common: &VcpuCommon) {
    sampler.stand_still(fd, || {
        common.stopping.load(Ordering::Relaxed) || common.restart.is_requested()
    });
}

/// This vCPU's part of a restart. Afterwards it is paused if it was.
fn restart(
    fd: &mut VcpuFd,
    initial: &VcpuState,
    sampler: &mut Sampler,
    common: &VcpuCommon,
) -> ControlFlow<Ending> {
    if common.restart.on_reset() == OnReset::Exit {
        // Somebody else than the guest has asked for it.
        await_knowledge(common);
        sampler.locate_kernel(fd);
        return ControlFlow::Break(Ending::Reset);
    }
    finish_exit(fd, sampler, common);
    sampler.suspend(fd);
    // It answers nobody before it has met the others.
    sampler.shared.set_in_exit(true);
    let restarted = common.restart.carry_out(|| initial.restore(fd));
    sampler.shared.set_in_exit(false);
    match restarted {
        Ok(Restarted::Yes) => {}
        Ok(Restarted::Stopped) => return ControlFlow::Break(Ending::Stopped),
        Err(error) => return ControlFlow::Break(Ending::NotRestarted(error)),
    }
    sampler.start_anew(fd);
    stand_still(fd, sampler, common);
    ControlFlow::Continue(())
}

/// Has KVM finish the instruction that made the last exit, without another one: it would write its result into registers that are
/// set later (kernel: Documentation/virt/kvm/api.rst, 4.10).
fn finish_exit(fd: &mut VcpuFd, sampler: &mut Sampler, common: &VcpuCommon) {
    /// An access of several parts exits for each; no instruction has more of them.
    const MAX_PARTS: usize = 16;

    fd.set_kvm_immediate_exit(1);
    for _ in 0..MAX_PARTS {
        match fd.run() {
            // What it asks of the machine is done already.
            Ok(exit) => drop(answer(exit, &common.devices)),
            Err(_) => break,
        }
    }
    fd.set_kvm_immediate_exit(0);
    sampler.interrupted(fd, signals::take_pending());
}

/// Waits until the image of a guest that resets itself has been read. Without it, a panic of the guest's kernel can't be
/// detected.
fn await_knowledge(common: &VcpuCommon) {
    let deadline = Instant::now() + IMAGE_TIMEOUT;
    let stopping = || common.stopping.load(Ordering::Relaxed);
    while common.knowledge.is_pending() && !stopping() && Instant::now() < deadline {
        thread::sleep(IMAGE_PAUSE);
    }
}

/// Why an exit isn't followed by the next KVM_RUN.
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

/// Says how a vCPU failed whose last exit was none of those that are answered.
fn failure(fd: &mut VcpuFd, vcpu: u16, memory: &GuestMemory) -> Ending {
    let cause = FailureCause::of_last_exit(fd);
    Ending::GuestFailure(GuestFailure::capture(fd, usize::from(vcpu), memory, cause))
}
