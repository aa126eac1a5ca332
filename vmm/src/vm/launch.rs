//! Starts a guest from its configuration, and waits for its end.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

use kvm_ioctls::{Kvm, VcpuFd};
use kvmprof_attach::HostStacks;
use kvmprof_devices::endpoint::HelloInfo;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::build_files::ReadFiles;
use super::consoles::{console_input, hvc_console, text_watch};
use super::contained::{as_user, limit_files, restrict_paths};
use super::devices::virtio_devices;
use super::event_thread::EventThread;
use super::guest_control::MachineControl;
use super::kernel::read_kernel;
use super::power_button::PowerButton;
use super::sampling::{clock_plan, host_stacks, kernel_sampling};
use super::termination::Termination;
use super::threads::{Profiled, VcpuThreads};
use super::{VmConfig, VmEnd, VmError};
use crate::vcpu::{Ending, KernelSampling, Restart, VcpuCommon};
use kvmprof_introspection::{GuestKnowledge, TaskScope};
use kvmprof_machine::console::{ConsoleOutput, HvcConsole};
use kvmprof_machine::output_names::{OutputNames, listen, record};
use kvmprof_machine::unix_socket::SocketListener;
use kvmprof_machine::virtio::ConsolePorts;
use kvmprof_machine::{
    GuestMemory, HostParts, KernelFile, Machine, MachineDevices, VcpuState, VirtioDevices, open_kvm,
};
use kvmprof_profiling::binaries::{BinarySources, GuestDisks};
use kvmprof_profiling::counters::MachineCounters;
use kvmprof_profiling::profiler::{
    ClockPlan, DeviceMonitors, FileRecorder, MachineInfo, OnVcpus, recording_info,
};
use kvmprof_profiling::sampling::{Doorbell, Gate, VcpuShared};
use kvmprof_profiling::{RecordPlan, kernel_events, signals};
use kvmprof_recording::Sysroot;
use kvmprof_recording::file::RecordingFile;

/// A running guest. Its threads run until the guest ends or [`Vm::stop`] is called.
pub struct Vm {
    guest: Guest,
    events: JoinHandle<Result<Option<Ending>, VmError>>,
}

/// What the thread that has started a guest keeps of it.
struct Guest {
    memory: GuestMemory,
    knowledge: Arc<GuestKnowledge>,
    devices: Arc<MachineDevices>,
    hvc: Option<Arc<HvcConsole>>,
    stop_request: EventFd,
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
        Opened::open(config)?.build()?.wire()?.run()
    }

    /// Guest memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.guest.memory
    }

    /// The guest's devices, which know its exit status.
    pub fn devices(&self) -> &Arc<MachineDevices> {
        &self.guest.devices
    }

    /// Asks the guest's threads to end.
    pub fn stop(&self) {
        // If the counter is full, the request has been made already.
        let _ = self.guest.stop_request.write(1);
    }

    /// Waits for the guest's end, and until clients have read the remaining data.
    ///
    /// # Errors
    /// The event thread couldn't continue.
    pub fn join(self) -> Result<VmEnd, VmError> {
        let ending = self
            .events
            .join()
            .map_err(|_| VmError::panicked("the event thread"))??;
        let Guest {
            memory,
            knowledge,
            devices,
            hvc,
            ..
        } = self.guest;
        let on_hvc = hvc.and_then(|hvc| hvc.panic_message());
        let message = on_hvc.or_else(|| devices.serial().panic_message());
        VmEnd::new(ending, &knowledge, &memory, message)
    }
}

/// What a guest has of the host. It is open before this process is restricted to the files that the guest can need later.
struct Opened {
    config: VmConfig,
    listener: Option<SocketListener>,
    kvm: Arc<Kvm>,
    stop_request: EventFd,
    output: ConsoleOutput,
    /// The console's file, which is emptied when the guest starts.
    older_output: Option<File>,
    recording: Option<RecordingOutput>,
    virtio: VirtioDevices,
    monitors: DeviceMonitors,
    disks: GuestDisks,
    host_stacks: Option<Arc<HostStacks>>,
    kernel: KernelFile,
    files: ReadFiles,
    host: HostParts,
}

