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
/// `PTRACE_SYSCALL_INFO_ENTRY` and `PTRACE_SYSCALL_INFO_EXIT` (`include/uapi/linux/ptrace.h`).
const ENTRY: u8 = 1;
const EXIT: u8 = 2;
/// The code of a signal that the kernel has made for no other reason that has one (`include/uapi/asm-generic/siginfo.h`).
const SI_KERNEL: c_int = 0x80;

/// A stop of a thread at a system call (`struct ptrace_syscall_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// The thread's instruction pointer and stack pointer.
    pub instruction: u64,
    pub stack: u64,
    pub side: SyscallStop,
}

/// On which side of the system call the thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallStop {
    /// It enters the call of this number, which hasn't been done yet, and which no filter has seen.
    Entry(u64),
    /// It returns from the call with this result.
    Exit(i64),
}

/// A thread that this thread traces.
///
/// Dropping this ends the tracing. This fails unless the traced thread is stopped; in that case, the end of the tracing thread ends the tracing.
#[derive(Debug)]
pub struct TracedThread {
    tid: pid_t,
}

impl TracedThread {
    /// Begins to trace thread `tid`, which continues to run. Its stops at system calls differ from signals.
    ///
    /// # Errors
    /// PTRACE_SEIZE fails: with EPERM, or with ESRCH if there is no such thread.
    pub fn seize(tid: pid_t) -> io::Result<Self> {
        // SAFETY: PTRACE_SEIZE takes no address, and its options as a number.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_SEIZE,
                tid,
                ptr::null_mut::<c_void>(),
                libc::PTRACE_O_TRACESYSGOOD as usize as *mut c_void,
            )
        };
        check(result)?;
        Ok(Self { tid })
    }

    /// Whether a stopped thread's seccomp filters don't see its system calls.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN, or if this thread has a filter; EINVAL if the kernel can't suspend filters.
    pub fn suspend_filters(&self, suspended: bool) -> io::Result<()> {
        let suspended = match suspended {
            true => libc::PTRACE_O_SUSPEND_SECCOMP,
            false => 0,
        };
        let options = libc::PTRACE_O_TRACESYSGOOD | suspended;
        self.request(libc::PTRACE_SETOPTIONS, options.unsigned_abs())
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

    /// Sets the signals that a stopped thread has blocked. SIGKILL and SIGSTOP can't be blocked.
    pub fn set_blocked_signals(&self, mut set: u64) -> io::Result<()> {
        // SAFETY: PTRACE_SETSIGMASK reads the 8 bytes of a kernel's signal set.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_SETSIGMASK,
                self.tid,
                size_of::<u64>() as *mut c_void,
                (&raw mut set).cast::<c_void>(),
            )
        };
        check(result)
    }

    /// Whether the signal that a stopped thread is about to get is due to what it does at an address of which `is_moved` says so, where it was moved to. Others were
    /// sent by a process, or are due to what the thread did before, and wouldn't come again: a breakpoint of its own, or a system call that its filter traps.
    pub fn is_signal_due(&self, is_moved: impl Fn(u64) -> bool) -> io::Result<bool> {
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        // SAFETY: PTRACE_GETSIGINFO writes a siginfo_t to its last argument.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_GETSIGINFO,
                self.tid,
                ptr::null_mut::<c_void>(),
                info.as_mut_ptr().cast::<c_void>(),
            )
        };
        check(result)?;
        // SAFETY: it was written.
        let info = unsafe { info.assume_init() };
        // SAFETY: any bytes are an address. Those of a trap and of a system call are at the same place.
        let address = unsafe { info.si_addr() } as u64;
        Ok(match (info.si_signo, info.si_code) {
            // Codes of processes are 0 or negative (sigaction(2)).
            (_, ..=0) => false,
            // A breakpoint instruction, which there is none where threads are moved to.
            (libc::SIGTRAP, SI_KERNEL) => false,
            (libc::SIGTRAP | libc::SIGSYS, _) => is_moved(address),
            // The thread makes the same fault again where it was.
            _ => true,
        })
    }

    /// At which system call a thread has stopped; `None` if it has stopped elsewhere.
    pub fn system_call(&self) -> io::Result<Option<SystemCall>> {
        let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
        // SAFETY: PTRACE_GET_SYSCALL_INFO writes a ptrace_syscall_info of at most this size to its last argument.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_GET_SYSCALL_INFO,
                self.tid,
                size_of::<libc::ptrace_syscall_info>() as *mut c_void,
                info.as_mut_ptr().cast::<c_void>(),
            )
        };
        check(result)?;
        // SAFETY: it consists of numbers, which were zeroed or written.
        let info = unsafe { info.assume_init() };
        // SAFETY: all parts of the union consist of numbers, which were zeroed or written.
        let side = unsafe {
            match info.op {
                ENTRY => SyscallStop::Entry(info.u.entry.nr),
                EXIT => SyscallStop::Exit(info.u.exit.sval),
                _ => return Ok(None),
            }
        };
        Ok(Some(SystemCall {
            instruction: info.instruction_pointer,
            stack: info.stack_pointer,
            side,
        }))
    }

    /// The address of a stopped thread's `struct rseq` (rseq(2)); `None` if it has none.
    pub fn rseq(&self) -> io::Result<Option<u64>> {
        let mut found = MaybeUninit::<libc::ptrace_rseq_configuration>::zeroed();
        // SAFETY: PTRACE_GET_RSEQ_CONFIGURATION writes a ptrace_rseq_configuration of at most this size to its last argument.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_GET_RSEQ_CONFIGURATION,
                self.tid,
                size_of::<libc::ptrace_rseq_configuration>() as *mut c_void,
                found.as_mut_ptr().cast::<c_void>(),
            )
        };
        match check(result) {
            // A kernel without restartable sequences doesn't know the request.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(None),
            other => other?,
        }
        // SAFETY: it consists of numbers, which were zeroed or written.
        let address = unsafe { found.assume_init() }.rseq_abi_pointer;
        Ok((address != 0).then_some(address))
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

impl Drop for TracedThread {
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
