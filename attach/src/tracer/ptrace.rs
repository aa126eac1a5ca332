//! The calls of ptrace(2) that are needed, for a thread that is stopped by the calling thread.

use std::io;
use std::mem::{self, MaybeUninit};
use std::ptr;

use libc::{c_int, c_uint, c_void, iovec, pid_t, user_regs_struct};

/// `NT_X86_XSTATE` (`include/uapi/linux/elf.h`): the extended registers, as XSAVE lays them out.
const NT_X86_XSTATE: usize = 0x202;
/// `NT_PRFPREG`: the extended registers, as FXSAVE lays them out.
const NT_PRFPREG: usize = 2;
/// Maximum size of the extended registers, in bytes: more than those of any processor need.
const MAX_EXTENDED: usize = 64 << 10;

/// A thread that this thread traces.
///
/// Dropping this ends the tracing. This fails unless the traced thread is stopped; in that case, the end of the tracing thread ends the tracing.
#[derive(Debug)]
pub struct Traced {
    tid: pid_t,
}

impl Traced {
    /// Begins to trace thread `tid`, which continues to run.
    ///
    /// # Errors
    /// PTRACE_SEIZE fails: with EPERM, or with ESRCH if there is no such thread.
    pub fn seize(tid: pid_t, options: c_uint) -> io::Result<Self> {
        // SAFETY: PTRACE_SEIZE takes no address, and its options as a number.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_SEIZE,
                tid,
                ptr::null_mut::<c_void>(),
                options as usize as *mut c_void,
            )
        };
        check(result)?;
        Ok(Self { tid })
    }

    /// Interrupts the thread, which stops soon after.
    pub fn interrupt(&self) -> io::Result<()> {
        self.request(libc::PTRACE_INTERRUPT, 0)
    }

    /// Lets the thread continue, with `signal` if that isn't 0.
    pub fn proceed(&self, signal: c_int) -> io::Result<()> {
        self.request(libc::PTRACE_CONT, signal.unsigned_abs())
    }

    /// Lets the thread continue to its next entry to a system call or return from one, with `signal` if that isn't 0.
    pub fn proceed_to_system_call(&self, signal: c_int) -> io::Result<()> {
        self.request(libc::PTRACE_SYSCALL, signal.unsigned_abs())
    }

    /// Ends the tracing of a stopped thread.
    ///
    /// # Errors
    /// The thread isn't stopped, or has been killed.
    pub fn detach(self) -> Result<(), Self> {
        if self.request(libc::PTRACE_DETACH, 0).is_err() {
            return Err(self);
        }
        // Dropping it would detach it once more.
        mem::forget(self);
        Ok(())
    }

    /// The thread's new wait status; `None` if it hasn't changed (waitpid(2)).
    pub fn wait(&self) -> io::Result<Option<c_int>> {
        let mut status = 0;
        // SAFETY: `status` is valid to write to.
        let waited =
            unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match waited {
            0 => Ok(None),
            tid if tid == self.tid => Ok(Some(status)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The general registers of a stopped thread.
    pub fn registers(&self) -> io::Result<user_regs_struct> {
        let mut registers = MaybeUninit::<user_regs_struct>::uninit();
        // SAFETY: PTRACE_GETREGS writes a user_regs_struct to its last argument.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_GETREGS,
                self.tid,
                ptr::null_mut::<c_void>(),
                registers.as_mut_ptr().cast::<c_void>(),
            )
        };
        check(result)?;
        // SAFETY: it was written.
        Ok(unsafe { registers.assume_init() })
    }

    /// Sets the general registers of a stopped thread.
    pub fn set_registers(&self, registers: &user_regs_struct) -> io::Result<()> {
        // SAFETY: PTRACE_SETREGS reads a user_regs_struct from its last argument.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_SETREGS,
                self.tid,
                ptr::null_mut::<c_void>(),
                ptr::from_ref(registers).cast_mut().cast::<c_void>(),
            )
        };
        check(result)
    }

    /// The extended registers of a stopped thread (floating point and vectors), as XSAVE lays them out, or FXSAVE on an
    /// older processor.
    pub fn extended_registers(&self) -> io::Result<Vec<u8>> {
        match self.register_set(NT_X86_XSTATE) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                self.register_set(NT_PRFPREG)
            }
            result => result,
        }
    }

    fn register_set(&self, kind: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; MAX_EXTENDED];
        let mut buffer = iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: PTRACE_GETREGSET writes to the buffer that the iovec describes, at most its length, and sets that.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_GETREGSET,
                self.tid,
                kind as *mut c_void,
                (&raw mut buffer).cast::<c_void>(),
            )
        };
        check(result)?;
        bytes.truncate(buffer.iov_len);
        Ok(bytes)
    }

    /// The signals that a stopped thread has blocked, signal n at bit n - 1.
    pub fn blocked_signals(&self) -> io::Result<u64> {
        let mut set = 0_u64;
        // SAFETY: PTRACE_GETSIGMASK writes the 8 bytes of a kernel's signal set.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_GETSIGMASK,
                self.tid,
                size_of::<u64>() as *mut c_void,
                (&raw mut set).cast::<c_void>(),
            )
        };
        check(result)?;
        Ok(set)
    }

    fn request(&self, request: c_uint, data: c_uint) -> io::Result<()> {
        // SAFETY: these requests take no address, and a signal or nothing as data.
        let result = unsafe {
            libc::ptrace(
                request,
                self.tid,
                ptr::null_mut::<c_void>(),
                data as usize as *mut c_void,
            )
        };
        check(result)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // See the type.
        let _ = self.request(libc::PTRACE_DETACH, 0);
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
