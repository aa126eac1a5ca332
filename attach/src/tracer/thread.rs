//! A stopped thread, which does system calls for the thread that has stopped it.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t, user_regs_struct};

use super::code::ThreadCode;
use super::frame::ReturnFrame;
use super::moved::MovedThread;
use super::ptrace::{SyscallStop, SystemCall, TracedThread};
use super::{TraceError, memory};

/// How long this thread looks without a pause at a thread that hasn't stopped yet, and the pause between later looks.
const SPIN: Duration = Duration::from_micros(50);
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// How long a thread may take to stop. A thread that waits for a disk, or is frozen, takes longer.
const MAX_WAIT: Duration = Duration::from_millis(200);
/// Maximum time until a thread stops for the requested reason, such as the end of one system call. This includes all stops before: one for each
/// signal that the thread gets meanwhile.
pub const MAX_STOP: Duration = Duration::from_millis(500);
/// CS in 64-bit code: of Linux, and of Linux on Xen without hardware virtualization (`FLAT_USER_CS64`).
const CODE_64_BIT: [u64; 2] = [0x33, 0xe033];
/// Bytes that system calls may write for their caller.
pub const ROOM: u64 = 1024;
/// SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, which aren't blocked: the kernel would take the handler of a blocked one away from the process
/// if the thread caused it.
const SYNCHRONOUS: u64 = signal_bit(libc::SIGILL)
    | signal_bit(libc::SIGTRAP)
    | signal_bit(libc::SIGBUS)
    | signal_bit(libc::SIGFPE)
    | signal_bit(libc::SIGSEGV)
    | signal_bit(libc::SIGSYS);
/// Offset of `rseq_cs` in `struct rseq`, and of `start_ip` and `post_commit_offset` in the `struct rseq_cs` that it points to
/// (`include/uapi/linux/rseq.h`).
const RSEQ_SEQUENCE: u64 = 8;
const SEQUENCE_START: u64 = 8;
const SEQUENCE_LENGTH: u64 = 16;

/// `PTRACE_EVENT_STOP << 16` and the bit of PTRACE_O_TRACESYSGOOD (ptrace(2)).
const EVENT_STOP: c_int = 128;
const SYSTEM_CALL_STOP: c_int = libc::SIGTRAP | 0x80;
/// The result, inside the kernel, of a system call that is to be restarted (`include/linux/errno.h`).
const ERESTARTSYS: i64 = 512;
const ERESTART_RESTARTBLOCK: i64 = 516;

/// A signal in a set of signals.
const fn signal_bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Why a traced thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was interrupted.
    Interrupted,
    /// Its process was stopped, by SIGSTOP or the like.
    Suspended,
    /// It enters a system call or returns from one.
    SystemCall,
    /// This signal is about to be delivered to it.
    Signal(c_int),
    /// It has ended.
    Gone,
}

/// Waits until the thread stops; `None` if it takes too long.
pub fn wait(traced: &TracedThread) -> Result<Option<Stop>, TraceError> {
    let begin = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let stopped = has_stopped(traced)?;
        if stopped.is_some() {
            return Ok(stopped);
        }
        // This thread doesn't yield: Linux 6.18 takes a whole time slice from a thread that does, so that on a busy host it would wait for seconds.
        let waited = begin.elapsed();
        if waited >= MAX_WAIT {
            return Ok(None);
        }
        if waited >= SPIN {
            thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }
}

/// Why the thread has stopped, if it has.
pub fn has_stopped(traced: &TracedThread) -> Result<Option<Stop>, TraceError> {
    match traced.wait() {
        Ok(status) => Ok(status.map(stop)),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Some(Stop::Gone)),
        Err(error) => Err(TraceError::Wait(error)),
    }
}

fn stop(status: c_int) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Gone;
    }
    let signal = libc::WSTOPSIG(status);
    match (status >> 16, signal) {
        (EVENT_STOP, libc::SIGTRAP) => Stop::Interrupted,
        (EVENT_STOP, _) => Stop::Suspended,
        (_, SYSTEM_CALL_STOP) => Stop::SystemCall,
        _ => Stop::Signal(signal),
    }
}

