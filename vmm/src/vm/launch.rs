//! Starts a guest from its configuration, and waits for its end.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

use kvmprof_devices::endpoint::HelloInfo;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::consoles::{console_input, hvc_console, text_watch};
use super::contained::{as_user, limit_files, restrict_paths};
use super::devices::virtio_devices;
use super::event_thread::EventThread;
use super::power_button::PowerButton;
use super::sampling::{clock_plan, host_stacks, kernel_sampling};
use super::termination::Termination;
use super::threads::{Profiled, VcpuThreads};
use super::{GuestControl, VmConfig};
use super::{VmEnd, VmError};
use crate::binaries::BinarySources;
use crate::console::HvcConsole;
use crate::counters::{MachineCounters, VcpuCounting};
use crate::host_socket::HostListener;
use crate::kernel_events;
use crate::machine::{GuestMemory, Machine, MachineConfig, MachineDevices, open_kvm};
use crate::profiler::{
    ClockPlan, DeviceMonitors, FileRecorder, MachineInfo, OnVcpus, RecordPlan, recording_info,
};
use crate::vcpu::{
    Doorbell, Ending, Gate, KernelSampling, OnReset, Restart, VcpuCommon, VcpuShared, signals,
};
use crate::virtio::ConsolePorts;
use kvmprof_introspection::{GuestKnowledge, TaskScope};
use kvmprof_recording::Sysroot;

/// A running guest. Its threads run until the guest ends or [`Vm::stop`] is called.
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
    /// The guest can't be started. No code of it has run.
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
            // This needs /dev/kvm, and a machine of its own.
            kernel_events::find_out();
        }
        // This comes before files are restricted.
        let host_stacks = host_stacks(&config)?;
        if config.restrict_paths {
            restrict_paths(&config)?;
        }
        // The console's thread starts after the restriction, which doesn't apply to threads that exist already.
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
        let knowledge = Arc::new(known_at_once(config.knowledge.take(), &machine.image)?);
        let source = config.clock_source;
        let sampling = kernel_sampling(source, &machine, &knowledge, host_stacks.clone())?;
        let plan = clock_plan(&config, &kvm, sampling.as_deref(), &knowledge);
        let shared: Vec<Arc<VcpuShared>> = machine.vcpus.iter().map(|_| Arc::default()).collect();
        let info = MachineInfo {
            host_stacks,
            ..machine_info(&config.machine, &machine, &shared, &knowledge, monitors)
        };
        let termination = Termination::by(another(&stop_request)?);
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
        // This comes last: a guest that can't start doesn't empty an older guest's output.
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
        let button = Arc::new(PowerButton::new(vcpus.machine(), Arc::clone(&knowledge)));
        termination.press_first(Arc::clone(&button));
        let balloon = info.monitors.balloon.clone();
        let control = GuestControl::new(another(&stop_request)?, vcpus.restart(), button, balloon);
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

    /// Guest memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The guest's devices, which know its exit status.
    pub fn devices(&self) -> &Arc<MachineDevices> {
        &self.devices
    }

    /// Asks the guest's threads to end.
    pub fn stop(&self) {
        // If the counter is full, the request has been made already.
        let _ = self.stop_request.write(1);
    }

    /// Waits for the guest's end, and until clients have read the remaining data.
    ///
    /// # Errors
    /// The event thread couldn't continue.
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

/// Another descriptor of the event by which threads ask the guest to end.
pub(super) fn another(stop_request: &EventFd) -> Result<EventFd, VmError> {
    let another = stop_request.try_clone();
    another.map_err(VmError::host("a descriptor"))
}

/// The knowledge of the guest before it runs: from the configuration, or from a note in its image. Reading other images takes too long.
/// Guests with a note start faster than their image could be read on another thread.
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
        memory: Some(machine.memory.clone()),
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

/// Makes the recording's file. The recording begins now.
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

/// Starts the vCPUs' threads, which wait for a consumer first if they are to be `held`. If the guest isn't known yet, another
/// thread reads its image meanwhile.
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
    let known = Gate::default();
    if !(held && knowledge.is_pending()) {
        known.open();
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
    let common = VcpuCommon {
        memory: machine.memory.clone(),
        devices: Arc::clone(&machine.devices),
        knowledge: Arc::clone(knowledge),
        sampling,
        jitter: plan.jitter,
        max_stack: on_vcpus.max_stack,
        registers: plan.registers,
        profiled: Arc::clone(&on_vcpus.profiled),
        gate: Arc::new(gate),
        known: Arc::new(known),
        restart: Arc::new(restart),
        stopping,
    };
    let fds = fds.into_iter().zip(states).collect();
    let (vcpus, rings) = VcpuThreads::start(machine, fds, shared, common, doorbell)
        .map_err(VmError::host("a thread"))?;
    if knowledge.is_pending() {
        vcpus
            .read_image(image, Arc::clone(knowledge), Arc::clone(doorbell))
            .map_err(VmError::host("a thread"))?;
    }
    Ok((vcpus, rings))
}
