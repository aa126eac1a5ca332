//! From a configuration to running threads, and back.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use event_manager::MutEventSubscriber;
use kvm_ioctls::{Cap, Kvm};
use kvmprof_devices::endpoint::{Backend, HelloInfo};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::contained::{as_user, limit_files, restrict_paths};
use super::devices::virtio_devices;
use super::event_loop::{EventLoop, Services};
use super::power_button::PowerButton;
use super::termination::{Termination, take_signals_here};
use super::threads::{Profiled, VcpuThreads};
use super::time_limit::TimeLimit;
use super::{GuestControl, VmConfig};
use super::{VmEnd, VmError};
use crate::binaries::BinarySources;
use crate::clock::{ClockSource, HaltedTicks, Ticker};
use crate::console::{Console, ConsoleInput, HvcConsole, InputTarget, TextWatch, WindowWatch};
use crate::counters::{MachineCounters, VcpuCounting};
use crate::host_socket::{HostListener, HostSocket};
use crate::kernel_events;
use crate::machine::{GuestMemory, Machine, MachineConfig, MachineDevices, open_kvm};
use crate::profiler::{
    ClockPlan, DeviceMonitors, FileRecorder, GuestDevices, MachineInfo, OnVcpus, Profiler,
    RecordPlan, recording_info,
};
use crate::vcpu::{
    Doorbell, Ending, Gate, KernelSampling, OnReset, RegisterSource, Restart, VcpuCommon,
    VcpuShared, signals,
};
use crate::virtio::{ConsolePorts, ConsoleService, GuestAccess};
use kvmprof_attach::HostStacks;
use kvmprof_introspection::{GuestKnowledge, TaskScope};
use kvmprof_recording::Sysroot;

/// A guest that runs. Its threads go on until the guest ends or [`Vm::stop`] is called.
pub struct Vm {
    memory: GuestMemory,
    knowledge: Arc<GuestKnowledge>,
    devices: Arc<MachineDevices>,
    hvc: Option<Arc<HvcConsole>>,
    stop_request: EventFd,
    events: JoinHandle<Result<Option<Ending>, VmError>>,
}

