//! A vCPU of another process.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_mp_state, kvm_regs, kvm_sregs};
use libc::{c_uint, pid_t};

use super::code::ThreadCode;
use super::ptrace::Traced;
use super::thread::{MAX_STOP, Stop, StoppedThread, has_stopped, wait};
use super::vmm_thread::VmmThread;

/// `KVM_RUN`, `KVM_GET_REGS`, `KVM_GET_SREGS` and `KVM_GET_MP_STATE` (`include/uapi/linux/kvm.h`).
const KVM_RUN: u64 = 0xae80;
const KVM_GET_REGS: u64 = 0x8090_ae81;
const KVM_GET_SREGS: u64 = 0x8138_ae83;
const KVM_GET_MP_STATE: u64 = 0x8004_ae98;

/// The time between two calls of [`TracedVcpu::let_go`].
pub const SLOW_PAUSE: Duration = Duration::from_millis(2);
/// How often this process tries to trace a thread that the system refuses to trace.
const MAX_ATTEMPTS: u32 = 5;

/// Why a vCPU couldn't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// ptrace(2) is refused.
    #[error(
        "Thread {tid} can't be traced ({source}): that takes CAP_SYS_PTRACE, and CAP_SYS_ADMIN where the thread has a \
         seccomp filter"
    )]
    Refused {
        /// The thread.
        tid: pid_t,
        /// The system's answer.
        source: io::Error,
    },
    /// The thread has ended.
    #[error("The thread has ended")]
    Gone,
    /// The program that the thread executes doesn't have the instructions at the known addresses.
    #[error(
        "The thread executes another program than at first, or that program's C library isn't where it was"
    )]
    OtherProgram,
    /// The thread hasn't stopped in time.
    #[error("The thread doesn't stop")]
    Slow,
    /// The thread executes no 64-bit code.
    #[error("The thread executes 32-bit code")]
    Not64Bit,
    /// ptrace(2) has failed on a traced thread.
    #[error("The thread can't be controlled: {0}")]
    Wait(io::Error),
    /// The thread's registers can't be read or set.
    #[error("The thread's registers can't be read or set: {0}")]
    Registers(io::Error),
    /// The thread's stack can't be used.
    #[error("The memory below the thread's stack can't be used: {0}")]
    Stack(io::Error),
    /// The thread's registers have an unknown form.
    #[error("The processor's extended registers have an unknown form")]
    Unknown,
    /// KVM has refused the vCPU's registers.
    #[error("KVM doesn't tell the vCPU's registers: {0}")]
    Kvm(io::Error),
}

/// The result of a look at a vCPU.
#[derive(Debug, PartialEq, Eq)]
pub enum Look<T> {
    /// The vCPU was stopped, and this is the result of the look.
    Seen(T),
    /// Its process is stopped, by SIGSTOP or the like.
    Suspended,
    /// Another process traces its thread.
    Busy,
    /// Its thread has ended.
    Gone,
}

/// A stopped vCPU.
#[derive(Debug)]
pub struct State<'a> {
    thread: StoppedThread<'a>,
    descriptor: i32,
}

impl State<'_> {
    /// Whether its thread was in KVM_RUN: it was executing the guest, or was halted.
    pub fn is_in_guest(&self) -> bool {
        let registers = self.thread.registers();
        registers.orig_rax == libc::SYS_ioctl.unsigned_abs()
            && registers.rsi & u64::from(u32::MAX) == KVM_RUN
            && registers.rdi == u64::from(self.descriptor.unsigned_abs())
    }

    /// Its registers, from KVM_GET_REGS and KVM_GET_SREGS.
    ///
    /// # Errors
    /// The thread can't be made to do the ioctls, or KVM refuses them.
    pub fn registers(&mut self) -> Result<(kvm_regs, kvm_sregs), TraceError> {
        Ok((self.ask(KVM_GET_REGS)?, self.ask(KVM_GET_SREGS)?))
    }

    /// Whether it runs or is halted, from KVM_GET_MP_STATE.
    ///
    /// # Errors
    /// The thread can't be made to do the ioctl, or KVM refuses it.
    pub fn mp_state(&mut self) -> Result<u32, TraceError> {
        Ok(self.ask::<kvm_mp_state>(KVM_GET_MP_STATE)?.mp_state)
    }

    fn ask<T: Answer>(&mut self, command: u64) -> Result<T, TraceError> {
        let mut answer = T::default();
        // SAFETY: `answer` is alive, and is plain numbers without padding, which any bytes are valid for (see Answer).
        let bytes = unsafe {
            std::slice::from_raw_parts_mut((&raw mut answer).cast::<u8>(), size_of::<T>())
        };
        self.thread.ioctl(self.descriptor, command, bytes)?;
        Ok(answer)
    }
}

/// A structure that KVM fills.
///
/// # Safety
/// It consists of numbers, without padding.
unsafe trait Answer: Default {}