/// A stopped thread. It stands still until it isn't traced any longer.
#[derive(Debug)]
pub struct StoppedThread<'a> {
    traced: &'a TracedThread,
    tid: pid_t,
    code: ThreadCode,
    registers: user_regs_struct,
    suspends_filters: bool,
    /// Set once the thread has been moved to do system calls.
    moved: Option<MovedThread>,
}

impl<'a> StoppedThread<'a> {
    /// Thread `tid`, which `traced` has just seen stop. Its process had this `code`. With `suspends_filters`, seccomp filters don't see the system
    /// calls; otherwise the thread must have none.
    pub fn new(
        traced: &'a TracedThread,
        tid: pid_t,
        code: ThreadCode,
        suspends_filters: bool,
    ) -> Result<Self, TraceError> {
        Ok(Self {
            traced,
            tid,
            code,
            registers: traced.registers().map_err(TraceError::Registers)?,
            suspends_filters,
            moved: None,
        })
    }

    /// The registers that the thread had when it was stopped.
    pub fn registers(&self) -> &user_regs_struct {
        &self.registers
    }

    /// Makes the thread do ioctl(2) with `command` on its `descriptor`. The call fills `answer`, which has up to [`ROOM`] bytes.
    ///
    /// The thread enters rt_sigreturn(2), and at the entry that call becomes the ioctl(2). Only from there to its end are filters suspended, so that
    /// nothing else that the process has the thread execute meanwhile gets around them. The thread returns to where it enters
    /// rt_sigreturn(2) again: this restores all that it had, if this process is killed.
    ///
    /// # Errors
    /// The thread couldn't be made to do it, or the kernel's answer is an error.
    pub fn ioctl(
        &mut self,
        descriptor: i32,
        command: u64,
        answer: &mut [u8],
    ) -> Result<(), TraceError> {
        let (stack, room) = self.move_away()?;
        let behind = self.code.behind();
        let entry = SystemCall {
            instruction: behind,
            stack,
            side: SyscallStop::Entry(libc::SYS_rt_sigreturn.unsigned_abs()),
        };
        if self.next_system_call()? != Some(entry) {
            return Err(self.abandon());
        }
        let call = user_regs_struct {
            rip: self.code.signal_return,
            rsp: stack,
            // As the kernel has it at each entry.
            rax: i64::from(-libc::ENOSYS).cast_unsigned(),
            orig_rax: libc::SYS_ioctl.unsigned_abs(),
            rdi: u64::from(descriptor.unsigned_abs()),
            rsi: command,
            rdx: room,
            ..self.registers
        };
        let result = self.do_call(&call)?;
        if result < 0 {
            return Err(TraceError::Kvm(error_of(result)));
        }
        memory::read(self.tid, [(room, answer)]).map_err(TraceError::Stack)
    }

    /// Makes the system call whose entry the thread stands at the one of `call`, and returns its result. If the call takes too long, the
    /// thread is left running.
    fn do_call(&mut self, call: &user_regs_struct) -> Result<i64, TraceError> {
        // If this process is killed from here on, filters see the call of these registers, but for that rt_sigreturn(2).
        let begun = self.suspend_filters(true);
        if let Err(error) = begun.and_then(|()| self.traced.set_registers(call)) {
            self.abandon();
            return Err(TraceError::Registers(error));
        }
        let next = self.next_system_call()?;
        (self.suspend_filters(false)).map_err(TraceError::Registers)?;
        match next {
            Some(SystemCall {
                instruction,
                stack,
                side: SyscallStop::Exit(result),
            }) if (instruction, stack) == (call.rip, call.rsp) => Ok(result),
            _ => Err(self.abandon()),
        }
    }

    fn suspend_filters(&self, suspended: bool) -> io::Result<()> {
        match self.suspends_filters {
            true => self.traced.suspend_filters(suspended),
            false => Ok(()),
        }
    }