impl Vm {
    /// Builds the machine and starts its threads. The signals of [`super::block_signals`] end it.
    ///
    /// # Errors
    /// Whatever keeps the guest from running, before any of it has run.
    pub fn start(mut config: VmConfig) -> Result<Self, VmError> {
        if !config.shares.is_empty() {
            config.machine.memory = config.machine.memory.shareable();
        }
        signals::block().map_err(VmError::host("to block signals"))?;
        let socket = config.socket.as_deref();
        let listener = as_user(|| socket.map(HostListener::bind).transpose())?;
        let kvm = open_kvm()?;
        let stop_request = EventFd::new(EFD_NONBLOCK).map_err(VmError::host("an eventfd"))?;
        let output = as_user(|| config.console.open_output())?.limited(config.console_limit);
        let output = output.watched(text_watch(&config, &stop_request)?);
        let (mut virtio, monitors, disks) = virtio_devices(&config)?;
        if kvmprof_sandbox::filters::is_prepared() {
            // It needs /dev/kvm, and a machine of its own.
            kernel_events::find_out();
        }
        let is_sampled_by_kernel = config.clock_source == ClockSource::Kernel;
        // Before files are out of reach: this program's own is read.
        let host_stacks = (config.host_stacks && is_sampled_by_kernel)
            .then(|| HostStacks::read(std::process::id().cast_signed()).map(Arc::new))
            .transpose()
            .map_err(VmError::HostStacks)?;
        if config.restrict_paths {
            restrict_paths(&config)?;
        }
        // Threads that exist by then wouldn't be restricted.
        let hvc = hvc_console(&config, &stop_request)?;
        let hello = HelloInfo {
            vcpus: config.machine.cpus.into(),
            hz: config.hz,
        };
        let ports = ConsolePorts::new(hvc.as_ref(), config.guest_access, hello);
        virtio.console = ports.map_err(VmError::host("an eventfd"))?;
        let machine = Machine::build(&kvm, &config.machine, output, virtio)?;
        if config.restrict_paths {
            limit_files(&config)?;
        }
        let sysroot = config.sysroot.as_deref().map(open_sysroot).transpose()?;
        let knowledge = Arc::new(known_at_once(config.knowledge, &machine.image)?);
        let sampling = is_sampled_by_kernel
            .then(|| KernelSampling::new(&machine, &knowledge, host_stacks.clone()).map(Arc::new))
            .transpose()
            .map_err(VmError::KernelClock)?;
        let fallback = match config.clock_source {
            ClockSource::Kernel => ClockSource::Thread,
            source => source,
        };
        let serves_recordings =
            |sampling: &Arc<KernelSampling>| sampling.serves_recordings(&knowledge);
        let plan = ClockPlan {
            hz: config.hz,
            source: config.clock_source,
            fallback,
            of_recordings: match sampling.as_ref().is_some_and(serves_recordings) {
                true => config.clock_source,
                false => fallback,
            },
            jitter: config.jitter,
            registers: register_source(&kvm),
        };
        let shared: Vec<Arc<VcpuShared>> = machine.vcpus.iter().map(|_| Arc::default()).collect();
        let info = MachineInfo {
            host_stacks,
            ..machine_info(&config.machine, &machine, &shared, &knowledge, monitors)
        };
        let asked = stop_request.try_clone();
        let asked = asked.map_err(VmError::host("a descriptor"))?;
        let termination = Termination::by(asked);
        let mut termination = termination.map_err(VmError::host("to catch signals"))?;
        let doorbell = Arc::new(Doorbell::new().map_err(VmError::host("an eventfd"))?);
        let memory = machine.memory.clone();
        let initrd = machine.initrd().map_err(VmError::host("a descriptor"))?;
        let devices = Arc::clone(&machine.devices);
        let console = (config.console.has_input())
            .then(|| console_input(hvc.as_ref(), &devices, &stop_request))
            .transpose()?;
        let recorder = config
            .record
            .map(|record| {
                as_user(|| start_recorder(record, config.machine.cpus.into(), &info, &plan))
            })
            .transpose()?;
        let held = config.hold || recorder.is_some();
        // Not before: a guest that can't start leaves an older one's output alone.
        as_user(|| config.console.empty())?;
        let on_vcpus = OnVcpus::new(config.machine.cpus.into(), config.max_stack);
        let counting = info.counters.of_processes(&on_vcpus.counts);
        let shared = shared.into_iter().zip(counting).collect();
        let (vcpus, rings) = start_vcpus(
            machine,
            shared,
            (&plan, sampling),
            &knowledge,
            &on_vcpus,
            (held, config.on_reset, hvc.as_ref()),
            &doorbell,
        )?;
        let asked_to_stop = stop_request.try_clone();
        let asked_to_stop = asked_to_stop.map_err(VmError::host("a descriptor"))?;
        let button = Arc::new(PowerButton::new(vcpus.machine(), Arc::clone(&knowledge)));
        termination.press_first(Arc::clone(&button));
        let balloon = info.monitors.balloon.clone();
        let control = GuestControl::new(asked_to_stop, vcpus.restart(), button, balloon);
        let event_thread = EventThread {
            listener,
            termination,
            console,
            hvc: hvc.clone(),
            devices: Arc::clone(&devices),
            guest_access: config.guest_access,
            hello,
            control,
            doorbell,
            plan,
            info,
            prf_addresses: config.prf_addresses,
            time_limit: config.time_limit,
            on_vcpus,
            sources: BinarySources::new(
                Arc::new(memory.clone()),
                Arc::clone(&knowledge),
                initrd,
                sysroot,
            )
            .with_disks(disks),
            recorder,
        };
        let events = thread::Builder::new()
            .name("events".into())
            .spawn(move || event_thread.serve(vcpus, rings))
            .map_err(VmError::host("a thread"))?;
        Ok(Self {
            memory,
            knowledge,
            devices,
            hvc,
            stop_request,
            events,
        })
    }

    /// Guest memory, for those who launched the guest.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Its devices, which know how the guest has ended.
    pub fn devices(&self) -> &Arc<MachineDevices> {
        &self.devices
    }

    /// Asks the guest's threads to end.
    pub fn stop(&self) {
        // A full counter has asked already.
        let _ = self.stop_request.write(1);
    }

    /// Waits for the end; clients have been served what was left by then.
    ///
    /// # Errors
    /// What kept the event thread from going on.
    pub fn join(self) -> Result<VmEnd, VmError> {
        let ending = self.events.join().map_err(|_| VmError::Host {
            what: "to go on",
            source: io::Error::other("the event thread panicked"),
        })??;
        let on_hvc = self.hvc.and_then(|hvc| hvc.panic_message());
        let message = on_hvc.or_else(|| self.devices.serial().panic_message());
        VmEnd::new(ending, &self.knowledge, &self.memory, message)
    }
}

/// What is known of the guest before it runs: what somebody said, or what a note in its image says. Of other images it
/// takes too long to learn; guests with a note are up before anybody could have learned beside them.
fn known_at_once(said: Option<GuestKnowledge>, image: &[u8]) -> Result<GuestKnowledge, VmError> {
    let known = match said {
        Some(said) => Some(said),
        None => GuestKnowledge::from_noted_image(image)?,
    };
    Ok(known.unwrap_or_else(GuestKnowledge::pending))
}

