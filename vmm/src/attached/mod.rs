//! Profiles a guest that another program runs. Its vCPUs are stopped by ptrace(2) for each sample, or the host's kernel takes
//! samples. Everything else works as for a guest that kvmprof runs.

mod attachment;
mod backend;
mod console_file;
mod dump;
mod error;
mod guest_names;
mod kernel_files;
mod kernel_finder;
mod process_watch;
mod reboot;
mod restart;
mod threads;
mod vcpu;
mod vcpu_look;

use std::cell::RefCell;
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::thread;
use std::time::Duration;

use event_manager::MutEventSubscriber;
use kvmprof_attach::remote::{Channel, Guest, RemoteVcpu};
use kvmprof_attach::sampling::RecordForm;
use kvmprof_attach::tracer::{StopOutcome, TraceError};
use kvmprof_attach::{AttachError, Machine};
use kvmprof_devices::endpoint::{Backend, HelloInfo};
use kvmprof_introspection::GuestKnowledge;
use kvmprof_machine::helper::Helper;
use kvmprof_machine::output_names::{OutputNames, listen};
use kvmprof_machine::unix_socket::SocketListener;
use kvmprof_profiling::binaries::BinarySources;
use kvmprof_profiling::clock::HaltedTicks;
use kvmprof_profiling::counters::MachineCounters;
use kvmprof_profiling::host_socket::HostSocket;
use kvmprof_profiling::kernel_capture::{self, CaptureOpener, VcpuThreadId};
use kvmprof_profiling::profiler::{
    ClockPlan, DeviceMonitors, FileRecorder, MachineInfo, Profiler, RestartTimes,
};
use kvmprof_profiling::sampling::{Doorbell, Gate, RegisterSource};
use kvmprof_profiling::signals::{self, take_signals_here};
use kvmprof_profiling::{ProfilingConfig, RecordPlan};
use kvmprof_recording::Sysroot;
use kvmprof_sandbox::Thread;

use crate::vm::{
    EventLoop, Profiled, ReadFile, ReadFiles, RecordingOutput, Services, Termination, TimeLimit,
    VmError, open_recording, open_sysroot, restrict_paths, set_unheard, start_recorder,
};
use kernel_files::{known, look_once, sorted};
use kernel_finder::KernelFinder;
use process_watch::ProcessWatch;
use restart::Restart;
use threads::AttachedThreads;
use vcpu::{AttachedCommon, SampledVcpu};

pub use attachment::Attachment;
pub use console_file::{ConsoleFile, ConsoleLooks, ConsoleText, POLL as CONSOLE_POLL};
pub use dump::{DumpConfig, DumpError, Dumped, dump};
pub use error::AttachedError;
pub use guest_names::{GuestNames, contain};

/// How often kvmprof tries to stop a slow vCPU's thread, each time for 0.2 s, before it refuses the guest.
const MAX_TRIES: u32 = 25;

/// The guest to attach to, and how to profile it.
#[derive(Debug)]
pub struct AttachConfig {
    /// The guest.
    pub attachment: Attachment,
    /// The guest's kernel file, or another file of its build; `None` to find the kernel in the guest's memory.
    pub kernel: Option<PathBuf>,
    /// How long to profile it at most; `None` for no limit.
    pub time_limit: Option<Duration>,
    /// The text of its console that ends the profiling.
    pub until: Option<ConsoleText>,
    /// How to profile it: as when the attachment was opened. What takes samples is [`ClockSource::Ptrace`](kvmprof_profiling::clock::ClockSource) or `Kernel`.
    pub profiling: ProfilingConfig,
    /// The process that makes the socket and the file of the recording, and renames and removes them.
    pub output_names: Option<Arc<OutputNames>>,
    /// Whether this process is restricted to the files that it can need (`kvmprof_sandbox::paths`).
    pub restrict_paths: bool,
}

/// Why the profiling of a guest has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedEnd {
    /// A signal has ended it.
    Stopped,
    /// The guest or its VMM has ended.
    Guest,
    /// The guest has rebooted into more kernels than can be known.
    OtherKernel,
    /// The process that traces the VMM has ended. The VMM goes on.
    NoTracer,
    /// The recording can't be written any more, and there is no socket by which others would get samples.
    NoOutput,
}

