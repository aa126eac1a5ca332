//! The threads of a process: their state in the host's scheduler, and means to stop one.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;

use kvmprof_profiling::clock::ThreadTimes;
use object::{Object, ObjectSymbol};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::until;

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its name.
    pub name: String,
    /// The number of times that it went to sleep by itself.
    pub voluntary_switches: u64,
    /// How long it has run, and waited for a processor.
    pub times: ThreadTimes,
    /// The number of the system call in which it waits; `None` while it runs.
    pub system_call: Option<i64>,
}

/// The threads of process `pid` whose names begin with `name`, by thread id (proc(5), `task/TID`).
///
/// # Panics
/// If there is no such process.
pub fn threads(pid: u32, name: &str) -> Vec<Thread> {
    ids(pid)
        .into_iter()
        .filter_map(|id| {
            let status = fs::read_to_string(format!("/proc/{pid}/task/{id}/status")).ok()?;
            let field = |key: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(key))?;
                Some(line.trim().to_owned())
            };
            Some(Thread {
                name: field("Name:")?,
                voluntary_switches: field("voluntary_ctxt_switches:")?.parse().ok()?,
                times: times(pid, id)?,
                system_call: system_call(pid, id),
            })
        })
        .filter(|thread| thread.name.starts_with(name))
        .collect()
}