// SAFETY: 18 numbers of 64 bits.
unsafe impl Answer for kvm_regs {}
// SAFETY: bindgen's structures of numbers; what pads them has fields of its own.
unsafe impl Answer for kvm_sregs {}
// SAFETY: a number of 32 bits.
unsafe impl Answer for kvm_mp_state {}

/// A vCPU whose thread is stopped for each look. All looks are made by the same thread.
///
/// A thread that looks at several vCPUs must look at none while another one [is slow](Self::is_slow): if their process executes another program,
/// both processes could wait for each other for ever.
#[derive(Debug)]
pub struct TracedVcpu {
    thread: Arc<VmmThread>,
    descriptor: i32,
    code: ThreadCode,
    /// Whether the thread is traced with its present and later seccomp filters suspended. A process that may not suspend filters traces the
    /// thread only while it has no filter.
    suspends_filters: bool,
    /// A thread that was interrupted and hasn't stopped yet, or that was killed and whose end hasn't been waited for yet.
    slow: Option<Traced>,
}

impl TracedVcpu {
    /// The vCPU of process `pid` with this descriptor, which thread `tid` runs. The process has this `code`.
    ///
    /// If there is no such thread, looks at the vCPU return [`Look::Gone`]. The vCPU keeps the thread that has the id now, even if another thread
    /// gets that id later.
    pub fn new(pid: pid_t, tid: pid_t, descriptor: i32, code: ThreadCode) -> Self {
        Self {
            thread: Arc::new(VmmThread::new(pid, tid)),
            descriptor,
            code,
            suspends_filters: true,
            slow: None,
        }
    }

    /// The same vCPU, for another thread that looks at it.
    #[must_use]
    pub fn another(&self) -> Self {
        Self {
            thread: Arc::clone(&self.thread),
            descriptor: self.descriptor,
            code: self.code,
            suspends_filters: self.suspends_filters,
            slow: None,
        }
    }

    /// The thread id of its thread.
    pub fn thread(&self) -> pid_t {
        self.thread.tid
    }

    /// Its descriptor in its VMM.
    pub fn descriptor(&self) -> i32 {
        self.descriptor
    }

    /// Whether its thread is still there. This takes about 1 us.
    pub fn has_thread(&self) -> bool {
        self.thread.is_there()
    }