/// The file of a recording.
pub(crate) type RecordingOutput = Box<dyn RecordingFile + Send>;

impl Opened {
    fn open(config: VmConfig) -> Result<Self, VmError> {
        let names = config.output_names.as_ref();
        let socket = config.profiling.socket.as_deref();
        let listener = socket.map(|path| listen(names, path)).transpose()?;
        let kvm = Arc::new(open_kvm()?);
        let stop_request = EventFd::new(EFD_NONBLOCK).map_err(VmError::host("an eventfd"))?;
        let output = as_user(|| config.console.open_output())?.limited(config.console_limit);
        let older_output = config.console.older_output(&output)?;
        let output = output.watched(text_watch(&config, &stop_request)?);
        let (virtio, monitors, disks) = virtio_devices(&config)?;
        if kvmprof_sandbox::filters::is_prepared() {
            // This needs /dev/kvm, and a machine of its own.
            kernel_events::probe_all();
        }
        let host_stacks = host_stacks(&config.profiling)?;
        // A machine that can't be is a mistake in the options, which is said before that in a file.
        let host = HostParts::open(&kvm, &config.machine)?;
        let kernel = KernelFile::open(&config.kernel)?;
        let files = ReadFiles::read(&config.profiling)?;
        let recording = (config.profiling.record.as_ref())
            .map(|plan| as_user(|| open_recording(names, &plan.path)))
            .transpose()?;
        if config.restrict_paths {
            restrict_paths(&config.profiling)?;
        }
        Ok(Self {
            config,
            listener,
            kvm,
            stop_request,
            output,
            older_output,
            recording,
            virtio,
            monitors,
            disks,
            host_stacks,
            kernel,
            files,
            host,
        })
    }

    fn build(mut self) -> Result<Built, VmError> {
        let config = &mut self.config;
        // The console's thread starts after the restriction, which doesn't apply to threads that exist already.
        let hvc = hvc_console(config, &self.stop_request)?;
        let hello = HelloInfo {
            vcpus: config.machine.cpus.into(),
            hz: config.profiling.hz,
        };
        let ports = ConsolePorts::new(hvc.as_ref(), config.guest_access, hello);
        self.virtio.console = ports.map_err(VmError::host("an eventfd"))?;
        let mut machine = Machine::build(
            &self.kvm,
            &config.machine,
            self.host,
            read_kernel(self.kernel)?,
            self.output,
            self.virtio,
        )?;
        if config.restrict_paths {
            limit_files(config)?;
        }
        let mut profiling = std::mem::take(&mut config.profiling);
        let record = profiling.record.take();
        let knowledge = known_at_once(profiling.knowledge.take(), &machine.image, &self.files)?;
        let knowledge = Arc::new(profiling.restricted(knowledge));
        let profiling = Arc::new(profiling);
        let helper = config.capture_helper.clone();
        let sampling = kernel_sampling(
            &profiling,
            &machine,
            &knowledge,
            self.host_stacks.clone(),
            helper,
        )?;
        let plan = clock_plan(profiling, &self.kvm, sampling.as_deref(), &knowledge);
        let shared: Vec<Arc<VcpuShared>> = machine.vcpus.iter().map(|_| Arc::default()).collect();
        let info = MachineInfo {
            kernel: config.kernel.name(),
            memory_bytes: config.machine.memory.bytes,
            devices: Some(Arc::clone(&machine.devices)),
            monitors: self.monitors,
            counters: MachineCounters::new(machine.vcpus.iter().zip(shared.iter().cloned())),
            knowledge,
            memory: Some(machine.memory.clone()),
            host_stacks: self.host_stacks,
            events: Vec::new(),
            halted_ticks: None,
            restarts: Arc::default(),
        };
        let fds = std::mem::take(&mut machine.vcpus).into_iter();
        let fds = fds.zip(std::mem::take(&mut machine.vcpu_states));
        Ok(Built {
            fds: fds.collect(),
            machine: Arc::new(machine),
            config: self.config,
            listener: self.listener,
            files: self.files,
            stop_request: self.stop_request,
            disks: self.disks,
            hvc,
            hello,
            record: record.zip(self.recording),
            older_output: self.older_output,
            sampling,
            plan,
            info,
            shared,
        })
    }
}