/// Profiles the guest of `config` until it ends, or one of the signals of [`crate::vm::block_signals`] comes. Threads of this process are contained, if
/// `kvmprof_sandbox` was told to: this one, too, from when all others run.
///
/// # Errors
/// The guest can't be attached to.
pub fn attach(config: AttachConfig) -> Result<AttachedEnd, AttachedError> {
    signals::block().map_err(VmError::host("to block signals"))?;
    // Another program's memory can keep this thread waiting (userfaultfd(2)).
    set_unheard(true);
    // The processes end only with these: other threads, which ask them, may not wait for a process.
    let names = config.output_names.clone();
    let tracer = Arc::clone(&config.attachment.helper);
    let opened = Opened::open(config)?;
    let (server, threads, rings) = opened.contain()?.start()?;
    let events = thread::Builder::new().name("events".into());
    let events = events
        .spawn(move || server.serve(threads, rings))
        .map_err(VmError::host("a thread"))?;
    kvmprof_sandbox::enter(Thread::Main);
    let end = events
        .join()
        .map_err(|_| VmError::panicked("the event thread"))?;
    drop((names, tracer));
    end
}

/// What has to be open before this process is contained.
struct Opened {
    attachment: Attachment,
    profiling: ProfilingConfig,
    restrict_paths: bool,
    time_limit: Option<Duration>,
    console: Option<ConsoleFile>,
    listener: Option<SocketListener>,
    recording: Option<RecordingOutput>,
    kernel: Option<ReadFile>,
    files: ReadFiles,
    sysroot: Option<Sysroot>,
}

impl Opened {
    fn open(config: AttachConfig) -> Result<Self, AttachedError> {
        let AttachConfig {
            mut attachment,
            kernel,
            time_limit,
            until,
            profiling,
            output_names,
            restrict_paths,
        } = config;
        let machine = &attachment.machine;
        check(&mut attachment.guest.watched, machine.pid)?;
        name_left_out(machine);
        let console = until.map(ConsoleFile::open).transpose()?;
        let socket = profiling.socket.as_deref();
        let names = output_names.as_ref();
        let listener = socket.map(|path| listen(names, path)).transpose()?;
        let record = profiling.record.as_ref();
        let recording = record
            .map(|record| open_recording(names, &record.path))
            .transpose()?;
        let kernel = kernel.as_deref().map(ReadFile::read).transpose()?;
        let files = ReadFiles::read(&profiling)?;
        let sysroot = profiling.sysroot.as_deref();
        let sysroot = sysroot.map(open_sysroot).transpose()?;
        Ok(Self {
            attachment,
            profiling,
            restrict_paths,
            time_limit,
            console,
            listener,
            recording,
            kernel,
            files,
            sysroot,
        })
    }

    /// Gives up what isn't needed to parse what the guest has made.
    fn contain(self) -> Result<Self, AttachedError> {
        if self.restrict_paths {
            restrict_paths(&self.profiling)?;
        }
        // Other threads have none.
        give_up_rights(&[Thread::BinariesWithSysroot])?;
        Ok(self)
    }

