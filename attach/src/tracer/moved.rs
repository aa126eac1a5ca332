//! A thread that was moved to do system calls, and how it gets back what it had.

use std::io;

use libc::user_regs_struct;

use super::code::ThreadCode;
use super::ptrace::{SyscallStop, TracedThread};
use super::thread::Stop;

/// What a thread that has been moved had before, and where it was moved to.
#[derive(Debug)]
pub struct MovedThread {
    pub registers: user_regs_struct,
    /// The signals that it had blocked.
    pub blocked: u64,
    /// Whether its filters have to be suspended for what it does.
    pub has_filters_suspended: bool,
    /// Its stack pointer, which is in a frame that restores all of this without this process.
    pub stack: u64,
    /// The room for the answers of system calls.
    pub room: u64,
    /// The instructions that it was moved to.
    pub code: ThreadCode,
}

impl MovedThread {
    /// Gives the thread back what it had, with its filters in force. It must not stand at the entry of a system call, which it would do with its own registers.
    pub fn put_back(&self, traced: &TracedThread) -> io::Result<()> {
        if self.has_filters_suspended {
            traced.suspend_filters(false)?;
        }
        // If this process is killed before the registers are set, the frame has the same signals.
        traced.set_blocked_signals(self.blocked)?;
        traced.set_registers(&self.registers)
    }

    /// Has the thread, which stands at the entry of a system call, do no system call at all.
    fn skip(&self, traced: &TracedThread) -> io::Result<()> {
        if self.has_filters_suspended {
            traced.suspend_filters(true)?;
        }
        let mut registers = traced.registers()?;
        registers.orig_rax = u64::MAX;
        traced.set_registers(&registers)
    }
}

/// A traced thread that hasn't stopped in time, and was interrupted.
#[derive(Debug)]
pub struct SlowThread {
    pub traced: TracedThread,
    /// What it had before it was moved, if it was.
    pub moved: Option<MovedThread>,
}

impl SlowThread {
    /// Goes on after `stop`. True if the thread stands where it was interrupted, with its own registers and signals; otherwise it runs.
    ///
    /// # Errors
    /// The thread has been killed: it ends soon.
    pub fn pass(&mut self, stop: Stop) -> io::Result<bool> {
        let traced = &self.traced;
        let mut signal = 0;
        match (stop, &self.moved) {
            (Stop::Gone, _) => return Ok(false),
            (Stop::Interrupted | Stop::Suspended, None) => return Ok(true),
            (Stop::Interrupted | Stop::Suspended, Some(moved)) => {
                moved.put_back(traced)?;
                self.moved = None;
                return Ok(true);
            }
            (Stop::Signal(libc::SIGSTOP), _) => signal = libc::SIGSTOP,
            (Stop::Signal(number), None) => signal = number,
            (Stop::Signal(number), Some(moved)) => {
                if !traced.is_signal_due(|address| moved.code.has(address))? {
                    signal = number;
                }
                moved.put_back(traced)?;
                self.moved = None;
            }
            // The interruption stops it before it executes an instruction.
            (Stop::SystemCall, Some(moved)) => {
                if matches!(traced.system_call()?, Some(call) if matches!(call.side, SyscallStop::Entry(_)))
                {
                    moved.skip(traced)?;
                } else if moved.has_filters_suspended {
                    traced.suspend_filters(false)?;
                }
            }
            (Stop::SystemCall, None) => {}
        }
        // Any other stop takes the place of one that an interruption has asked for (`ptrace_stop` in `kernel/signal.c`).
        traced.interrupt()?;
        traced.proceed(signal)?;
        Ok(false)
    }
}