    /// Stops the vCPU, calls `see` with it, and lets it continue.
    ///
    /// # Errors
    /// The vCPU can't be stopped. It continues in any case, if [`Self::let_go`] is called while it [is slow](Self::is_slow).
    pub fn look<T>(
        &mut self,
        see: impl FnOnce(&mut State<'_>) -> Result<T, TraceError>,
    ) -> Result<Look<T>, TraceError> {
        let traced = match self.stop()? {
            Look::Seen(traced) => traced,
            Look::Suspended => return Ok(Look::Suspended),
            Look::Busy => return Ok(Look::Busy),
            Look::Gone => return Ok(Look::Gone),
        };
        let seen = self.see(&traced, see);
        match &seen {
            Err(TraceError::Gone) => return Ok(Look::Gone),
            Err(TraceError::Slow) => {
                // The thread is in a signal handler, and the frame restores its registers. A thread that can't be interrupted is ending.
                let _ = traced.interrupt();
                self.slow = Some(traced);
            }
            _ => self.release(traced),
        }
        seen.map(Look::Seen)
    }

    /// Calls `see` with the vCPU, whose thread `traced` has stopped, and restores the thread's registers.
    fn see<T>(
        &self,
        traced: &Traced,
        see: impl FnOnce(&mut State<'_>) -> Result<T, TraceError>,
    ) -> Result<T, TraceError> {
        let mut state = State {
            thread: StoppedThread::new(traced, self.thread.tid, self.code)?,
            descriptor: self.descriptor,
        };
        let seen = see(&mut state);
        if !matches!(seen, Err(TraceError::Gone | TraceError::Slow)) {
            state.thread.restore()?;
        }
        seen
    }

    /// Ends the tracing of a thread that has stopped.
    ///
    /// If the thread has been killed since it stopped, it stays traced until its end has been waited for. A process that executes another program
    /// waits for the ends of its other threads, and a thread with a tracer ends when the tracer has waited for it (`de_thread` in `fs/exec.c`).
    /// Meanwhile, PTRACE_SEIZE waits for the execve(2) (`cred_guard_mutex`). So this thread must not seize another one before: neither
    /// would ever end.
    fn release(&mut self, traced: Traced) {
        self.slow = traced.detach().err();
    }

    /// Whether a look has stopped waiting for the vCPU's thread, which will still stop.
    pub fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// Notes that the thread that has made the looks until now has ended. Its end has ended the tracing.
    pub fn tracer_has_ended(&mut self) {
        self.slow = None;
    }

    /// Lets a slow thread go, if it has stopped by now. Call it every few milliseconds while the thread [is slow](Self::is_slow): otherwise it
    /// would stand still until the next look.
    pub fn let_go(&mut self) {
        while let Some(traced) = self.slow.take() {
            // A thread that can't continue has been killed: it ends soon.
            match has_stopped(&traced) {
                Ok(Some(Stop::Signal(signal))) => drop(traced.proceed(signal)),
                Ok(Some(Stop::SystemCall)) => drop(traced.proceed(0)),
                Ok(Some(Stop::Interrupted | Stop::Suspended)) => return self.release(traced),
                Ok(Some(Stop::Gone)) | Err(_) => return,
                Ok(None) => {
                    self.slow = Some(traced);
                    return;
                }
            }
            self.slow = Some(traced);
        }
    }

    /// Stops the thread.
    fn stop(&mut self) -> Result<Look<Traced>, TraceError> {
        let traced = match self.slow.take() {
            Some(traced) => traced,
            None => match self.interrupt()? {
                Look::Seen(traced) => traced,
                other => return Ok(other),
            },
        };
        let begin = Instant::now();
        loop {
            let stop = match begin.elapsed() {
                // The thread runs: it has continued from its last stop.
                long if long >= MAX_STOP => None,
                _ => wait(&traced)?,
            };
            // A thread that can't continue has been killed: it ends soon.
            match stop {
                Some(Stop::Interrupted) => break,
                // The end of the tracing leaves it suspended.
                Some(Stop::Suspended) => {
                    self.release(traced);
                    return Ok(Look::Suspended);
                }
                Some(Stop::Signal(signal)) => drop(traced.proceed(signal)),
                Some(Stop::SystemCall) => drop(traced.proceed(0)),
                Some(Stop::Gone) => return Ok(Look::Gone),
                None => {
                    self.slow = Some(traced);
                    return Err(TraceError::Slow);
                }
            }
        }
        // The thread may have ended just before it was traced, and another one may have its id. That thread is not traced any longer.
        if !self.thread.is_there() {
            self.release(traced);
            return Ok(Look::Gone);
        }
        if !self.suspends_filters && self.has_filter() {
            // From now on filters are suspended.
            self.suspends_filters = true;
            self.release(traced);
            return Err(self.refused(io::Error::from_raw_os_error(libc::EPERM)));
        }
        Ok(Look::Seen(traced))
    }

    /// Begins to trace the thread, which stops soon.
    fn interrupt(&mut self) -> Result<Look<Traced>, TraceError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            if !self.thread.is_there() {
                return Ok(Look::Gone);
            }
            match Traced::seize(self.thread.tid, self.options()) {
                Ok(traced) => {
                    // A thread that can't be interrupted is ending.
                    let _ = traced.interrupt();
                    return Ok(Look::Seen(traced));
                }
                Err(error) => match self.explain(error) {
                    // Another tracer may have let it go just before its reason was looked for.
                    Err(_) if attempts < MAX_ATTEMPTS => {}
                    // Filters can't be suspended without CAP_SYS_ADMIN, or by this kernel.
                    Err(_) if self.suspends_filters && !self.has_filter() => {
                        self.suspends_filters = false;
                    }
                    explained => return explained,
                },
            }
        }
    }

    /// Why the thread can't be traced. A thread that is ending gives EPERM, too.
    fn explain<T>(&self, source: io::Error) -> Result<Look<T>, TraceError> {
        let status = thread_status(self.thread.pid, self.thread.tid).unwrap_or_default();
        let field = |name| field(&status, name);
        let is_ending = field("State:").is_none_or(|state| state.starts_with(['Z', 'X']));
        if is_ending || source.raw_os_error() == Some(libc::ESRCH) {
            return Ok(Look::Gone);
        }
        if field("TracerPid:").is_some_and(|tracer| tracer != "0") {
            return Ok(Look::Busy);
        }
        Err(self.refused(source))
    }

    fn refused(&self, source: io::Error) -> TraceError {
        let tid = self.thread.tid;
        TraceError::Refused { tid, source }
    }

    fn options(&self) -> c_uint {
        let suspended = match self.suspends_filters {
            true => libc::PTRACE_O_SUSPEND_SECCOMP,
            false => 0,
        };
        (libc::PTRACE_O_TRACESYSGOOD | suspended).unsigned_abs()
    }

    /// Whether the thread has a seccomp filter.
    fn has_filter(&self) -> bool {
        let status = thread_status(self.thread.pid, self.thread.tid).unwrap_or_default();
        field(&status, "Seccomp:").is_some_and(|mode| mode != "0")
    }
}

fn thread_status(pid: pid_t, tid: pid_t) -> io::Result<String> {
    let status = fs::read(format!("/proc/{pid}/task/{tid}/status"))?;
    Ok(String::from_utf8_lossy(&status).into_owned())
}

/// The value of the line that begins with `name` (proc(5)).
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim())
}