    /// Starts the threads that sample the guest.
    fn start(mut self) -> Result<(Server, AttachedThreads, Vec<Profiled>), AttachedError> {
        let Attachment {
            machine,
            guest,
            files,
            vmm,
            tracer,
            helper,
            records,
            host_stacks,
            events,
        } = self.attachment;
        let host_stacks = host_stacks.map(|open| Arc::new(open.read()));
        let (kernel, build) = sorted(self.kernel, self.files)?;
        let knowledge = known(self.profiling.knowledge.take(), kernel.as_ref(), &build)?;
        let knowledge = Arc::new(self.profiling.restricted(knowledge));
        let records = records.map(|form| form.with_host_stacks(host_stacks.clone()));
        let sampling = sampling_opener(records, &helper, &guest, &knowledge)?;
        let schedstat = files.iter().map(|files| another(files.schedstat.as_ref()));
        let schedstat = schedstat.collect();
        let sampled_at_once = !knowledge.is_pending();
        let is_compared = sampled_at_once || !build.is_empty();
        let mut finder = KernelFinder::new(guest.watching, guest.watched, build);
        if is_compared {
            look_once(&mut finder, kernel, &knowledge)?;
        }
        let doorbell = Arc::new(Doorbell::new().map_err(VmError::host("an eventfd"))?);
        let (plan, mut record) = plan(self.profiling);
        let is_only = self.listener.is_none();
        let only_output = record.as_mut().filter(|_| is_only).map(|record| {
            record.file.waker = Some(Arc::clone(&doorbell).into());
            record.file.failure.clone()
        });
        let restart = Arc::<Restart>::default();
        let restarts = restart.times();
        let info = MachineInfo {
            host_stacks,
            events,
            ..machine_info(&machine, &guest.control, &knowledge, restarts)
        };
        let [memory, modules] = guest.others;
        let sources = BinarySources::new(memory, Arc::clone(&knowledge), None, self.sysroot);
        let sampled = numbers(&machine).zip(guest.vcpus).zip(files);
        let sampled = sampled.map(|((cpu, remote), files)| SampledVcpu { cpu, remote, files });
        let sampled: Vec<SampledVcpu> = sampled.collect();
        let recorder = record
            .zip(self.recording)
            .map(|(record, file)| start_recorder(record, file, sampled.len(), &info, &plan))
            .transpose()?;
        let common = AttachedCommon {
            vcpus: AtomicU32::new(guest.vcpu_count.unwrap_or(u32::MAX)),
            control: guest.control,
            knowledge,
            sampled: Gate::opened_if(sampled_at_once),
            profiling: Arc::clone(&plan.profiling),
            refreshed: AtomicU64::new(0),
            in_doubt: AtomicBool::new(false),
            restart: Arc::clone(&restart),
            has_other_kernel: AtomicBool::new(false),
            guest_has_ended: vmm.has_ended(),
            tracer_has_ended: tracer.has_ended(),
            only_output,
            doorbell: Arc::clone(&doorbell),
            stopping: Arc::new(AtomicBool::new(false)),
            sampling,
        };
        let started = AttachedThreads::start(sampled, common);
        let (mut threads, rings) = started.map_err(VmError::host("a thread"))?;
        let introspected = threads.introspect(finder, schedstat, modules);
        introspected.map_err(VmError::host("a thread"))?;
        let server = Server {
            listener: self.listener,
            plan,
            info,
            sources,
            recorder,
            time_limit: self.time_limit,
            console: self.console,
            watches: [vmm, tracer],
            doorbell,
        };
        Ok((server, threads, rings))
    }
}

/// Gives up all rights but those of these threads, if this process is contained.
fn give_up_rights(threads: &[Thread]) -> Result<(), AttachedError> {
    if kvmprof_sandbox::filters::is_prepared() {
        kvmprof_sandbox::process::keep_rights_of(threads)
            .map_err(VmError::host("to give up rights"))?;
    }
    Ok(())
}

/// How the clocks make ticks, and the recording that is made from the start.
fn plan(mut profiling: ProfilingConfig) -> (ClockPlan, Option<RecordPlan>) {
    let (source, record) = (profiling.source, profiling.record.take());
    let plan = ClockPlan {
        fallback: source,
        of_recordings: source,
        profiling: Arc::new(profiling),
        registers: RegisterSource::Ioctls,
    };
    (plan, record)
}

fn another(file: Option<&File>) -> Option<File> {
    file.and_then(|file| file.try_clone().ok())
}

/// The description of the guest's machine for recordings and the status.
fn machine_info(
    machine: &Machine,
    memory: &Channel,
    knowledge: &Arc<GuestKnowledge>,
    restarts: Arc<RestartTimes>,
) -> MachineInfo {
    MachineInfo {
        monitors: DeviceMonitors::default(),
        kernel: name(machine),
        memory_bytes: memory.slots().bytes(),
        devices: None,
        counters: MachineCounters::default(),
        knowledge: Arc::clone(knowledge),
        memory: None,
        host_stacks: None,
        events: Vec::new(),
        halted_ticks: Some(HaltedTicks::AtWakeUp),
        restarts,
    }
}

/// The numbers of the vCPUs' CPUs in the guest, as far as they are known without the guest: their positions among all vCPUs.
fn numbers(machine: &Machine) -> impl Iterator<Item = u16> {
    let vcpus = machine.vcpus.iter().zip(0..);
    vcpus.filter_map(|(vcpu, number)| vcpu.thread.map(|_| number))
}

/// Logs the vCPUs that aren't sampled, because no thread is known that runs them.
fn name_left_out(machine: &Machine) {
    let left_out = machine.vcpus.iter().filter(|vcpu| vcpu.thread.is_none());
    let names: Vec<String> = left_out.map(|vcpu| vcpu.index.to_string()).collect();
    if !names.is_empty() {
        log::warn!(
            "vCPUs that haven't run yet aren't sampled: {}; attach again once they have",
            names.join(", ")
        );
    }
}

