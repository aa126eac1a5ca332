//! What kvmprof needs of a guest of another program. It is opened with all rights. Then another process is forked, which keeps what takes
//! rights, and this one is left with what it needs to parse what that process shows.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvmprof_attach::remote::{self, Guest, StandStill, Tracer};
use kvmprof_attach::sampling::{RecordForm, SamplingHost};
use kvmprof_attach::tracepoint::{ExitTracepoint, FaultTracepoints, TracepointError};
use kvmprof_attach::tracer::{ThreadCode, TracedVcpu};
use kvmprof_attach::{
    AttachError, AttachedMemory, HostKernel, HostStacks, Machine, OpenHostStacks,
};
use kvmprof_machine::helper::Helper;
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_profiling::kernel_capture::{TracedCaptures, VcpuThreadId};
use kvmprof_profiling::kernel_events::{passes_tracepoints, unavailable};
use kvmprof_profiling::signals::block_signals;
use kvmprof_recording::EventKind;
use kvmprof_sandbox::process;
use rustix::process::{PidfdFlags, pidfd_open};

use super::error::AttachedError;
use super::process_watch::ProcessWatch;
use crate::vm::VmError;

/// A guest of another program, which another process looks at for this one. That process ends when this is dropped.
#[derive(Debug)]
pub struct Attachment {
    pub(super) machine: Machine,
    /// What the other process shows.
    pub(super) guest: Guest,
    /// The files of each vCPU's thread.
    pub(super) files: Vec<ThreadFiles>,
    pub(super) vmm: ProcessWatch,
    pub(super) tracer: ProcessWatch,
    pub(super) helper: Arc<Helper>,
    /// The form of the records, if the host's kernel takes samples.
    pub(super) records: Option<RecordForm>,
    /// The functions of the host and the names of exits, if records have either.
    pub(super) host_stacks: Option<OpenHostStacks>,
    /// The events at which the host's kernel takes samples.
    pub(super) events: Vec<EventKind>,
}

/// The files of `/proc` about a vCPU's thread. They stay that thread's: they can't be read any more once it has ended.
#[derive(Debug, Default)]
pub struct ThreadFiles {
    /// The scheduler's statistics, and the status; `None` if the thread has ended.
    pub schedstat: Option<File>,
    pub stat: Option<File>,
}

impl ThreadFiles {
    fn open(pid: i32, tid: i32) -> Self {
        let open = |name| File::open(format!("/proc/{pid}/task/{tid}/{name}")).ok();
        Self {
            schedstat: open("schedstat"),
            stat: open("stat"),
        }
    }
}

/// What the other process does.
struct TracerSide {
    tracer: Tracer,
    captures: Option<TracedCaptures>,
}