fn times(pid: u32, tid: u32) -> Option<ThreadTimes> {
    let schedstat = File::open(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    ThreadTimes::read(&schedstat).ok()
}

/// The system call of thread `tid` (proc(5), `task/TID/syscall`).
fn system_call(pid: u32, tid: u32) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn ids(pid: u32) -> Vec<u32> {
    let mut ids: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    ids.sort_unstable();
    ids
}

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes below a stack that the code running on it may use (System V ABI, the red zone).
const RED_ZONE: u64 = 128;
/// The instruction `int3`, at which a thread stops.
const BREAKPOINT: [u8; 1] = [0xcc];
/// Bytes below a stack's end up to which its memory is free: the threads' stacks have 2 MiB.
const FREE: u64 = 1 << 20;
/// A function of Rust's library that panics. Its argument is the place of the fault.
const PANICS: &str = "panic_const_add_overflow";
/// The arguments of socket(2) for a TCP socket.
const INTERNET: [u64; 3] = [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0];
/// The signal of a stop at the start or the end of a system call, with PTRACE_O_TRACESYSGOOD.
const AT_CALL: i32 = libc::SIGTRAP | 0x80;

/// A thread of another process, which is stopped until this is dropped (ptrace(2)).
#[derive(Debug)]
pub struct StoppedThread {
    pid: u32,
    tid: libc::pid_t,
    /// Only the thread that has stopped it can release it.
    _not_send: PhantomData<*const ()>,
}

impl StoppedThread {
    /// Stops the thread called `name` of process `pid`, and waits until it has stopped.
    ///
    /// # Panics
    /// If there is no such thread, or it can't be stopped.
    pub fn stop(pid: u32, name: &str) -> Self {
        let is_it = |tid: &u32| {
            let comm = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        };
        // A thread sets its own name once it runs.
        let tid = until("the thread has its name", || {
            let tid = ids(pid).into_iter().find(is_it);
            tid.and_then(|tid| tid.try_into().ok())
        });
        let stopped = Self {
            pid,
            tid,
            _not_send: PhantomData,
        };
        stopped.request(libc::PTRACE_SEIZE);
        stopped.request(libc::PTRACE_INTERRUPT);
        // SAFETY: waitpid(2) accepts a null pointer for the status.
        let waited = unsafe { libc::waitpid(stopped.tid, std::ptr::null_mut(), libc::__WALL) };
        assert_eq!(waited, stopped.tid, "{}", io::Error::last_os_error());
        stopped
    }

    /// Makes the thread open the file `path` for reading, as an attacker would after taking over the thread. The thread's own work is lost:
    /// its process can only be used for more such calls.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(&self, path: &CStr) -> Result<(), Errno> {
        let place = self.put(path.to_bytes_with_nul());
        let flags = u64::from(OFlags::CLOEXEC.bits());
        // AT_FDCWD only matters for a relative path.
        self.call(libc::SYS_openat, [0, place, flags])
    }

    /// Makes the thread open the file `path` to write to it with openat2(2), in the same way.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open_to_write(&self, path: &CStr) -> Result<(), Errno> {
        let arguments = self.put_to_write(path);
        self.call(libc::SYS_openat2, arguments)
    }

    /// Like [`open_to_write`](Self::open_to_write), but releases the thread, and doesn't wait for an answer.
    pub fn let_go_to_open_to_write(self, path: &CStr) {
        let arguments = self.put_to_write(path);
        self.prepare(libc::SYS_openat2, arguments);
    }

    /// Makes the thread execute `program`, in the same way.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn execute(&self, program: &CStr) -> Result<(), Errno> {
        let place = self.put(program.to_bytes_with_nul());
        self.call(libc::SYS_execve, [place, 0, 0])
    }

    /// Releases the thread to make a call with these two paths, and doesn't wait for an answer.
    pub fn let_go_to_call(self, call: i64, first: &CStr, second: &CStr) {
        let place = self.put(&[first, second].map(CStr::to_bytes_with_nul).concat());
        let after = place + first.count_bytes() as u64 + 1;
        self.prepare(call, [place, after, 0]);
    }

    /// Makes the thread create an Internet socket, in the same way.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn make_socket(&self) -> Result<(), Errno> {
        self.call(libc::SYS_socket, INTERNET)
    }

    /// Like [`make_socket`](Self::make_socket), but releases the thread, and doesn't wait for an answer.
    pub fn let_go_to_make_socket(self) {
        self.prepare(libc::SYS_socket, INTERNET);
    }

    /// Makes the thread panic, as by an overflow in its own code: it runs to the function of `program` whose symbol contains all of
    /// `words`, and panics in place of it. No other thread may get there meanwhile. Returns false if `program` has no symbols.
    pub fn let_go_to_panic(self, program: &Path, words: &[&str]) -> bool {
        let file = fs::read(program).unwrap();
        let file = object::File::parse(&*file).unwrap();
        let base = self.base(program);
        let address = |words: &[&str]| {
            let has_all = |name: &str| words.iter().all(|word| name.contains(word));
            let mut symbols = file.symbols();
            let found = symbols.find(|symbol| symbol.name().is_ok_and(has_all));
            found.map(|symbol| base + symbol.address())
        };
        if file.symbols().next().is_none() {
            return false;
        }
        let begin = address(words).unwrap_or_else(|| panic!("there is no function {words:?}"));
        self.run_to(begin);
        let registers = self.registers();
        // A `core::panic::Location`: a text with a NUL at its end, line and column.
        let name = b"on purpose\0";
        let place = (registers.rsp - FREE) & !0xf;
        let location = [place + 24, name.len() as u64, 1 << 32 | 1].map(u64::to_le_bytes);
        let bytes = [&location.concat()[..], name].concat();
        self.write(place, &bytes);
        self.set_registers(&libc::user_regs_struct {
            rip: address(&[PANICS]).unwrap_or_else(|| panic!("there is no function {PANICS}")),
            orig_rax: u64::MAX,
            rdi: place,
            ..registers
        });
        true
    }

    /// Runs the thread until the instruction at `address`. The thread of a vCPU leaves the guest for this.
    fn run_to(&self, address: u64) {
        let mut before = BREAKPOINT;
        let memory = File::open(self.memory()).unwrap();
        memory.read_exact_at(&mut before, address).unwrap();
        self.write(address, &BREAKPOINT);
        let process = libc::pid_t::try_from(self.pid).unwrap();
        // SAFETY: this sends a signal, which a vCPU's thread takes.
        unsafe { libc::syscall(libc::SYS_tgkill, process, self.tid, libc::SIGRTMIN()) };
        let mut signal: libc::c_long = 0;
        loop {
            // SAFETY: the data are the signal for the thread.
            let went = unsafe { libc::ptrace(libc::PTRACE_CONT, self.tid, 0, signal) };
            assert_eq!(went, 0, "{}", io::Error::last_os_error());
            let mut status = 0;
            // SAFETY: waitpid(2) writes the status.
            let waited = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL) };
            assert_eq!(waited, self.tid, "{}", io::Error::last_os_error());
            assert!(libc::WIFSTOPPED(status), "{status:#x}");
            let stop = libc::WSTOPSIG(status);
            if stop == libc::SIGTRAP && self.registers().rip == address + 1 {
                break;
            }
            // Other stops are of ptrace itself, without a signal.
            signal = if status >> 16 == 0 { stop.into() } else { 0 };
        }
        self.write(address, &before);
        self.set_registers(&libc::user_regs_struct {
            rip: address,
            ..self.registers()
        });
    }

    /// The address at which the process has mapped `program`.
    fn base(&self, program: &Path) -> u64 {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap();
        let program = fs::canonicalize(program).unwrap();
        let is_it = |line: &&str| line.ends_with(program.to_str().unwrap());
        let first = maps.lines().find(is_it).unwrap();
        let (begin, _) = first.split_once('-').unwrap();
        u64::from_str_radix(begin, 16).unwrap()
    }

    /// Writes `bytes` below the thread's stack. Returns their address.
    fn put(&self, bytes: &[u8]) -> u64 {
        let used = RED_ZONE + bytes.len() as u64;
        let stack = self.registers().rsp.checked_sub(used);
        let place = stack.unwrap_or_else(|| panic!("{} has no stack", self.tid));
        self.write(place, bytes);
        place
    }

    /// Writes the structure that openat2(2) reads below the thread's stack, and sets the register of the fourth argument. Returns the other
    /// arguments.
    fn put_to_write(&self, path: &CStr) -> [u64; 3] {
        // `struct open_how`: flags, mode, and how the path is followed.
        let how = [u64::from(OFlags::WRONLY.bits()), 0, 0];
        let how = how.map(u64::to_ne_bytes).concat();
        let size = how.len() as u64;
        let place = self.put(&[how.as_slice(), path.to_bytes_with_nul()].concat());
        self.set_registers(&libc::user_regs_struct {
            r10: size,
            ..self.registers()
        });
        [0, place + size, place]
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        let memory = File::options().write(true).open(self.memory()).unwrap();
        memory.write_all_at(bytes, address).unwrap();
    }

    /// Makes the thread make the system call with this number and these first arguments, in the same way.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn call(&self, number: i64, arguments: [u64; 3]) -> Result<(), Errno> {
        self.prepare(number, arguments);
        // SAFETY: the data are the options.
        let set = unsafe {
            libc::ptrace(
                libc::PTRACE_SETOPTIONS,
                self.tid,
                0,
                libc::PTRACE_O_TRACESYSGOOD,
            )
        };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        // The thread stops at the start of the call, and at its end.
        for _ in 0..2 {
            self.request(libc::PTRACE_SYSCALL);
            let mut status = 0;
            // SAFETY: waitpid(2) writes the status.
            let waited = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL) };
            assert_eq!(waited, self.tid, "{}", io::Error::last_os_error());
            assert!(libc::WIFSTOPPED(status), "{status:#x}");
            assert_eq!(libc::WSTOPSIG(status), AT_CALL, "{status:#x}");
        }
        match i32::try_from(self.registers().rax.cast_signed()) {
            Ok(answer @ ..0) => Err(Errno::from_raw_os_error(-answer)),
            _ => Ok(()),
        }
    }

    /// Sets the registers so that the thread makes a system call next.
    fn prepare(&self, number: i64, [first, second, third]: [u64; 3]) {
        let registers = libc::user_regs_struct {
            rip: self.syscall_instruction(),
            rax: number.cast_unsigned(),
            // This keeps the kernel from repeating a call that the thread was in.
            orig_rax: u64::MAX,
            rdi: first,
            rsi: second,
            rdx: third,
            ..self.registers()
        };
        self.set_registers(&registers);
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) {
        // SAFETY: the request reads the registers, and takes no address.
        let set = unsafe {
            let none = ptr::null_mut::<libc::c_void>();
            let registers = ptr::from_ref(registers);
            libc::ptrace(libc::PTRACE_SETREGS, self.tid, none, registers)
        };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    }

    fn registers(&self) -> libc::user_regs_struct {
        let mut registers = MaybeUninit::uninit();
        // SAFETY: the request writes the registers, and takes no address. Its result is checked.
        unsafe {
            let none = ptr::null_mut::<libc::c_void>();
            let got = libc::ptrace(libc::PTRACE_GETREGS, self.tid, none, registers.as_mut_ptr());
            assert_eq!(got, 0, "{}", io::Error::last_os_error());
            registers.assume_init()
        }
    }

    /// The address of the instruction `syscall` in the process's code.
    fn syscall_instruction(&self) -> u64 {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap();
        let code = maps.lines().find(|line| line.contains(" r-xp ")).unwrap();
        let (range, _) = code.split_once(' ').unwrap();
        let (begin, end) = range.split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|it| u64::from_str_radix(it, 16).unwrap());
        let mut bytes = vec![0; usize::try_from(end - begin).unwrap()];
        let memory = File::open(self.memory()).unwrap();
        memory.read_exact_at(&mut bytes, begin).unwrap();
        let mut pairs = bytes.windows(SYSCALL.len());
        begin + pairs.position(|pair| pair == SYSCALL).unwrap() as u64
    }

    fn memory(&self) -> String {
        format!("/proc/{}/mem", self.pid)
    }

    fn request(&self, request: libc::c_uint) {
        // SAFETY: these requests take no address and no data: both are 0.
        let result = unsafe { libc::ptrace(request, self.tid, 0, 0) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // SAFETY: as above.
        let detached = unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, 0, 0) } == 0;
        if !detached {
            // The thread has ended meanwhile. Until waitpid(2) has reported this, its process can't be waited for.
            // SAFETY: waitpid(2) accepts a null pointer for the status.
            unsafe { libc::waitpid(self.tid, std::ptr::null_mut(), libc::__WALL) };
        }
    }
}
