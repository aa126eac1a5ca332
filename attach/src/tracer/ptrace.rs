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
        let options = libc::PTRACE_O_TRACESYSGOOD as usize as *mut c_void;
        // SAFETY: PTRACE_SEIZE takes no address, and its options as a number.
        unsafe { ptrace(libc::PTRACE_SEIZE, tid, 0, options)? };
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
        // SAFETY: PTRACE_GETREGS writes a user_regs_struct, which consists of numbers.
        unsafe { self.read(libc::PTRACE_GETREGS, 0) }
    }

    /// Sets the general registers of a stopped thread.
    pub fn set_registers(&self, registers: &user_regs_struct) -> io::Result<()> {
        let registers = ptr::from_ref(registers).cast_mut().cast();
        // SAFETY: PTRACE_SETREGS reads a user_regs_struct from its last argument.
        unsafe { ptrace(libc::PTRACE_SETREGS, self.tid, 0, registers) }
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
        let described = (&raw mut buffer).cast();
        // SAFETY: PTRACE_GETREGSET writes to the buffer that the iovec describes, at most its length, and sets that.
        unsafe { ptrace(libc::PTRACE_GETREGSET, self.tid, kind, described)? };
        bytes.truncate(buffer.iov_len);
        Ok(bytes)
    }

    /// The signals that a stopped thread has blocked, signal n at bit n - 1.
    pub fn blocked_signals(&self) -> io::Result<u64> {
        // SAFETY: PTRACE_GETSIGMASK writes the 8 bytes of a kernel's signal set.
        unsafe { self.read(libc::PTRACE_GETSIGMASK, size_of::<u64>()) }
    }

    /// Sets the signals that a stopped thread has blocked. SIGKILL and SIGSTOP can't be blocked.
    pub fn set_blocked_signals(&self, mut set: u64) -> io::Result<()> {
        let (bytes, set) = (size_of::<u64>(), (&raw mut set).cast());
        // SAFETY: PTRACE_SETSIGMASK reads the 8 bytes of a kernel's signal set.
        unsafe { ptrace(libc::PTRACE_SETSIGMASK, self.tid, bytes, set) }
    }

    /// Whether the signal that a stopped thread is about to get is due to what it does at an address of which `is_moved` says so, where it was moved to. Others were
    /// sent by a process, or are due to what the thread did before, and wouldn't come again: a breakpoint of its own, or a system call that its filter traps.
    pub fn is_signal_due(&self, is_moved: impl Fn(u64) -> bool) -> io::Result<bool> {
        // SAFETY: PTRACE_GETSIGINFO writes a siginfo_t, which consists of numbers.
        let info: libc::siginfo_t = unsafe { self.read(libc::PTRACE_GETSIGINFO, 0)? };
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
        let bytes = size_of::<libc::ptrace_syscall_info>();
        // SAFETY: PTRACE_GET_SYSCALL_INFO writes a ptrace_syscall_info of at most this size, which consists of numbers.
        let info: libc::ptrace_syscall_info =
            unsafe { self.read(libc::PTRACE_GET_SYSCALL_INFO, bytes)? };
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
        let bytes = size_of::<libc::ptrace_rseq_configuration>();
        // SAFETY: PTRACE_GET_RSEQ_CONFIGURATION writes a ptrace_rseq_configuration of at most this size, which consists of numbers.
        let found: io::Result<libc::ptrace_rseq_configuration> =
            unsafe { self.read(libc::PTRACE_GET_RSEQ_CONFIGURATION, bytes) };
        let address = match found {
            // A kernel without restartable sequences doesn't know the request.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(None),
            found => found?.rseq_abi_pointer,
        };
        Ok((address != 0).then_some(address))
    }

    fn request(&self, request: c_uint, data: c_uint) -> io::Result<()> {
        // SAFETY: these requests take no address, and a signal or nothing as data.
        unsafe { ptrace(request, self.tid, 0, data as usize as *mut c_void) }
    }

    /// The value that `request` writes.
    ///
    /// # Safety
    /// The request with this address writes no more than a `T` to its last argument, and a `T` may be zeros and whatever it writes.
    unsafe fn read<T>(&self, request: c_uint, address: usize) -> io::Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: it writes no more than the value has.
        unsafe { ptrace(request, self.tid, address, value.as_mut_ptr().cast())? };
        // SAFETY: its bytes were zeroed or written.
        Ok(unsafe { value.assume_init() })
    }
}

impl Drop for TracedThread {
    fn drop(&mut self) {
        // See the type.
        let _ = self.request(libc::PTRACE_DETACH, 0);
    }
}

/// One call of ptrace(2).
///
/// # Safety
/// `data` is a number, or points to what the request with this address reads and writes.
unsafe fn ptrace(request: c_uint, tid: pid_t, address: usize, data: *mut c_void) -> io::Result<()> {
    // SAFETY: as the caller states.
    let result = unsafe { libc::ptrace(request, tid, address as *mut c_void, data) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
