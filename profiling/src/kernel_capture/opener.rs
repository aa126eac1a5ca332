//! Opens the files of captures: with the rights of the thread that asks, or by a process that keeps the rights for it. A thread that runs a guest should be able
//! to load no program into the host's kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvmprof_attach::sampling::{SamplingError, SamplingHost};
use kvmprof_attach::{HostKernel, HostKernelError, Slots};
use kvmprof_machine::helper::{Answer, Helper, SharedHelper};
use kvmprof_sandbox::process;
use rustix::process::{Pid, getpid};

use super::capture::{CaptureFiles, Contents, VcpuThreadId};
use super::error::KernelCaptureError;
use super::request::CaptureRequest;
use crate::perf_event::has_thread;

/// The process's connection, for all threads of this process.
static HELPER: SharedHelper = SharedHelper::new();

/// The connection to the process that opens captures for this one's guest. The process ends when this is dropped.
#[derive(Debug)]
pub struct CaptureHelper {
    _helper: Arc<Helper>,
}

impl CaptureHelper {
    /// Forks the process. It takes samples of threads of this process alone, which run vCPUs of the guest whose descriptor its first request names. It keeps
    /// CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn fork() -> io::Result<Self> {
        let of = getpid();
        let serve = || {
            // The kernel's types are read with the rights of before.
            let kernel = HostKernel::open().map(Arc::new);
            process::keep_capture_rights()?;
            let mut server = Server {
                process: of,
                kernel,
                host: None,
            };
            Ok(move |request: &[u8]| server.answer(request))
        };
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork(c"kvmprof-bpf", serve) }?;
        Ok(Self {
            _helper: HELPER.share(helper),
        })
    }
}

/// Opens the files of captures of one guest's vCPUs.
#[derive(Debug)]
pub struct CaptureOpener {
    host: SamplingHost,
    /// The process that does it, and the VM's descriptor in this process.
    helper: Option<(Arc<Helper>, i32)>,
}

impl CaptureOpener {
    /// Captures by the rights of the threads that ask, of the guest of `host`.
    pub fn here(host: SamplingHost) -> Self {
        Self { host, helper: None }
    }

    /// Captures of the guest of this process behind the descriptor `vm`, by the process of [`CaptureHelper`] if there is one.
    pub fn own(host: SamplingHost, vm: i32) -> Self {
        let helper = HELPER.get();
        Self {
            helper: helper.map(|helper| (helper, vm)),
            ..Self::here(host)
        }
    }

    /// What is known of the host's samples.
    pub fn host(&self) -> &SamplingHost {
        &self.host
    }

    /// Opens the files of a capture. Its clock doesn't run yet.
    pub(super) fn open(
        &self,
        slots: &Slots,
        thread: VcpuThreadId,
        contents: Contents<'_>,
        period: u64,
    ) -> Result<CaptureFiles, KernelCaptureError> {
        let Some((helper, vm)) = &self.helper else {
            return CaptureFiles::open(&self.host, slots, thread, contents, period);
        };
        let tid = match thread.tid {
            0 => rustix::thread::gettid().as_raw_pid(),
            tid => tid,
        };
        let request = CaptureRequest {
            vm: *vm,
            takes_host_stacks: self.host.host_stacks().is_some(),
            thread: VcpuThreadId { tid, ..thread },
            period,
            stacks: contents.stacks,
            slots: slots.clone(),
            places: contents.places.cloned(),
        };
        let files = helper.ask(&request.encode());
        let mut files = files.map_err(KernelCaptureError::Helper)?.into_iter();
        let (Some(clock), Some(output)) = (files.next(), files.next()) else {
            let error = io::Error::other("it has sent no files");
            return Err(KernelCaptureError::Helper(error));
        };
        Ok(CaptureFiles {
            clock: clock.into(),
            output: output.into(),
            program: files.collect(),
        })
    }
}

/// The process's side.
struct Server {
    /// The process whose threads are sampled.
    process: Pid,
    kernel: Result<Arc<HostKernel>, HostKernelError>,
    /// The guest, by its VM's descriptor. A process has one.
    host: Option<(i32, SamplingHost)>,
}

impl Server {
    fn answer(&mut self, request: &[u8]) -> Answer {
        let request = CaptureRequest::decode(request).ok_or("it isn't asked so")?;
        if !has_thread(self.process, request.thread.tid) {
            return Err("the thread isn't one of kvmprof's".to_owned());
        }
        let files = self.open(&request).map_err(|error| error.to_string())?;
        let events = [files.clock, files.output].map(OwnedFd::from);
        Ok(events.into_iter().chain(files.program).collect())
    }

    fn open(&mut self, request: &CaptureRequest) -> Result<CaptureFiles, KernelCaptureError> {
        let (vm, host) = match &mut self.host {
            Some(known) => known,
            none => {
                let kernel = (self.kernel.as_ref()).map_err(|error| {
                    KernelCaptureError::Helper(io::Error::other(error.to_string()))
                })?;
                let pid = self.process.as_raw_pid();
                let host = SamplingHost::own(Arc::clone(kernel), pid, request.vm)?;
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