/// Checks that the vCPUs' registers can be read: an error is better reported now than at the first tick.
fn check(vcpus: &mut [RemoteVcpu], pid: i32) -> Result<(), AttachedError> {
    let first = vcpus.first_mut().ok_or(AttachedError::NoVcpus(pid))?;
    let mut tries = 0;
    loop {
        tries += 1;
        match first.look(|vcpu| vcpu.registers()) {
            Ok(StopOutcome::Gone) => return Err(AttachError::Ended(pid).into()),
            Ok(_) => return Ok(()),
            // The host may be busy, or the thread at a moment at which it can't be moved.
            Err(TraceError::Slow | TraceError::Restartable | TraceError::Signal(_))
                if tries < MAX_TRIES => {}
            Err(source) => return Err(AttachedError::Trace { pid, source }),
        }
    }
}

/// What has the host's kernel take samples, with records of this form; `None` if it isn't to.
fn sampling_opener(
    form: Option<RecordForm>,
    tracer: &Arc<Helper>,
    guest: &Guest,
    knowledge: &GuestKnowledge,
) -> Result<Option<Arc<CaptureOpener>>, AttachedError> {
    let Some(form) = form else {
        return Ok(None);
    };
    let opener = CaptureOpener::by_tracer(form, Arc::clone(tracer));
    let vcpus = guest.vcpus.iter().map(|vcpu| VcpuThreadId {
        descriptor: vcpu.descriptor(),
        tid: vcpu.thread(),
    });
    let vcpus: Vec<VcpuThreadId> = vcpus.collect();
    kernel_capture::check(&opener, &guest.control.slots(), &vcpus, knowledge)
        .map_err(AttachedError::Capture)?;
    Ok(Some(Arc::new(opener)))
}

/// The name of the guest's kernel in recordings and the status.
fn name(machine: &Machine) -> String {
    let pid = machine.pid;
    match &machine.name {
        Some(name) => format!("guest {name} of process {pid}"),
        None => format!("guest of process {pid}"),
    }
}

/// The state that the event loop starts with.
struct Server {
    listener: Option<SocketListener>,
    plan: ClockPlan,
    info: MachineInfo,
    sources: BinarySources,
    recorder: Option<FileRecorder>,
    time_limit: Option<Duration>,
    console: Option<ConsoleFile>,
    watches: [ProcessWatch; 2],
    doorbell: Arc<Doorbell>,
}

impl Server {
    fn serve(
        self,
        threads: AttachedThreads,
        rings: Vec<Profiled>,
    ) -> Result<AttachedEnd, AttachedError> {
        let termination = Termination::new().map_err(VmError::host("to catch signals"))?;
        take_signals_here().map_err(VmError::host("to take signals"))?;
        set_unheard(false);
        let hello = HelloInfo {
            vcpus: u32::try_from(rings.len()).unwrap_or(u32::MAX),
            hz: self.plan.profiling.hz,
        };
        let profiler = Rc::new(RefCell::new(Profiler::new(
            rings,
            self.plan,
            // The guest runs already.
            Arc::new(Gate::opened_if(true)),
            self.info,
            None,
            self.sources,
        )));
        if let Some(recorder) = self.recorder {
            profiler.borrow_mut().record(recorder);
        }
        let backend: Rc<RefCell<dyn Backend>> = profiler.clone();
        let room = profiler.borrow().room();
        let socket = self
            .listener
            .map(|listener| HostSocket::new(listener, hello, backend, room))
            .transpose()?;
        let services = Services {
            profiler,
            socket,
            ports: None,
            hvc: None,
        };
        let watches = self
            .watches
            .map(|watch| -> Box<dyn MutEventSubscriber> { Box::new(watch) });
        let mut subscribers = Vec::from(watches);
        if let Some(time) = self.time_limit {
            subscribers.push(Box::new(TimeLimit::start(time, &termination)?));
        }
        if let Some(console) = self.console {
            subscribers.push(Box::new(console.start(&termination)?));
        }
        let events = EventLoop::new(services, self.doorbell, termination, subscribers)?;
        kvmprof_sandbox::enter(Thread::Events);
        Ok(events.run(threads)?.unwrap_or(AttachedEnd::Stopped))
    }
}
