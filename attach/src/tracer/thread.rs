//! A stopped thread, which does system calls for the thread that has stopped it.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t, user_regs_struct};

use super::TraceError;
use super::code::ThreadCode;
use super::frame::ReturnFrame;
use super::memory;
use super::ptrace::Traced;

/// How long this thread looks without a pause at a thread that hasn't stopped yet, and the pause between later looks.
const SPIN: Duration = Duration::from_micros(50);
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// How long a thread may take to stop. A thread that waits for a disk, or is frozen, takes longer.
const MAX_WAIT: Duration = Duration::from_millis(200);
/// Maximum time until a thread stops for the wanted reason, such as the end of one system call. This includes all stops before: one for
/// each signal that the thread gets meanwhile, and two for each system call of the signals' handlers.
pub const MAX_STOP: Duration = Duration::from_millis(500);
/// CS in 64-bit code: of Linux, and of Linux on Xen without hardware virtualization (`FLAT_USER_CS64`).
const CODE_64_BIT: [u64; 2] = [0x33, 0xe033];
/// Bytes that system calls may write for their caller.
pub const ROOM: u64 = 1024;

/// `PTRACE_EVENT_STOP << 16` and the bit of PTRACE_O_TRACESYSGOOD (ptrace(2)).
const EVENT_STOP: c_int = 128;
const SYSTEM_CALL_STOP: c_int = libc::SIGTRAP | 0x80;
/// The result, inside the kernel, of a system call that is to be restarted (`include/linux/errno.h`).
const ERESTARTSYS: i64 = 512;
const ERESTART_RESTARTBLOCK: i64 = 516;

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
pub fn wait(traced: &Traced) -> Result<Option<Stop>, TraceError> {
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
pub fn has_stopped(traced: &Traced) -> Result<Option<Stop>, TraceError> {
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
    traced: &'a Traced,
    tid: pid_t,
    code: ThreadCode,
    registers: user_regs_struct,
    /// The frame that restores its registers without this process, once the thread has been sent to a system call.
    frame: Option<ReturnFrame>,
}

impl<'a> StoppedThread<'a> {
    /// Thread `tid`, which `traced` has just seen stop. Its process had this `code`.
    pub fn new(traced: &'a Traced, tid: pid_t, code: ThreadCode) -> Result<Self, TraceError> {
        Ok(Self {
            traced,
            tid,
            code,
            registers: traced.registers().map_err(TraceError::Registers)?,
            frame: None,
        })
    }

    /// The registers that the thread had when it was stopped.
    pub fn registers(&self) -> &user_regs_struct {
        &self.registers
    }

    /// Makes the thread do ioctl(2) with `command` on its `descriptor`. The call fills `answer`, which has up to [`ROOM`] bytes.
    ///
    /// # Errors
    /// The thread couldn't be made to do it, or the kernel's answer is an error.
    pub fn ioctl(
        &mut self,
        descriptor: i32,
        command: u64,
        answer: &mut [u8],
    ) -> Result<(), TraceError> {
        let (stack, room) = self.lay_frame()?;
        let call = user_regs_struct {
            rip: self.code.system_call,
            rsp: stack,
            rax: libc::SYS_ioctl.unsigned_abs(),
            // The kernel must not restart a system call here.
            orig_rax: u64::MAX,
            rdi: u64::from(descriptor.unsigned_abs()),
            rsi: command,
            rdx: room,
            ..self.registers
        };
        let result = self.call(&call)?;
        if result < 0 {
            return Err(TraceError::Kvm(error_of(result)));
        }
        memory::read(self.tid, [(room, answer)]).map_err(TraceError::Stack)
    }

    /// Writes the frame below its stack, once; returns the stack pointer for system calls, and the room for their answers.
    fn lay_frame(&mut self) -> Result<(u64, u64), TraceError> {
        if let Some(frame) = &self.frame {
            return Ok((frame.address, frame.room));
        }
        if !CODE_64_BIT.contains(&self.registers.cs) {
            return Err(TraceError::Not64Bit);
        }
        // The program that a thread executes can't be another one by then, as long as it stands still.
        if !self.code.is_there(self.tid) {
            return Err(TraceError::OtherProgram);
        }
        let extended = self.traced.extended_registers();
        let blocked = self.traced.blocked_signals();
        let frame = ReturnFrame::new(
            &resumed(&self.registers),
            extended.map_err(TraceError::Registers)?,
            blocked.map_err(TraceError::Registers)?,
            self.code.signal_return,
            ROOM,
        );
        let frame = frame.ok_or(TraceError::Unknown)?;
        memory::write(self.tid, frame.address, &frame.bytes).map_err(TraceError::Stack)?;
        let places = (frame.address, frame.room);
        self.frame = Some(frame);
        Ok(places)
    }

    /// Makes the thread do the system call of `call`, and returns the call's result. If the call takes too long, the thread is left running.
    fn call(&self, call: &user_regs_struct) -> Result<i64, TraceError> {
        self.traced
            .set_registers(call)
            .map_err(TraceError::Registers)?;
        let behind = call.rip + 2;
        let mut is_inside = false;
        self.follow(Traced::proceed_to_system_call, |stop| {
            if stop == Stop::SystemCall {
                let registers = self.traced.registers().map_err(TraceError::Registers)?;
                // Handlers of signals do system calls of their own.
                let is_ours = registers.rip == behind && registers.rsp == call.rsp;
                if is_ours && is_inside {
                    return Ok(Some(registers.rax.cast_signed()));
                }
                is_inside = is_ours;
            }
            Ok(None)
        })
    }

    /// Lets the thread continue by `proceed` from stop to stop, with its signals, until `see` returns a value for a stop.
    fn follow<T>(
        &self,
        proceed: impl Fn(&Traced, c_int) -> io::Result<()>,
        mut see: impl FnMut(Stop) -> Result<Option<T>, TraceError>,
    ) -> Result<T, TraceError> {
        let begin = Instant::now();
        let mut signal = 0;
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

    /// Restores the thread's registers, with which it continues once it isn't traced any longer.
    pub fn restore(self) -> Result<(), TraceError> {
        if self.frame.is_none() {
            return Ok(());
        }
        let set = self.traced.set_registers(&self.registers);
        set.map_err(TraceError::Registers)?;
        if is_to_be_restarted(&self.registers) {
            self.pass_signals()?;
        }
        Ok(())
    }

    /// Makes the kernel check for signals, as it did when the thread was stopped: this is where it restarts interrupted system
    /// calls.
    fn pass_signals(&self) -> Result<(), TraceError> {
        self.traced.interrupt().map_err(TraceError::Wait)?;
        self.follow(Traced::proceed, |stop| {
            let is_it = matches!(stop, Stop::Interrupted | Stop::Suspended);
            Ok(is_it.then_some(()))
        })
    }
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
    fn only_what_the_kernel_restarts_is_restarted() {
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
    fn any_result_of_a_system_call_is_an_error_or_none() {
        assert_eq!(error_of(-25).raw_os_error(), Some(libc::ENOTTY));
        for result in [i64::MIN, i64::from(i32::MIN) - 1] {
            assert_eq!(error_of(result).raw_os_error(), Some(libc::EIO), "{result}");
        }
    }
}