    /// Moves the thread to where it enters rt_sigreturn(2), once, and blocks its signals; returns the stack pointer there, and the room for the
    /// answers of system calls.
    fn move_away(&mut self) -> Result<(u64, u64), TraceError> {
        if let Some(moved) = &self.moved {
            return Ok((moved.stack, moved.room));
        }
        if !CODE_64_BIT.contains(&self.registers.cs) {
            return Err(TraceError::Not64Bit);
        }
        if self.is_in_sequence()? {
            return Err(TraceError::Restartable);
        }
        // The program that a thread executes can't be another one by then, as long as it stands still.
        if !self.code.is_there(self.tid) {
            return Err(TraceError::OtherProgram);
        }
        let extended = self.traced.extended_registers();
        let blocked = self.traced.blocked_signals();
        let blocked = blocked.map_err(TraceError::Registers)?;
        let frame = ReturnFrame::new(
            &resumed(&self.registers),
            extended.map_err(TraceError::Registers)?,
            blocked,
            self.code.signal_return,
            ROOM,
        );
        let frame = frame.ok_or(TraceError::Unknown)?;
        memory::write(self.tid, frame.address, &frame.bytes).map_err(TraceError::Stack)?;
        // As if a handler had returned.
        let stack = frame.address + size_of::<u64>() as u64;
        let moved = user_regs_struct {
            rip: self.code.signal_return,
            rsp: stack,
            // The kernel must not restart a system call here.
            orig_rax: u64::MAX,
            ..self.registers
        };
        self.moved = Some(MovedThread {
            registers: self.registers,
            blocked,
            has_filters_suspended: self.suspends_filters,
            stack,
            room: frame.room,
            code: self.code,
        });
        // In this order: if this process is killed in between, the frame restores the signals.
        (self.traced.set_registers(&moved))
            .and_then(|()| self.traced.set_blocked_signals(blocked | !SYNCHRONOUS))
            .map_err(TraceError::Registers)?;
        Ok((stack, frame.room))
    }

    /// Whether the thread executes a restartable sequence (rseq(2)). The kernel ends such a sequence when the thread continues, as long as
    /// the thread stands in it: it must not be moved.
    fn is_in_sequence(&self) -> Result<bool, TraceError> {
        let Some(rseq) = self.traced.rseq().map_err(TraceError::Registers)? else {
            return Ok(false);
        };
        let sequence = read_u64(self.tid, rseq.wrapping_add(RSEQ_SEQUENCE))?;
        if sequence == 0 {
            return Ok(false);
        }
        // A thread that has left a sequence may still have its address.
        let start = read_u64(self.tid, sequence.wrapping_add(SEQUENCE_START))?;
        let length = read_u64(self.tid, sequence.wrapping_add(SEQUENCE_LENGTH))?;
        Ok(self.registers.rip.wrapping_sub(start) < length)
    }

    /// Lets the thread continue to its next entry to a system call, or return from one.
    fn next_system_call(&self) -> Result<Option<SystemCall>, TraceError> {
        self.follow(TracedThread::proceed_to_system_call, 0, |stop| match stop {
            Stop::SystemCall => {
                let call = self.traced.system_call();
                call.map(Some).map_err(TraceError::Registers)
            }
            Stop::Signal(signal) if signal != libc::SIGSTOP => Err(TraceError::Signal(signal)),
            _ => Ok(None),
        })
    }

    /// Gives only its signals back to a thread that isn't where it was sent to: its process has it execute something else, which it goes on with.
    fn abandon(&mut self) -> TraceError {
        if let Some(moved) = self.moved.take() {
            // If this fails, the thread has been killed.
            let _ = self.suspend_filters(false);
            let _ = self.traced.set_blocked_signals(moved.blocked);
        }
        TraceError::OtherProgram
    }

    /// Lets the thread continue by `proceed` from stop to stop, with `signal` and then its other signals, until `see` returns a value for a stop.
    fn follow<T>(
        &self,
        proceed: impl Fn(&TracedThread, c_int) -> io::Result<()>,
        mut signal: c_int,
        mut see: impl FnMut(Stop) -> Result<Option<T>, TraceError>,
    ) -> Result<T, TraceError> {
        let begin = Instant::now();
        loop {
            proceed(self.traced, signal).map_err(TraceError::Wait)?;
            // The thread runs: the next look finds it running or at its next stop.
            if begin.elapsed() >= MAX_STOP {
                return Err(TraceError::Slow);
            }
            let stop = wait(self.traced)?.ok_or(TraceError::Slow)?;
            if stop == Stop::Gone {
                return Err(TraceError::Gone);
            }
            if let Some(found) = see(stop)? {
                return Ok(found);
            }
            signal = match stop {
                Stop::Signal(number) => number,
                _ => 0,
            };
        }
    }

    /// What the thread, which is left running, had before it was moved, if it was.
    pub fn into_moved(self) -> Option<MovedThread> {
        self.moved
    }