/// A machine whose vCPUs have no threads yet, and how it is profiled.
struct Built {
    config: VmConfig,
    listener: Option<SocketListener>,
    files: ReadFiles,
    stop_request: EventFd,
    disks: GuestDisks,
    hvc: Option<Arc<HvcConsole>>,
    hello: HelloInfo,
    machine: Arc<Machine>,
    fds: Vec<(VcpuFd, VcpuState)>,
    record: Option<(RecordPlan, RecordingOutput)>,
    older_output: Option<File>,
    sampling: Option<Arc<KernelSampling>>,
    plan: ClockPlan,
    info: MachineInfo,
    shared: Vec<Arc<VcpuShared>>,
}

impl Built {
    /// Connects the machine with the profiler, and starts the vCPUs' threads.
    fn wire(mut self) -> Result<Wired, VmError> {
        let termination = Termination::by(another(&self.stop_request)?);
        let mut termination = termination.map_err(VmError::host("to catch signals"))?;
        let doorbell = Arc::new(Doorbell::new().map_err(VmError::host("an eventfd"))?);
        let sysroot = self.plan.profiling.sysroot.as_deref();
        let sysroot = sysroot.map(open_sysroot).transpose()?;
        let (memory, devices) = (
            self.machine.memory.clone(),
            Arc::clone(&self.machine.devices),
        );
        let initrd = (self.machine.initrd()).map_err(VmError::host("a descriptor"))?;
        let knowledge = Arc::clone(&self.info.knowledge);
        let sources = BinarySources::new(
            Arc::new(memory.clone()),
            Arc::clone(&knowledge),
            initrd,
            sysroot,
        );
        let console = (self.config.console.has_input())
            .then(|| console_input(self.hvc.as_ref(), &devices, &self.stop_request))
            .transpose()?;
        let cpus = self.fds.len();
        let recorder = (self.record.take())
            .map(|(record, file)| start_recorder(record, file, cpus, &self.info, &self.plan))
            .transpose()?;
        // This comes last: a guest that can't start doesn't empty an older guest's output.
        if let Some(output) = &self.older_output {
            let emptied = output.set_len(0);
            emptied.map_err(VmError::host("to empty the console's file"))?;
        }
        let on_vcpus = OnVcpus::new(cpus);
        let held = self.config.hold || recorder.is_some();
        let (vcpus, rings) = self.start_vcpus(held, &on_vcpus, &doorbell)?;
        let button = Arc::new(PowerButton::new(vcpus.machine(), Arc::clone(&knowledge)));
        termination.press_first(Arc::clone(&button));
        let control = MachineControl {
            stop_request: another(&self.stop_request)?,
            restart: vcpus.restart(),
            power_button: button,
        };
        Ok(Wired {
            guest: Guest {
                memory,
                knowledge,
                devices: Arc::clone(&devices),
                hvc: self.hvc.clone(),
                stop_request: self.stop_request,
            },
            events: EventThread {
                listener: self.listener,
                termination,
                console,
                hvc: self.hvc,
                devices,
                hello: self.hello,
                control,
                doorbell,
                plan: self.plan,
                info: self.info,
                time_limit: self.config.time_limit,
                on_vcpus,
                sources: sources.with_disks(self.disks),
                recorder,
            },
            vcpus,
            rings,
        })
    }

