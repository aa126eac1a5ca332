//! Profiles a guest that another program runs. Its vCPUs are stopped by ptrace(2) for each sample, or the host's kernel takes
//! samples. Everything else works as for a guest that kvmprof runs.

mod backend;
mod error;
mod kernel_finder;
mod reboot;
mod threads;
mod vcpu;
mod vmm_watch;

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use event_manager::MutEventSubscriber;
use kvmprof_attach::sampling::SamplingHost;
use kvmprof_attach::tracer::{StopOutcome, ThreadCode, TraceError, TracedVcpu};
use kvmprof_attach::{AttachError, AttachedMemory, HostKernel, HostStacks, Machine};
use kvmprof_devices::endpoint::{Backend, HelloInfo};
use kvmprof_introspection::{GuestKnowledge, IntrospectionError};
use kvmprof_profiling::kernel_capture::CaptureOpener;

use crate::vm::{
    EventLoop, Profiled, Services, Termination, VmError, open_sysroot, set_unheard, start_recorder,
};
use kernel_finder::KernelFinder;
use kvmprof_machine::unix_socket::SocketListener;
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::binaries::BinarySources;
use kvmprof_profiling::clock::{ClockSource, HaltedTicks};
use kvmprof_profiling::counters::MachineCounters;
use kvmprof_profiling::host_socket::HostSocket;
use kvmprof_profiling::kernel_capture::{self, KernelCaptureError};
use kvmprof_profiling::profiler::{ClockPlan, DeviceMonitors, FileRecorder, MachineInfo, Profiler};
use kvmprof_profiling::sampling::Gate;
use kvmprof_profiling::sampling::{Doorbell, RegisterSource};
use kvmprof_profiling::signals::{self, take_signals_here};
use threads::AttachedThreads;
use vcpu::AttachedCommon;
use vmm_watch::VmmWatch;

pub use error::AttachedError;

/// How often kvmprof tries to stop a slow vCPU's thread, each time for 0.2 s, before it refuses the guest.
const MAX_TRIES: u32 = 25;

/// The guest to attach to, and how to profile it.
#[derive(Debug)]
pub struct AttachConfig {
    /// The guest.
    pub machine: Machine,
    /// The host's kernel, which knows where the guest's memory is.
    pub host: Arc<HostKernel>,
    /// The guest's kernel file; `None` to find the kernel in the guest's memory.
    pub kernel: Option<PathBuf>,
    /// How to profile it. What takes samples is [`ClockSource::Ptrace`] or [`ClockSource::Kernel`].
    pub profiling: ProfilingConfig,
}

/// Why the profiling of a guest has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedEnd {
    /// A signal has ended it.
    Stopped,
    /// The guest or its VMM has ended.
    Guest,
    /// The guest has rebooted, so that the knowledge of its kernel is outdated.
    Reboot,
}

/// Profiles the guest of `config` until it ends, or one of the signals of [`crate::vm::block_signals`] comes.
///
/// # Errors
/// The guest can't be attached to.
pub fn attach(mut config: AttachConfig) -> Result<AttachedEnd, AttachedError> {
    signals::block().map_err(VmError::host("to block signals"))?;
    // Another program's memory can keep this thread waiting (userfaultfd(2)).
    set_unheard(true);
    let pid = config.machine.pid;
    let watch = VmmWatch::new(pid).map_err(VmError::host("to watch the VMM"))?;
    let memory = Arc::new(AttachedMemory::open(
        &config.machine,
        Arc::clone(&config.host),
    )?);
    let code = ThreadCode::find(pid)?;
    let vcpus = vcpus_with_threads(&config.machine);
    let traced = vcpus
        .iter()
        .map(|(descriptor, tid)| TracedVcpu::new(pid, *tid, *descriptor, code));
    let mut traced: Vec<TracedVcpu> = traced.collect();
    // Another process may have the pid by now. Its threads aren't the guest's.
    if let Err(error @ AttachError::Ended(_)) = memory.refresh() {
        return Err(error.into());
    }
    check(&mut traced, pid)?;
    name_left_out(&config.machine);
    let vcpu_count = memory.vcpu_count().unwrap_or(u32::MAX);
    let socket = config.profiling.socket.as_deref();
    let listener = socket.map(SocketListener::bind).transpose()?;
    let knowledge = Arc::new(known(&mut config)?);
    let sampled = numbers(&config.machine).zip(traced.iter().map(TracedVcpu::another));
    let sampled = sampled.collect();
    let sampled_at_once = !knowledge.is_pending();
    let mut finder = KernelFinder::new(traced);
    if sampled_at_once {
        look_once(&mut finder, &config, &memory, &knowledge)?;
    }
    let source = config.profiling.source;
    let host_stacks = (config.profiling.host_stacks && source == ClockSource::Kernel)
        .then(|| HostStacks::read(pid).map(Arc::new))
        .transpose()
        .map_err(AttachedError::HostStacks)?;
    let sampling = sampling_host(source, &memory, &knowledge, &vcpus, host_stacks.clone())
        .map_err(AttachedError::Capture)?;
    let record = config.profiling.record.take();
    let plan = ClockPlan {
        fallback: source,
        of_recordings: source,
        profiling: Arc::new(config.profiling),
        registers: RegisterSource::Ioctls,
    };
    let info = machine_info(&config.machine, &memory, &knowledge, host_stacks);
    let sysroot = plan.profiling.sysroot.as_deref();
    let sysroot = sysroot.map(open_sysroot).transpose()?;
    let sources = BinarySources::new(memory.clone(), Arc::clone(&knowledge), None, sysroot);
    let recorder = record
        .map(|record| start_recorder(record, vcpus.len(), &info, &plan))
        .transpose()?;
    let doorbell = Arc::new(Doorbell::new().map_err(VmError::host("an eventfd"))?);
    let common = AttachedCommon {
        memory,
        knowledge: Arc::clone(&knowledge),
        sampled: Gate::opened_if(sampled_at_once),
        profiling: Arc::clone(&plan.profiling),
        refreshed: AtomicU64::new(0),
        in_doubt: AtomicBool::new(false),
        has_rebooted: AtomicBool::new(false),
        vcpus: AtomicU32::new(vcpu_count),
        guest_has_ended: watch.has_ended(),
        doorbell: Arc::clone(&doorbell),
        stopping: Arc::new(AtomicBool::new(false)),
        sampling,
    };
    let (mut threads, rings) =
        AttachedThreads::start(sampled, common).map_err(VmError::host("a thread"))?;
    threads
        .introspect(finder)
        .map_err(VmError::host("a thread"))?;
    let server = Server {
        listener,
        plan,
        info,
        sources,
        recorder,
        watch,
        doorbell,
    };
    server.serve(threads, rings)
}

