//! Opens the files of captures by a process, or a thread, that keeps the rights for it. A thread that runs a guest should be able to load no program into the
//! host's kernel.

use std::fs::File;
use std::io;
use std::sync::Arc;

use kvmprof_attach::sampling::{RecordForm, SamplingError, SamplingHost};
use kvmprof_attach::{AttachedMemory, HostKernel, HostStacks, Slots};
use kvmprof_machine::helper::{Answer, Helper};
use kvmprof_recording::StackParts;
use kvmprof_sandbox::process;
use rustix::process::{Pid, getpid};

use super::capture::{CaptureFiles, Contents, Period, VcpuThreadId, map_again, map_ring};
use super::error::KernelCaptureError;
use super::request::CaptureRequest;
use super::ring::PerfRing;
use crate::perf_event::has_thread;

/// The connection to the process that opens captures for this one's guest. The process ends when this is dropped.
#[derive(Debug)]
pub struct CaptureHelper {
    helper: Helper,
    form: Result<RecordForm, Arc<SamplingError>>,
}

impl CaptureHelper {
    /// Forks the process. It takes samples of threads of this process alone, which run vCPUs of the guest whose descriptor its first request names. It keeps
    /// CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN, and it alone keeps the file by which the host kernel's memory is read.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn fork() -> io::Result<Self> {
        let (mut server, form) = Server::of(getpid());
        let serve = || {
            process::keep_capture_rights()?;
            Ok(move |request: &[u8]| server.answer(request))
        };
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork(c"kvmprof-bpf", serve) }?;
        Ok(Self { helper, form })
    }

    /// The same by a thread of this process, which isn't contained: for programs that contain other threads, or none.
    ///
    /// # Errors
    /// The host gives no socket or thread.
    pub fn on_thread() -> io::Result<Self> {
        let (mut server, form) = Server::of(getpid());
        let answer = move |request: &[u8]| server.answer(request);
        let helper = Helper::on_thread("captures", answer)?;
        Ok(Self { helper, form })
    }
}

/// Opens the files of captures of one guest's vCPUs.
#[derive(Debug)]
pub struct CaptureOpener {
    form: RecordForm,
    by: RightsOf,
}

/// By whose rights.
#[derive(Debug)]
enum RightsOf {
    /// Those of another process, which knows the guest by the VM's descriptor in this process, and gets the memory slots with each request.
    Helper(Arc<CaptureHelper>, i32),
    /// Those of the process that traces the guest's VMM, which has found the guest and its memory slots itself.
    Tracer(Arc<Helper>),
}

impl CaptureOpener {
    /// Captures of the guest of this process behind the descriptor `vm`, by `helper`. With `host_stacks`, there are records of the host's stacks, too.
    ///
    /// # Errors
    /// The host's kernel can't be read, or this version doesn't support it.
    pub fn own(
        vm: i32,
        host_stacks: Option<Arc<HostStacks>>,
        helper: Arc<CaptureHelper>,
    ) -> Result<Self, KernelCaptureError> {
        let form = helper.form.clone().map_err(KernelCaptureError::Host)?;
        Ok(Self {
            form: form.with_host_stacks(host_stacks),
            by: RightsOf::Helper(helper, vm),
        })
    }

    /// Captures with records of this `form` by the process `tracer`, which answers by [`TracedCaptures`].
    pub fn by_tracer(form: RecordForm, tracer: Arc<Helper>) -> Self {
        let by = RightsOf::Tracer(tracer);
        Self { form, by }
    }

    /// The form of the records.
    pub fn form(&self) -> &RecordForm {
        &self.form
    }

    /// Maps the ring of `output` for records with these parts of stacks.
    pub(super) fn map(&self, output: &File, stacks: StackParts) -> io::Result<PerfRing> {
        match self.by {
            RightsOf::Tracer(_) => map_again(output),
            _ => map_ring(output, self.form.max_record_bytes(stacks)),
        }
    }

    /// Opens the files of a capture. Its clock doesn't run yet.
    pub(super) fn open(
        &self,
        slots: &Slots,
        thread: VcpuThreadId,
        contents: Contents<'_>,
        period: Period,
    ) -> Result<CaptureFiles, KernelCaptureError> {
        let (helper, vm, slots) = match &self.by {
            RightsOf::Helper(helper, vm) => (&helper.helper, *vm, slots.clone()),
            RightsOf::Tracer(helper) => (&**helper, 0, Slots::default()),
        };
        let tid = match thread.tid {
            0 => rustix::thread::gettid().as_raw_pid(),
            tid => tid,
        };
        let request = CaptureRequest {
            vm,
            takes_host_stacks: self.form.takes_host_stacks(),
            thread: VcpuThreadId { tid, ..thread },
            period,
            stacks: contents.stacks,
            slots,
            places: contents.places.cloned(),
        };
        let refused = match &self.by {
            RightsOf::Tracer(_) => KernelCaptureError::Tracer,
            _ => KernelCaptureError::Helper,
        };
        let mut files = helper.ask(&request.encode()).map_err(refused)?.into_iter();
        let (Some(event), Some(output)) = (files.next(), files.next()) else {
            return Err(refused(io::Error::other("no files were sent")));
        };
        Ok(CaptureFiles {
            event: event.into(),
            output: output.into(),
            program: files.collect(),
        })
    }
}

