//! A vCPU of another process.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_mp_state, kvm_regs, kvm_sregs};
use libc::pid_t;

use super::code::ThreadCode;
use super::error::TraceError;
use super::moved::{MovedThread, SlowThread};
use super::ptrace::TracedThread;
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

/// The result of a look at a vCPU.
#[derive(Debug, PartialEq, Eq)]
pub enum StopOutcome<T> {
    /// The vCPU was stopped, and this is the result of the look.
    Stopped(T),
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
    pub(super) thread: StoppedThread<'a>,
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

    fn ask<T: KvmOutput>(&mut self, command: u64) -> Result<T, TraceError> {
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
unsafe trait KvmOutput: Default {}

// SAFETY: 18 numbers of 64 bits.
unsafe impl KvmOutput for kvm_regs {}
// SAFETY: bindgen's structures of numbers; what pads them has fields of its own.
unsafe impl KvmOutput for kvm_sregs {}
// SAFETY: a number of 32 bits.
unsafe impl KvmOutput for kvm_mp_state {}

/// A vCPU whose thread is stopped for each look. All looks are made by the same thread.
///
/// A thread that looks at several vCPUs must look at none while another one [is slow](Self::is_slow): if their process executes another program,
/// both processes could wait for each other forever.
#[derive(Debug)]
pub struct TracedVcpu {
    thread: Arc<VmmThread>,
    descriptor: i32,
    code: ThreadCode,
    /// Whether this process is known to be able to suspend seccomp filters. Otherwise the thread is looked at only while it has no filter.
    suspends_filters: bool,
    /// Whether the thread is known to have no shadow stack. One can come only by an execve(2).
    has_no_shadow_stack: bool,
    /// A thread that was interrupted and hasn't stopped yet, or that was killed and whose end hasn't been waited for yet.
    slow: Option<SlowThread>,
}

impl TracedVcpu {
    /// The vCPU of process `pid` with this descriptor, which thread `tid` runs. The process has this `code`.
    ///
    /// If there is no such thread, looks at the vCPU return [`StopOutcome::Gone`]. The vCPU keeps the thread that has the id now, even if another thread
    /// gets that id later.
    pub fn new(pid: pid_t, tid: pid_t, descriptor: i32, code: ThreadCode) -> Self {
        Self {
            thread: Arc::new(VmmThread::new(pid, tid)),
            descriptor,
            code,
            suspends_filters: false,
            has_no_shadow_stack: false,
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
            has_no_shadow_stack: self.has_no_shadow_stack,
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
    ) -> Result<StopOutcome<T>, TraceError> {
        let traced = match self.stop()? {
            StopOutcome::Stopped(traced) => traced,
            StopOutcome::Suspended => return Ok(StopOutcome::Suspended),
            StopOutcome::Busy => return Ok(StopOutcome::Busy),
            StopOutcome::Gone => return Ok(StopOutcome::Gone),
        };
        let (seen, moved) = self.see(&traced, see);
        match &seen {
            Err(TraceError::Gone) => return Ok(StopOutcome::Gone),
            Err(TraceError::Slow) => {
                // A thread that can't be interrupted is ending.
                let _ = traced.interrupt();
                self.slow = Some(SlowThread { traced, moved });
            }
            _ => self.release(traced),
        }
        match seen {
            Err(error) if error.is_due_to_a_killed_thread() => Ok(StopOutcome::Gone),
            seen => seen.map(StopOutcome::Stopped),
        }
    }

    /// Calls `see` with the vCPU, whose thread `traced` has stopped, and restores the thread's registers and signals. If the thread is
    /// slow, this also returns what it had before it was moved.
    fn see<T>(
        &mut self,
        traced: &TracedThread,
        see: impl FnOnce(&mut State<'_>) -> Result<T, TraceError>,
    ) -> (Result<T, TraceError>, Option<MovedThread>) {
        let stopped = self.check(traced).and_then(|suspends_filters| {
            StoppedThread::new(traced, self.thread.tid, self.code, suspends_filters)
        });
        let mut state = match stopped {
            Ok(thread) => State {
                thread,
                descriptor: self.descriptor,
            },
            Err(error) => return (Err(error), None),
        };
        let mut seen = see(&mut state);
        let signal = match &seen {
            Err(TraceError::Signal(signal)) => Some(*signal),
            Err(TraceError::Gone | TraceError::Slow) => None,
            _ => Some(0),
        };
        if let Some(Err(error)) = signal.map(|signal| state.thread.restore(signal)) {
            seen = Err(error);
        }
        (seen, state.thread.into_moved())
    }

    /// Checks what the stopped thread must not have to be moved. True if its filters are to be suspended.
    fn check(&mut self, traced: &TracedThread) -> Result<bool, TraceError> {
        let tid = self.thread.tid;
        let status = || thread_status(self.thread.pid, tid).map_err(TraceError::Wait);
        if !self.has_no_shadow_stack {
            if has_shadow_stack(&status()?) {
                return Err(TraceError::ShadowStack { tid });
            }
            self.has_no_shadow_stack = true;
        }
        if self.suspends_filters {
            return Ok(true);
        }
        let suspended = traced.suspend_filters(true);
        match suspended.and_then(|()| traced.suspend_filters(false)) {
            Ok(()) => self.suspends_filters = true,
            Err(source) if has_filter(&status()?) => {
                return Err(TraceError::Filtered { tid, source });
            }
            Err(_) => {}
        }
        Ok(self.suspends_filters)
    }

    /// Ends the tracing of a thread that has stopped.
    ///
    /// If the thread has been killed since it stopped, it stays traced until its end has been waited for. A process that executes another program
    /// waits for the ends of its other threads, and a thread with a tracer ends when the tracer has waited for it (`de_thread` in `fs/exec.c`).
    /// Meanwhile, PTRACE_SEIZE waits for the execve(2) (`cred_guard_mutex`). So this thread must not seize another one before: neither
    /// would ever end.
    fn release(&mut self, traced: TracedThread) {
        let killed = traced.detach().err();
        self.slow = killed.map(|traced| SlowThread {
            traced,
            moved: None,
        });
    }

    /// Whether a look has stopped waiting for the vCPU's thread, which will still stop.
    pub fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// Notes that the thread that has made the looks until now has ended. Its end has ended the tracing.
    pub fn tracer_has_ended(&mut self) {
        self.slow = None;
    }

    /// Releases a slow thread, if it has stopped by now. Call it every few milliseconds while the thread [is slow](Self::is_slow): otherwise it would
    /// stay stopped until the next look.
    pub fn let_go(&mut self) {
        while let Some(mut slow) = self.slow.take() {
            match has_stopped(&slow.traced) {
                Ok(Some(Stop::Gone)) | Err(_) => return,
                // A thread that can't continue has been killed: it ends soon.
                Ok(Some(stop)) => {
                    if let Ok(true) = slow.pass(stop) {
                        return self.release(slow.traced);
                    }
                }
                Ok(None) => {
                    self.slow = Some(slow);
                    return;
                }
            }
            self.slow = Some(slow);
        }
    }

    /// Stops the thread.
    fn stop(&mut self) -> Result<StopOutcome<TracedThread>, TraceError> {
        let mut slow = match self.slow.take() {
            Some(slow) => {
                // A thread that can't be interrupted is ending.
                let _ = slow.traced.interrupt();
                slow
            }
            None => match self.interrupt()? {
                StopOutcome::Stopped(traced) => SlowThread {
                    traced,
                    moved: None,
                },
                StopOutcome::Suspended => return Ok(StopOutcome::Suspended),
                StopOutcome::Busy => return Ok(StopOutcome::Busy),
                StopOutcome::Gone => return Ok(StopOutcome::Gone),
            },
        };
        let begin = Instant::now();
        loop {
            let stop = match begin.elapsed() {
                // The thread runs: it has continued from its last stop.
                long if long >= MAX_STOP => None,
                _ => wait(&slow.traced)?,
            };
            let Some(stop) = stop else {
                self.slow = Some(slow);
                return Err(TraceError::Slow);
            };
            if stop == Stop::Gone {
                return Ok(StopOutcome::Gone);
            }
            // A thread that can't continue has been killed: it ends soon.
            let Ok(true) = slow.pass(stop) else {
                continue;
            };
            let traced = slow.traced;
            // The thread may have ended just before it was traced, and another one may have its id. That thread is not traced any longer.
            if !self.thread.is_there() {
                self.release(traced);
                return Ok(StopOutcome::Gone);
            }
            // The end of the tracing leaves it suspended.
            if stop == Stop::Suspended {
                self.release(traced);
                return Ok(StopOutcome::Suspended);
            }
            return Ok(StopOutcome::Stopped(traced));
        }
    }

    /// Begins to trace the thread, which stops soon.
    fn interrupt(&self) -> Result<StopOutcome<TracedThread>, TraceError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            if !self.thread.is_there() {
                return Ok(StopOutcome::Gone);
            }
            match TracedThread::seize(self.thread.tid) {
                Ok(traced) => {
                    // A thread that can't be interrupted is ending.
                    let _ = traced.interrupt();
                    return Ok(StopOutcome::Stopped(traced));
                }
                Err(error) => match self.explain(error) {
                    // Another tracer may have let it go just before its reason was looked for.
                    Err(_) if attempts < MAX_ATTEMPTS => {}
                    explained => return explained,
                },
            }
        }
    }

    /// Why the thread can't be traced. A thread that is ending gives EPERM, too.
    fn explain<T>(&self, source: io::Error) -> Result<StopOutcome<T>, TraceError> {
        let status = thread_status(self.thread.pid, self.thread.tid).unwrap_or_default();
        let field = |name| field(&status, name);
        let is_ending = field("State:").is_none_or(|state| state.starts_with(['Z', 'X']));
        if is_ending || source.raw_os_error() == Some(libc::ESRCH) {
            return Ok(StopOutcome::Gone);
        }
        if field("TracerPid:").is_some_and(|tracer| tracer != "0") {
            return Ok(StopOutcome::Busy);
        }
        let tid = self.thread.tid;
        Err(TraceError::Refused { tid, source })
    }
}

/// Whether a thread with this status has a seccomp filter, or may have one.
fn has_filter(status: &str) -> bool {
    field(status, "Seccomp:").is_none_or(|mode| mode != "0")
}

/// Whether a thread with this status has a shadow stack (`arch/x86/kernel/cpu/proc.c`). Kernels that can give it one tell so.
fn has_shadow_stack(status: &str) -> bool {
    let features = field(status, "x86_Thread_features:").unwrap_or_default();
    features
        .split_whitespace()
        .any(|feature| feature == "shstk")
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a kernel with shadow stacks, for a thread with one and a thread without one.
    #[test]
    fn a_shadow_stack_and_a_filter_are_seen_in_the_status() {
        let status = |seccomp, features| {
            format!(
                "Name:\tvcpu\nNoNewPrivs:\t1\nSeccomp:\t{seccomp}\nSeccomp_filters:\t0\n\
                 x86_Thread_features:\t{features}\nx86_Thread_features_locked:\tshstk wrss \n"
            )
        };
        for features in ["shstk ", "wrss shstk "] {
            assert!(has_shadow_stack(&status(0, features)), "{features}");
        }
        for features in ["", "wrss "] {
            assert!(!has_shadow_stack(&status(0, features)), "{features}");
        }
        // An older kernel.
        assert!(!has_shadow_stack("Seccomp:\t0\n"));
        assert!(
            has_filter(&status(1, "")) && has_filter(&status(2, "")) && !has_filter(&status(0, ""))
        );
        // A thread that has ended, or a kernel without these lines.
        assert!(has_filter(""));
    }
}