/// Compares the guest's kernel with that of the file: an error is better reported now than at the first tick.
fn look_once(
    finder: &mut KernelFinder,
    config: &AttachConfig,
    memory: &Arc<AttachedMemory>,
    knowledge: &GuestKnowledge,
) -> Result<(), AttachedError> {
    match finder.look_apart(memory, knowledge) {
        Ok(()) => {}
        Err(source @ IntrospectionError::OtherBuild { .. }) => {
            let path = config.kernel.clone().unwrap_or_default();
            return Err(AttachedError::Kernel { path, source });
        }
        Err(error) => log::warn!("Samples have no processes for now: {error}"),
    }
    Ok(())
}

/// The description of the guest's machine for recordings and the status.
fn machine_info(
    machine: &Machine,
    memory: &AttachedMemory,
    knowledge: &Arc<GuestKnowledge>,
    host_stacks: Option<Arc<HostStacks>>,
) -> MachineInfo {
    MachineInfo {
        monitors: DeviceMonitors::default(),
        kernel: name(machine),
        memory_bytes: memory.slots().bytes(),
        devices: None,
        counters: MachineCounters::default(),
        knowledge: Arc::clone(knowledge),
        memory: None,
        host_stacks,
        halted_ticks: Some(HaltedTicks::AtWakeUp),
    }
}

/// The descriptors and threads of the vCPUs that have a thread, by their numbers.
fn vcpus_with_threads(machine: &Machine) -> Vec<(i32, i32)> {
    let vcpus = machine.vcpus.iter();
    vcpus
        .filter_map(|vcpu| Some((vcpu.descriptor, vcpu.thread?)))
        .collect()
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
fn check(vcpus: &mut [TracedVcpu], pid: i32) -> Result<(), AttachedError> {
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

/// The maker of programs that take samples; `None` if the host's kernel isn't to take samples.
fn sampling_host(
    source: ClockSource,
    memory: &AttachedMemory,
    knowledge: &GuestKnowledge,
    vcpus: &[(i32, i32)],
    host_stacks: Option<Arc<HostStacks>>,
) -> Result<Option<Arc<CaptureOpener>>, KernelCaptureError> {
    if source != ClockSource::Kernel {
        return Ok(None);
    }
    let host = SamplingHost::attached(memory)?.with_host_stacks(host_stacks);
    let opener = CaptureOpener::here(host);
    kernel_capture::check(&opener, &memory.slots(), vcpus, knowledge)?;
    Ok(Some(Arc::new(opener)))
}

/// What is known of the guest before its memory is looked through.
fn known(config: &mut AttachConfig) -> Result<GuestKnowledge, AttachedError> {
    if let Some(knowledge) = config.profiling.knowledge.take() {
        return Ok(knowledge);
    }
    let Some(path) = &config.kernel else {
        return Ok(GuestKnowledge::pending());
    };
    let file = fs::read(path).map_err(|source| AttachedError::Read {
        path: path.clone(),
        source,
    })?;
    let knowledge = match GuestKnowledge::from_noted_image(&file) {
        Ok(Some(noted)) => Ok(noted),
        Ok(None) => GuestKnowledge::from_kernel_image(&file),
        Err(error) => Err(error),
    };
    knowledge.map_err(|source| AttachedError::Kernel {
        path: path.clone(),
        source,
    })
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
    watch: VmmWatch,
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
        let watch: Box<dyn MutEventSubscriber> = Box::new(self.watch);
        let events = EventLoop::new(services, self.doorbell, termination, vec![watch])?;
        Ok(events.run(threads)?.unwrap_or(AttachedEnd::Stopped))
    }
}