fn machine_info(
    config: &MachineConfig,
    machine: &Machine,
    shared: &[Arc<VcpuShared>],
    knowledge: &Arc<GuestKnowledge>,
    monitors: DeviceMonitors,
) -> MachineInfo {
    MachineInfo {
        kernel: config.kernel.name(),
        memory_bytes: config.memory.bytes,
        devices: Some(Arc::clone(&machine.devices)),
        monitors,
        counters: MachineCounters::new(machine.vcpus.iter().zip(shared.iter().cloned())),
        knowledge: Arc::clone(knowledge),
        host_stacks: None,
        halted_ticks: None,
    }
}

pub(crate) fn open_sysroot(path: &Path) -> Result<Sysroot, VmError> {
    Sysroot::open(path).map_err(|source| VmError::Sysroot {
        path: path.to_owned(),
        source,
    })
}

/// Makes the recording's file, which begins now.
pub(crate) fn start_recorder(
    record: RecordPlan,
    vcpus: usize,
    machine: &MachineInfo,
    clock: &ClockPlan,
) -> Result<FileRecorder, VmError> {
    if let Some(event) = record.event {
        let (kind, event) = (event.kind(), event.kind().name());
        kernel_events::missing(kind).map_or(Ok(()), |why| Err(VmError::Event { event, why }))?;
    }
    let looks = record.looks.filter(|looks| looks.scope == TaskScope::All);
    if looks.is_some() && !machine.knowledge.may_list_tasks() {
        return Err(VmError::Tasks);
    }
    let source = record.source(clock.hz);
    let info = recording_info(
        machine,
        clock,
        source,
        vcpus,
        record.stacks,
        &[],
        looks.map(|looks| looks.ticks),
    );
    let path = record.path.clone();
    FileRecorder::create(record, &info).map_err(|source| VmError::Record { path, source })
}

/// The registers come from the run page where KVM has one.
fn register_source(kvm: &Kvm) -> RegisterSource {
    if kvm.check_extension(Cap::SyncRegs) {
        RegisterSource::RunPage
    } else {
        RegisterSource::Ioctls
    }
}

/// The virtio console, if that is wanted.
fn hvc_console(
    config: &VmConfig,
    stop_request: &EventFd,
) -> Result<Option<Arc<HvcConsole>>, VmError> {
    if config.console != Console::Hvc {
        return Ok(None);
    }
    let output = config.console.open_output()?;
    let hvc = HvcConsole::new(output.watched(text_watch(config, stop_request)?));
    let hvc = hvc.map_err(VmError::host("what the console needs"))?;
    Ok(Some(Arc::new(hvc)))
}

/// What ends the guest when a console has a certain text, if something is to.
fn text_watch(config: &VmConfig, stop_request: &EventFd) -> Result<Option<TextWatch>, VmError> {
    let Some(text) = &config.until else {
        return Ok(None);
    };
    let stop = stop_request.try_clone();
    let stop = Arc::new(stop.map_err(VmError::host("a descriptor"))?);
    // Whoever waits for the guest's end is to find it said already.
    let found = config.said.iter().cloned().chain([stop]);
    Ok(Some(TextWatch::new(text, found.collect())))
}

/// Standard input to the guest's console; the escape key ends the guest.
fn console_input(
    hvc: Option<&Arc<HvcConsole>>,
    devices: &MachineDevices,
    stop_request: &EventFd,
) -> Result<ConsoleInput, VmError> {
    let target: Arc<dyn InputTarget> = match hvc {
        Some(hvc) => hvc.clone(),
        None => devices.serial().clone(),
    };
    let stop_request = stop_request
        .try_clone()
        .map_err(VmError::host("standard input"))?;
    let quit = move || {
        // A full counter has asked already.
        let _ = stop_request.write(1);
    };
    ConsoleInput::stdin(target, Box::new(quit)).map_err(VmError::host("standard input"))
}