    /// Restores the thread's registers and signals, with which it continues once it isn't traced any longer. `signal` is the one that the thread
    /// stands at; 0 if there is none.
    pub fn restore(&mut self, signal: c_int) -> Result<(), TraceError> {
        let Some(moved) = self.moved.take() else {
            return Ok(());
        };
        let is_moved = |address| moved.code.has(address);
        let is_own =
            signal != 0 && !(self.traced.is_signal_due(is_moved)).map_err(TraceError::Registers)?;
        let put_back = moved.put_back(self.traced);
        put_back.map_err(TraceError::Registers)?;
        if signal != 0 || is_to_be_restarted(&self.registers) {
            self.pass_signals(if is_own { signal } else { 0 })?;
        }
        Ok(())
    }

    /// Makes the kernel check for signals, as it did when the thread was stopped: this is where it restarts interrupted system
    /// calls. The thread gets `signal`, if that isn't 0.
    fn pass_signals(&self, signal: c_int) -> Result<(), TraceError> {
        self.traced.interrupt().map_err(TraceError::Wait)?;
        self.follow(TracedThread::proceed, signal, |stop| {
            let is_it = matches!(stop, Stop::Interrupted | Stop::Suspended);
            Ok(is_it.then_some(()))
        })
    }
}

/// The number of 64 bits at `address` in the memory of thread `tid`.
fn read_u64(tid: pid_t, address: u64) -> Result<u64, TraceError> {
    let mut bytes = [0; 8];
    memory::read(tid, [(address, &mut bytes)]).map_err(TraceError::Sequence)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Whether the kernel is to restart the system call that the thread was stopped in.
fn is_to_be_restarted(registers: &user_regs_struct) -> bool {
    let result = registers.rax.cast_signed();
    registers.orig_rax.cast_signed() >= 0
        && (-ERESTART_RESTARTBLOCK..=-ERESTARTSYS).contains(&result)
}

/// The error that a system call has returned. The thread is the VMM's, so any number can be there.
fn error_of(result: i64) -> io::Error {
    let number = result.checked_neg().map(i32::try_from);
    let number = number.and_then(Result::ok).unwrap_or(libc::EIO);
    io::Error::from_raw_os_error(number)
}

/// The registers with which a thread continues so that its system call is restarted.
fn resumed(registers: &user_regs_struct) -> user_regs_struct {
    if !is_to_be_restarted(registers) {
        return *registers;
    }
    let number = if registers.rax.cast_signed() == -ERESTART_RESTARTBLOCK {
        libc::SYS_restart_syscall.unsigned_abs()
    } else {
        registers.orig_rax
    };
    user_regs_struct {
        rip: registers.rip.wrapping_sub(2),
        rax: number,
        ..*registers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers in system call `number`, which has returned `result`.
    fn returned(number: u64, result: i64) -> user_regs_struct {
        // SAFETY: it consists of numbers.
        let registers: user_regs_struct = unsafe { std::mem::zeroed() };
        user_regs_struct {
            rip: 0x1002,
            orig_rax: number,
            rax: result.cast_unsigned(),
            ..registers
        }
    }

    #[test]
    fn only_restartable_system_calls_are_restarted() {
        for result in [-512, -513, -514] {
            let registers = resumed(&returned(7, result));
            assert_eq!((registers.rip, registers.rax), (0x1000, 7), "{result}");
        }
        let registers = resumed(&returned(7, -516));
        let restart = libc::SYS_restart_syscall.unsigned_abs();
        assert_eq!((registers.rip, registers.rax), (0x1000, restart));
        for result in [i64::MIN, i64::MIN + 1, -517, -511, -4, 0, 512, i64::MAX] {
            let registers = resumed(&returned(7, result));
            let own = result.cast_unsigned();
            assert_eq!((registers.rip, registers.rax), (0x1002, own), "{result}");
        }
        // In no system call.
        assert_eq!(resumed(&returned(u64::MAX, -512)).rip, 0x1002);
    }

    #[test]
    fn any_result_of_a_system_call_decodes() {
        assert_eq!(error_of(-25).raw_os_error(), Some(libc::ENOTTY));
        for result in [i64::MIN, i64::from(i32::MIN) - 1] {
            assert_eq!(error_of(result).raw_os_error(), Some(libc::EIO), "{result}");
        }
    }
}