    /// Starts the vCPUs' threads, which wait for a consumer first if they are to be `held`. If the guest isn't known yet, another
    /// thread reads its image meanwhile.
    fn start_vcpus(
        &mut self,
        held: bool,
        on_vcpus: &OnVcpus,
        doorbell: &Arc<Doorbell>,
    ) -> Result<(VcpuThreads, Vec<Profiled>), VmError> {
        let (machine, knowledge) = (&self.machine, &self.info.knowledge);
        let stopping = Arc::<AtomicBool>::default();
        let restart = Restart::new(
            Arc::clone(machine),
            &self.info,
            self.hvc.clone(),
            self.config.on_reset,
            self.shared.clone(),
            Arc::clone(&stopping),
            Arc::clone(doorbell),
        );
        let common = VcpuCommon {
            memory: machine.memory.clone(),
            devices: Arc::clone(&machine.devices),
            knowledge: Arc::clone(knowledge),
            sampling: self.sampling.take(),
            profiling: Arc::clone(&self.plan.profiling),
            registers: self.plan.registers,
            profiled: Arc::clone(&on_vcpus.profiled),
            gate: Arc::new(Gate::opened_if(!held)),
            known: Arc::new(Gate::opened_if(!(held && knowledge.is_pending()))),
            restart: Arc::new(restart),
            stopping,
        };
        let counting = self.info.counters.of_processes(&on_vcpus.counts);
        let shared = std::mem::take(&mut self.shared).into_iter().zip(counting);
        let fds = std::mem::take(&mut self.fds);
        let started =
            VcpuThreads::start(Arc::clone(machine), fds, shared.collect(), common, doorbell);
        let (vcpus, rings) = started.map_err(VmError::host("a thread"))?;
        if knowledge.is_pending() {
            let image = Arc::clone(&machine.image);
            let files = std::mem::take(&mut self.files);
            let (knowledge, doorbell) = (Arc::clone(knowledge), Arc::clone(doorbell));
            let read = vcpus.read_image(image, files, knowledge, doorbell);
            read.map_err(VmError::host("a thread"))?;
        }
        Ok((vcpus, rings))
    }
}

/// A guest that runs as soon as its event thread does.
struct Wired {
    guest: Guest,
    events: EventThread,
    vcpus: VcpuThreads,
    rings: Vec<Profiled>,
}

impl Wired {
    fn run(self) -> Result<Vm, VmError> {
        let Self {
            guest,
            events,
            vcpus,
            rings,
        } = self;
        let events = thread::Builder::new()
            .name("events".into())
            .spawn(move || events.serve(vcpus, rings))
            .map_err(VmError::host("a thread"))?;
        Ok(Vm { guest, events })
    }
}

/// Another descriptor of the event by which threads ask the guest to end.
pub(super) fn another(stop_request: &EventFd) -> Result<EventFd, VmError> {
    let another = stop_request.try_clone();
    another.map_err(VmError::host("a descriptor"))
}

/// The knowledge of the guest before it runs: from the configuration and its image, or from a note in its image. Reading other images takes too long.
/// Guests with a note start faster than their image could be read on another thread. Other `files` are for Linux guests.
fn known_at_once(
    said: Option<GuestKnowledge>,
    image: &[u8],
    files: &ReadFiles,
) -> Result<GuestKnowledge, VmError> {
    let known = match said {
        Some(said) => Some(said.with_image(image)?),
        None if files.is_empty() => GuestKnowledge::from_noted_image(image)?,
        None => None,
    };
    Ok(known.unwrap_or_else(GuestKnowledge::pending))
}

pub(crate) fn open_sysroot(path: &Path) -> Result<Sysroot, VmError> {
    Sysroot::open(path).map_err(|source| VmError::Sysroot {
        path: path.to_owned(),
        source,
    })
}

/// Opens the file of a recording that will be at `path`, by `names` if there are any.
pub(crate) fn open_recording(
    names: Option<&Arc<OutputNames>>,
    path: &Path,
) -> Result<RecordingOutput, VmError> {
    record(names, path).map_err(|source| VmError::Record {
        path: path.to_owned(),
        source,
    })
}

/// Starts to record into `file`. The recording begins now.
pub(crate) fn start_recorder(
    record: RecordPlan,
    file: RecordingOutput,
    vcpus: usize,
    machine: &MachineInfo,
    clock: &ClockPlan,
) -> Result<FileRecorder, VmError> {
    if let Some(event) = record.event {
        let (kind, event) = (event.kind(), event.kind().name());
        kernel_events::unavailable(kind)
            .map_or(Ok(()), |why| Err(VmError::Event { event, why }))?;
    }
    let looks = record.looks.filter(|looks| looks.scope == TaskScope::All);
    if looks.is_some() && !machine.knowledge.may_list_tasks() {
        return Err(VmError::Tasks);
    }
    let source = record.source(clock.profiling.hz);
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
    FileRecorder::new(record, file, &info).map_err(|source| VmError::Record { path, source })
}