impl Attachment {
    /// Opens the guest of `machine`, which was just found by `host`, for profiling as `profiling` says, and forks the process that looks at it, and has each of its
    /// vCPUs `stand_still` so long at most. That process keeps the capabilities for this (`kvmprof_sandbox::process::keep_tracer_rights`).
    ///
    /// # Errors
    /// The guest can't be attached to. It has ended if its process isn't the one any more that was found.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn open(
        machine: Machine,
        host: HostKernel,
        profiling: &ProfilingConfig,
        stand_still: StandStill,
    ) -> Result<Self, AttachedError> {
        let pid = machine.pid;
        // This comes first: if the process is the one that was found after that, so is what the descriptor is for.
        let vmm = ProcessWatch::new(pid).map_err(VmError::host("to watch the VMM"))?;
        let memory = Arc::new(AttachedMemory::open(&machine, Arc::new(host))?);
        let code = ThreadCode::find(pid)?;
        let vcpus = vcpus_with_threads(&machine);
        let traced = vcpus
            .iter()
            .map(|vcpu| TracedVcpu::new(pid, vcpu.tid, vcpu.descriptor, code));
        let traced: Vec<TracedVcpu> = traced.collect();
        let files = vcpus.iter().map(|vcpu| ThreadFiles::open(pid, vcpu.tid));
        let files = files.collect();
        let takes_records = profiling.source == ClockSource::Kernel;
        let mut host_stacks = (profiling.host_stacks && takes_records)
            .then(|| HostStacks::open(pid))
            .transpose()
            .map_err(AttachedError::HostStacks)?;
        let mut events = Vec::new();
        let exits = takes_records
            .then(|| tracepoints(EventKind::KvmExits, ExitTracepoint::read, &mut events))
            .flatten();
        // A fault begins at an exit.
        let faults = (exits.is_some())
            .then(|| tracepoints(EventKind::PageFaults, FaultTracepoints::read, &mut events))
            .flatten();
        let captures = takes_records
            .then(|| captures(&memory, vcpus, host_stacks.is_some(), exits.clone(), faults))
            .transpose()?;
        if let Some(exits) = &exits {
            host_stacks = Some(
                host_stacks
                    .unwrap_or_default()
                    .with_exits(&exits.tracepoint),
            );
        }
        // Another process may have the pid by now. Its threads and files aren't the guest's.
        if let Err(error @ AttachError::Ended(_)) = memory.refresh() {
            return Err(error.into());
        }
        let records = captures.as_ref().map(TracedCaptures::form);
        let (tracer, guest) = remote::divide(&memory, &traced, stand_still)
            .map_err(VmError::host("memory to share"))?;
        drop((memory, traced));
        let side = TracerSide { tracer, captures };
        // SAFETY: by this function's own condition.
        let helper = unsafe { side.fork() }.map_err(VmError::host("a process"))?;
        let ended = || pidfd_of(&helper).map_err(VmError::host("to watch a process"));
        guest.is_traced_by(ended()?);
        let tracer = ProcessWatch::of(ended()?);
        Ok(Self {
            machine,
            guest,
            files,
            vmm,
            tracer,
            helper: Arc::new(helper),
            records,
            host_stacks,
            events,
        })
    }

    /// The guest.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl TracerSide {
    /// Forks the process that has the rights.
    ///
    /// # Safety
    /// As for [`Attachment::open`].
    unsafe fn fork(self) -> io::Result<Helper> {
        let serve = move || {
            // A service manager sends its signals to this process, too. It ends with the other one.
            let prepared = block_signals()
                .and_then(|()| process::give_up())
                .and_then(|()| process::keep_tracer_rights());
            let running = prepared.and_then(|()| self.tracer.start());
            if let Err(error) = &running {
                log::error!("The process that traces the VMM can't start: {error}");
                // SAFETY: it doesn't return. Exit handlers of the parent must not run in this process.
                unsafe { libc::_exit(1) }
            }
            let mut captures = self.captures;
            Ok(move |request: &[u8]| {
                let _is_running = &running;
                match &mut captures {
                    Some(captures) => captures.answer(request),
                    None => Err("the host's kernel takes no samples".to_owned()),
                }
            })
        };
        // SAFETY: by this function's own condition.
        unsafe { Helper::fork(c"kvmprof-tracer", serve) }
    }
}

fn pidfd_of(helper: &Helper) -> io::Result<OwnedFd> {
    let process = helper.process().ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(process, PidfdFlags::empty())?)
}

/// The vCPUs that have a thread, by their numbers.
fn vcpus_with_threads(machine: &Machine) -> Vec<VcpuThreadId> {
    let vcpus = machine.vcpus.iter();
    let with_thread = vcpus.filter_map(|vcpu| {
        Some(VcpuThreadId {
            descriptor: vcpu.descriptor,
            tid: vcpu.thread?,
        })
    });
    with_thread.collect()
}

/// What the host's kernel samples events of this `kind` by, as `read` reads it; the kind is added to `events` then. `None` if it can't.
///
/// Where KVM is known to pass its tracepoints, none is opened to try it: that changes code of the host's kernel that all guests run through.
fn tracepoints<T>(
    kind: EventKind,
    read: impl FnOnce() -> Result<T, TracepointError>,
    events: &mut Vec<EventKind>,
) -> Option<T> {
    let found = match (!passes_tracepoints()).then(|| unavailable(kind)).flatten() {
        None => read().map_err(|error| error.to_string()),
        Some(why) => Err(why),
    };
    match found {
        Ok(found) => {
            events.push(kind);
            Some(found)
        }
        Err(why) => {
            log::debug!("The guest can't be sampled by {}: {why}", kind.name());
            None
        }
    }
}

/// What has the host's kernel take samples of these vCPUs.
fn captures(
    memory: &Arc<AttachedMemory>,
    vcpus: Vec<VcpuThreadId>,
    takes_host_stacks: bool,
    exits: Option<ExitTracepoint>,
    faults: Option<FaultTracepoints>,
) -> Result<TracedCaptures, AttachedError> {
    let host = SamplingHost::attached(memory)
        .map_err(|error| AttachedError::Capture(error.into()))?
        .with_records_of_host_stacks(takes_host_stacks)
        .with_exits(exits)
        .with_faults(faults);
    Ok(TracedCaptures::new(host, Arc::clone(memory), vcpus))
}