/// Opens the files of captures in the process that traces a guest's VMM, for another process without rights.
#[derive(Debug)]
pub struct TracedCaptures {
    host: SamplingHost,
    memory: Arc<AttachedMemory>,
    /// The vCPUs, each with the ring of its last capture: see [`Self::answer`].
    vcpus: Vec<(VcpuThreadId, Option<PerfRing>)>,
}

impl TracedCaptures {
    /// Captures of these vCPUs of the guest whose memory is `memory`, by `host`, and of no other threads.
    pub fn new(host: SamplingHost, memory: Arc<AttachedMemory>, vcpus: Vec<VcpuThreadId>) -> Self {
        Self {
            host,
            memory,
            vcpus: vcpus.into_iter().map(|vcpu| (vcpu, None)).collect(),
        }
    }

    /// The form of the records.
    pub fn form(&self) -> RecordForm {
        self.host.form()
    }

    /// Answers a request of [`CaptureOpener::by_tracer`]. Only what is sampled of a vCPU, and how often, is up to the request.
    ///
    /// The ring is mapped here, by the right to lock memory. While it is mapped, any process with the file may map the same ring without that right
    /// (`perf_mmap` in `kernel/events/core.c`).
    ///
    /// # Errors
    /// What kvmprof doesn't ask for, or the host's kernel refuses, in words.
    pub fn answer(&mut self, request: &[u8]) -> Answer {
        let request = CaptureRequest::decode(request).ok_or("it isn't asked so")?;
        let mut vcpus = self.vcpus.iter_mut();
        let vcpu = vcpus.find(|(thread, _)| *thread == request.thread);
        let (_, ring) = vcpu.ok_or("the thread isn't one of the guest's vCPUs")?;
        let opened = CaptureFiles::open(
            &self.host,
            &self.memory.slots(),
            request.thread,
            request.contents(),
            request.period,
        );
        let files = opened.map_err(|error| error.to_string())?;
        let bytes = self.host.form().max_record_bytes(request.stacks);
        let mapped = map_ring(&files.output, bytes).map_err(KernelCaptureError::Ring);
        *ring = Some(mapped.map_err(|error| error.to_string())?);
        Ok(files.into_answer())
    }
}

/// The process's side.
struct Server {
    /// The process whose threads are sampled.
    process: Pid,
    kernel: Result<Arc<HostKernel>, Arc<SamplingError>>,
    /// The guest, by its VM's descriptor. A process has one.
    host: Option<(i32, SamplingHost)>,
}

impl Server {
    /// That of `process`, and the form of the records. The host's kernel is opened with the rights of before.
    fn of(process: Pid) -> (Self, Result<RecordForm, Arc<SamplingError>>) {
        let opened = HostKernel::open()
            .map_err(SamplingError::from)
            .and_then(|kernel| Ok((RecordForm::of(&kernel)?, Arc::new(kernel))));
        let (form, kernel) = match opened {
            Ok((form, kernel)) => (Ok(form), Ok(kernel)),
            Err(error) => {
                let error = Arc::new(error);
                (Err(Arc::clone(&error)), Err(error))
            }
        };
        let server = Self {
            process,
            kernel,
            host: None,
        };
        (server, form)
    }

    fn answer(&mut self, request: &[u8]) -> Answer {
        let request = CaptureRequest::decode(request).ok_or("it isn't asked so")?;
        if !has_thread(self.process, request.thread.tid) {
            return Err("the thread isn't one of kvmprof's".to_owned());
        }
        let files = self.open(&request).map_err(|error| error.to_string())?;
        Ok(files.into_answer())
    }

    fn open(&mut self, request: &CaptureRequest) -> Result<CaptureFiles, KernelCaptureError> {
        let (vm, host) = match &mut self.host {
            Some(known) => known,
            none => {
                let kernel = self.kernel.clone().map_err(KernelCaptureError::Host)?;
                let pid = self.process.as_raw_pid();
                let host = SamplingHost::own(kernel, pid, request.vm)?;
                let host = host.with_records_of_host_stacks(request.takes_host_stacks);
                none.insert((request.vm, host))
            }
        };
        if *vm != request.vm {
            return Err(SamplingError::NoGuest.into());
        }
        CaptureFiles::open(
            host,
            &request.slots,
            request.thread,
            request.contents(),
            request.period,
        )
    }
}