/// Starts the vCPUs' threads, which wait for a consumer first if they are to be `held`. What isn't known of the guest yet
/// is learned beside them.
fn start_vcpus(
    mut machine: Machine,
    shared: Vec<(Arc<VcpuShared>, VcpuCounting)>,
    (plan, sampling): (&ClockPlan, Option<Arc<KernelSampling>>),
    knowledge: &Arc<GuestKnowledge>,
    on_vcpus: &OnVcpus,
    (held, on_reset, hvc): (bool, OnReset, Option<&Arc<HvcConsole>>),
    doorbell: &Arc<Doorbell>,
) -> Result<(VcpuThreads, Vec<Profiled>), VmError> {
    let gate = Gate::default();
    if !held {
        gate.open();
    }
    let image = Arc::clone(&machine.image);
    let fds = std::mem::take(&mut machine.vcpus);
    let states = std::mem::take(&mut machine.vcpu_states);
    let machine = Arc::new(machine);
    let stopping = Arc::<AtomicBool>::default();
    let restart = Restart::new(
        Arc::clone(&machine),
        Arc::clone(knowledge),
        hvc.cloned(),
        on_reset,
        shared.iter().map(|vcpu| Arc::clone(&vcpu.0)).collect(),
        Arc::clone(&stopping),
        Arc::clone(doorbell),
    );
    let ticker = match plan.source {
        ClockSource::Thread | ClockSource::Ptrace | ClockSource::Kernel => None,
        ClockSource::Ticker => {
            let kickers: Vec<_> = shared
                .iter()
                .map(|vcpu| Arc::clone(&vcpu.0.kicker))
                .collect();
            let ticker = Ticker::start(&kickers).map_err(VmError::host("a thread"))?;
            Some(Arc::new(ticker))
        }
    };
    let common = VcpuCommon {
        memory: machine.memory.clone(),
        devices: Arc::clone(&machine.devices),
        knowledge: Arc::clone(knowledge),
        ticker,
        sampling,
        jitter: plan.jitter,
        max_stack: on_vcpus.max_stack,
        registers: plan.registers,
        profiled: Arc::clone(&on_vcpus.profiled),
        gate: Arc::new(gate),
        restart: Arc::new(restart),
        stopping,
    };
    let fds = fds.into_iter().zip(states).collect();
    let (vcpus, rings) = VcpuThreads::start(machine, fds, shared, common, doorbell)
        .map_err(VmError::host("a thread"))?;
    if knowledge.is_pending() {
        vcpus
            .learn(image, Arc::clone(knowledge), Arc::clone(doorbell))
            .map_err(VmError::host("a thread"))?;
    }
    Ok((vcpus, rings))
}

/// What the event thread starts with.
struct EventThread {
    listener: Option<HostListener>,
    termination: Termination,
    console: Option<ConsoleInput>,
    hvc: Option<Arc<HvcConsole>>,
    devices: Arc<MachineDevices>,
    guest_access: GuestAccess,
    hello: HelloInfo,
    control: GuestControl,
    doorbell: Arc<Doorbell>,
    plan: ClockPlan,
    info: MachineInfo,
    prf_addresses: usize,
    time_limit: Option<Duration>,
    on_vcpus: OnVcpus,
    sources: BinarySources,
    recorder: Option<FileRecorder>,
}

impl EventThread {
    fn serve(
        mut self,
        vcpus: VcpuThreads,
        rings: Vec<Profiled>,
    ) -> Result<Option<Ending>, VmError> {
        take_signals_here().map_err(VmError::host("to take signals"))?;
        // The first such event on a host takes milliseconds, which the guest's start needn't wait for. While there is one, others
        // are cheap.
        let (halted_ticks, _first_event) = HaltedTicks::of_this_host();
        self.info.halted_ticks = Some(halted_ticks);
        let profiler = Rc::new(RefCell::new(Profiler::new(
            rings,
            self.plan,
            vcpus.gate(),
            self.info,
            self.prf_addresses,
            Some(self.on_vcpus),
            self.sources,
        )));
        profiler.borrow_mut().be_controlled(self.control);
        if let Some(recorder) = self.recorder {
            profiler.borrow_mut().record(recorder);
        }
        let backend: Rc<RefCell<dyn Backend>> = profiler.clone();
        let room = profiler.borrow().room();
        let socket = self
            .listener
            .map(|listener| HostSocket::new(listener, self.hello, backend, room))
            .transpose()?;
        let devices = self.devices;
        let for_guest = Rc::new(RefCell::new(GuestDevices(Rc::clone(&profiler))));
        let ports = (devices.virtio_console())
            .map(|device| ConsoleService::new(Arc::clone(device), for_guest, self.guest_access));
        let mut subscribers: Vec<Box<dyn MutEventSubscriber>> = Vec::new();
        if let Some(console) = self.console {
            subscribers.push(Box::new(console));
        }
        if let (Some(_), Some(device)) = (&self.hvc, devices.virtio_console()) {
            let device = Arc::clone(device);
            let watch = WindowWatch::new(Box::new(move |size| device.resize(size)));
            subscribers.push(Box::new(
                watch.map_err(VmError::host("to follow the terminal"))?,
            ));
        }
        if let Some(time) = self.time_limit {
            let stop_request = self.termination.stop_request();
            let limit = stop_request.and_then(|request| TimeLimit::start(time, request));
            subscribers.push(Box::new(limit.map_err(VmError::host("a timer"))?));
        }
        let services = Services {
            profiler,
            socket,
            ports,
            hvc: self.hvc,
        };
        let events = EventLoop::new(services, self.doorbell, self.termination, subscribers)?;
        kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Events);
        events.run(vcpus)
    }
}
