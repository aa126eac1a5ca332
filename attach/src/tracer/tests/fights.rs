//! Processes that fight their tracer: one thread is looked at while it does what makes that hard.

use std::arch::asm;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// CS of 32-bit code (`__USER32_CS`).
const CODE_32_BIT: u64 = 0x23;
/// DS of 32-bit code (`__USER_DS`): 64-bit code needs none, and may have none.
const DATA_32_BIT: u32 = 0x2b;
/// `PR_SET_SYSCALL_USER_DISPATCH`, `PR_SYS_DISPATCH_ON`, and the selector's value with which each call is refused by SIGSYS (`include/uapi/linux/prctl.h`).
const DISPATCH: i32 = 59;
const DISPATCH_ON: u64 = 1;
const DISPATCH_BLOCKS: u8 = 1;
/// The trap flag in RFLAGS: SIGTRAP after each instruction.
const TRAP: u64 = 1 << 8;
const PAGE: usize = 4096;
/// How often each outcome of a look has to be seen, and the longest time for that.
const TIMES: u32 = 30;
pub const LIMIT: Duration = Duration::from_secs(120);
/// Fights in which others help.
const TRACED: &str = "has a tracer of its own";
const STOPPED: &str = "is stopped again and again";

/// What a thread counts, where 32-bit code can write to it: its rounds, and signals that nobody has sent it.
#[repr(C)]
struct Counts {
    rounds: AtomicU64,
    signals: AtomicU64,
}

/// Signals of which the thread itself is the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signals {
    None,
    /// One in each round.
    Each,
    Some,
}

pub const ASKED: &str = "KVM was asked";

/// Ways to fight: the outcomes of looks, each of which must be seen, and no other one but that the host is busy; and the signals that the thread gets.
const FIGHTS: [(&str, &[&str], Signals); 13] = [
    ("starts threads", &[ASKED], Signals::None),
    ("forks", &[ASKED], Signals::None),
    ("has its calls notified", &[ASKED], Signals::None),
    ("has its calls dispatched", &["signal 31"], Signals::None),
    ("single-steps", &[ASKED, "signal 5"], Signals::Some),
    ("has breakpoints", &[ASKED, "signal 5"], Signals::Each),
    (
        "has its calls trapped",
        &[ASKED, "signal 31"],
        Signals::Each,
    ),
    ("has no stack", &["no frame"], Signals::None),
    ("has its code as its stack", &["no stack"], Signals::None),
    ("is 32-bit code", &["32-bit code"], Signals::None),
    ("hides its C library", &["another program"], Signals::None),
    (TRACED, &[ASKED, "busy"], Signals::None),
    (STOPPED, &[ASKED, "suspended"], Signals::None),
];

/// What the thread does, for good.
fn act(name: &str) -> fn(&'static Counts) {
    match name {
        "starts threads" => start_threads,
        "forks" => fork,
        "has its calls notified" => have_calls_notified,
        "has its calls dispatched" => have_calls_dispatched,
        "single-steps" => single_step,
        "has breakpoints" => break_off,
        "has its calls trapped" => have_calls_trapped,
        "has no stack" => have_no_stack,
        "has its code as its stack" => have_code_as_stack,
        "is 32-bit code" => be_32_bit_code,
        "hides its C library" => hide_library,
        TRACED | STOPPED => spin,
        other => panic!("{other}"),
    }
}

fn spin(counts: &'static Counts) {
    loop {
        counts.rounds.fetch_add(1, Ordering::SeqCst);
    }
}

fn start_threads(counts: &'static Counts) {
    loop {
        thread::spawn(|| {}).join().unwrap();
        counts.rounds.fetch_add(1, Ordering::SeqCst);
    }
}

fn fork(counts: &'static Counts) {
    loop {
        // SAFETY: the child only ends.
        match unsafe { libc::fork() } {
            // SAFETY: as above.
            0 => unsafe { libc::_exit(0) },
            child => {
                let mut status = 0;
                // SAFETY: the call writes the status.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                // It has ended by itself: nobody has stopped it.
                assert_eq!((waited, status), (child, 0));
            }
        }
        counts.rounds.fetch_add(1, Ordering::SeqCst);
    }
}

/// A filter has another thread decide about each ioctl(2), which never does. Whoever waits for that waits for ever.
fn have_calls_notified(counts: &'static Counts) {
    let mut instructions = [
        seccomp::load(seccomp::NUMBER),
        seccomp::skip(u32::try_from(libc::SYS_ioctl).unwrap(), 0, 1),
        seccomp::action(libc::SECCOMP_RET_USER_NOTIF),
        seccomp::action(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: instructions.as_mut_ptr(),
    };
    seccomp::no_new_privileges().unwrap();
    // SAFETY: the kernel copies the program, whose instructions are alive. Nobody uses the descriptor, which stays open.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    assert!(listener >= 0, "{}", std::io::Error::last_os_error());
    spin(counts);
}

static BLOCKS: u8 = DISPATCH_BLOCKS;

/// Each system call of the thread is a SIGSYS instead (the kernel's Documentation/admin-guide/syscall-user-dispatch.rst).
fn have_calls_dispatched(counts: &'static Counts) {
    // SAFETY: the selector stays where it is.
    let set = unsafe { libc::prctl(DISPATCH, DISPATCH_ON, 0_u64, 0_u64, &raw const BLOCKS) };
    // Any call of this thread would be a signal from here on.
    if set == 0 {
        spin(counts);
    }
}

/// The thread has SIGTRAP after each of its instructions, and ignores none: its handler counts.
fn single_step(counts: &'static Counts) {
    // SAFETY: the flag is the thread's own, and has no effect on memory.
    unsafe { asm!("pushfq", "or qword ptr [rsp], {}", "popfq", const TRAP) };
    spin(counts);
}

/// A signal that comes again if it is lost is one thing; this one doesn't.
fn break_off(counts: &'static Counts) {
    loop {
        counts.rounds.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the signal has a handler.
        unsafe { asm!("int3") };
    }
}

/// A filter has each getppid(2) be a SIGSYS.
fn have_calls_trapped(counts: &'static Counts) {
    let filtered = seccomp::no_new_privileges().and_then(|()| {
        seccomp::filter(&mut [
            seccomp::load(seccomp::NUMBER),
            seccomp::skip(u32::try_from(libc::SYS_getppid).unwrap(), 0, 1),
            seccomp::action(libc::SECCOMP_RET_TRAP),
            seccomp::action(libc::SECCOMP_RET_ALLOW),
        ])
    });
    filtered.unwrap();
    loop {
        counts.rounds.fetch_add(1, Ordering::SeqCst);
        // SAFETY: it has no arguments.
        unsafe { libc::getppid() };
    }
}

fn have_no_stack(counts: &'static Counts) {
    // SAFETY: the loop needs no stack, and never ends.
    unsafe {
        asm!(
            "xor esp, esp",
            "2:",
            "lock inc qword ptr [{rounds}]",
            "jmp 2b",
            rounds = in(reg) &raw const counts.rounds,
            options(noreturn)
        )
    }
}

fn have_code_as_stack(counts: &'static Counts) {
    // SAFETY: as above. The code is in front of the address, for some pages.
    unsafe {
        asm!(
            "mov rsp, {code}",
            "2:",
            "lock inc qword ptr [{rounds}]",
            "jmp 2b",
            code = in(reg) have_code_as_stack as *const (),
            rounds = in(reg) &raw const counts.rounds,
            options(noreturn)
        )
    }
}

fn be_32_bit_code(counts: &'static Counts) {
    let rounds = (&raw const counts.rounds).addr();
    let address = u32::try_from(rounds).unwrap();
    // lock incl ADDRESS; jmp to it
    let mut code = vec![0xf0, 0xff, 0x05];
    code.extend(address.to_le_bytes());
    code.extend([0xeb, 0xf7]);
    let place = rounds + PAGE;
    // SAFETY: this page of the mapping is for this code alone, which writes to the count alone, and never ends.
    unsafe {
        ptr::copy_nonoverlapping(code.as_ptr(), place as *mut u8, code.len());
        asm!(
            "mov ds, {ds:e}",
            "push {cs}",
            "push {code}",
            "retfq",
            ds = in(reg) DATA_32_BIT,
            cs = const CODE_32_BIT,
            code = in(reg) place,
            options(noreturn)
        )
    }
}

/// Nothing of what the tracer has threads execute can be executed any more. Nobody in this process needs the page.
fn hide_library(counts: &'static Counts) {
    let code = ThreadCode::find(std::process::id().cast_signed()).unwrap();
    let page = code.signal_return & !(PAGE as u64 - 1);
    // SAFETY: only the page's own functions are lost, and no thread of this process calls any function any more.
    unsafe {
        asm!(
            "syscall",
            "2:",
            "lock inc qword ptr [r8]",
            "jmp 2b",
            // A register that the call leaves as it is.
            in("r8") &raw const counts.rounds,
            in("rax") libc::SYS_mprotect, in("rdi") page, in("rsi") PAGE, in("rdx") libc::PROT_NONE,
            options(noreturn)
        )
    }
}

/// A process that traces `thread` of its parent for a moment, again and again.
fn start_tracer(thread: i32) {
    // SAFETY: the child calls nothing but the kernel, and ends with its parent.
    unsafe {
        // Its parent isn't above it.
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0);
        if libc::fork() != 0 {
            return;
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        loop {
            if libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) == 0 {
                libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0);
                libc::waitpid(thread, ptr::null_mut(), libc::__WALL);
                libc::usleep(2000);
                libc::ptrace(libc::PTRACE_DETACH, thread, 0, 0);
            }
            libc::usleep(3000);
        }
    }
}

/// Signals that nobody has sent are counted.
static COUNTS: AtomicU64 = AtomicU64::new(0);
/// Whether the thread is to begin.
static BEGINS: AtomicBool = AtomicBool::new(false);

extern "C" fn count_signal(_: i32) {
    let counts = COUNTS.load(Ordering::SeqCst) as *const Counts;
    // SAFETY: the mapping stays until the process ends.
    unsafe { (*counts).signals.fetch_add(1, Ordering::SeqCst) };
}

fn map_counts() -> &'static Counts {
    let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    // SAFETY: a new mapping, which stays; zeros are counts.
    unsafe {
        let counts = libc::mmap(ptr::null_mut(), 2 * PAGE, access, flags, -1, 0);
        assert_ne!(counts, libc::MAP_FAILED);
        COUNTS.store(counts as u64, Ordering::SeqCst);
        &*counts.cast()
    }
}

/// The process: one thread fights once it is told to.
#[test]
fn the_process() {
    let Some(what) = is_started() else {
        return;
    };
    let counts = map_counts();
    let act = act(&what);
    let handler: extern "C" fn(i32) = count_signal;
    for signal in [libc::SIGSYS, libc::SIGTRAP] {
        // SAFETY: the handler does what a handler may do.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    let (sender, received) = channel();
    thread::spawn(move || {
        sender.send(own_thread()).unwrap();
        while !BEGINS.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        act(counts);
    });
    let thread = received.recv().unwrap();
    if what == TRACED {
        start_tracer(thread);
    }
    tell(thread, ptr::from_ref(counts) as u64);
    stdin().read_line(&mut String::new()).unwrap();
    BEGINS.store(true, Ordering::SeqCst);
    await_end();
}

/// Ends the process when its input ends. It executes nothing of the C library, which a thread may hide.
fn await_end() -> ! {
    let mut byte = 0_u8;
    // SAFETY: the first call writes a byte at most, and the second one ends the process.
    unsafe {
        asm!(
            "syscall",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            exit = const libc::SYS_exit_group,
            in("rax") libc::SYS_read,
            in("rdi") 0,
            in("rsi") &raw mut byte,
            in("rdx") 1,
            options(noreturn)
        )
    }
}

/// What a look at a thread has come to.
fn outcome(looked: Result<StopOutcome<()>, TraceError>) -> String {
    match looked {
        // The process has no vCPU: KVM isn't asked, but the system call is done.
        Err(TraceError::Kvm(error)) if error.raw_os_error() == Some(libc::EBADF) => ASKED.into(),
        Err(TraceError::Signal(signal)) => format!("signal {signal}"),
        Err(TraceError::Stack(_)) => "no stack".into(),
        Err(TraceError::Unknown) => "no frame".into(),
        Err(TraceError::Not64Bit) => "32-bit code".into(),
        Err(TraceError::OtherProgram) => "another program".into(),
        Err(TraceError::Slow) => "slow".into(),
        Ok(StopOutcome::Busy) => "busy".into(),
        Ok(StopOutcome::Suspended) => "suspended".into(),
        Ok(StopOutcome::Gone) => "gone".into(),
        other => format!("{other:?}"),
    }
}

pub fn look(vcpu: &mut TracedVcpu) -> String {
    outcome(vcpu.look(|vcpu| vcpu.registers().map(drop)))
}

/// Rounds and signals, while the thread stands still.
fn counted(process: &OtherProcess, vcpu: &mut TracedVcpu) -> [u64; 2] {
    loop {
        if let Ok(StopOutcome::Stopped(counted)) = vcpu.look(|_| Ok(process.told())) {
            return counted;
        }
        let_go(vcpu);
    }
}

/// Lets a slow thread go as soon as it can be.
pub fn let_go(vcpu: &mut TracedVcpu) {
    while vcpu.is_slow() {
        vcpu.let_go();
        thread::yield_now();
    }
}

/// Stops and continues the process until `is_over`.
fn stop_and_continue(pid: i32, is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        for signal in [libc::SIGSTOP, libc::SIGCONT] {
            // SAFETY: it only sends a signal, to a child of this process.
            unsafe { libc::kill(pid, signal) };
            thread::sleep(Duration::from_millis(3));
        }
    }
}

/// Looks at the thread until each outcome has been seen often enough.
fn fight(name: &str, outcomes: &[&str], vcpu: &mut TracedVcpu) {
    let begin = Instant::now();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let is_enough = |seen: &BTreeMap<String, u32>| {
        let times = |outcome: &&str| seen.get(*outcome).copied().unwrap_or_default();
        outcomes.iter().all(|outcome| times(outcome) >= TIMES)
    };
    while !is_enough(&seen) {
        let outcome = look(vcpu);
        let is_known = outcomes.contains(&outcome.as_str()) || outcome == "slow";
        assert!(is_known, "{name}: {outcome}");
        *seen.entry(outcome).or_default() += 1;
        assert!(begin.elapsed() < LIMIT, "{name}: {seen:?}");
        let_go(vcpu);
    }
}

/// Whatever the thread does, each look ends as it has to, and the thread goes on as it was: with its signals, without a tracer, and without a signal that it
/// wouldn't have had.
#[test]
fn a_process_that_fights_its_tracer_goes_on_and_a_look_ends() {
    for (name, outcomes, expected) in FIGHTS {
        let has_filter = name.starts_with("has its calls ");
        if has_filter && !rustix::process::geteuid().is_root() {
            continue;
        }
        let mut process = OtherProcess::begin("fights::the_process", name);
        let mut vcpu = process.vcpu();
        writeln!(process.child.stdin.as_mut().unwrap()).unwrap();
        while process.told::<1>()[0] == 0 {
            thread::yield_now();
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            if name == STOPPED {
                scope.spawn(|| stop_and_continue(process.pid(), &is_over));
            }
            // The thread that looks is the one that traces: this one.
            fight(name, outcomes, &mut vcpu);
            is_over.store(true, Ordering::SeqCst);
        });
        let [rounds, signals] = counted(&process, &mut vcpu);
        let is_right = match expected {
            Signals::None => signals == 0,
            Signals::Some => signals > 0,
            // That of the last round may not have come.
            Signals::Each => (rounds - 1..=rounds).contains(&signals),
        };
        assert!(is_right, "{name}: {signals} in {rounds} rounds");
        while process.told::<1>()[0] == rounds {
            let ended = process.child.try_wait().unwrap();
            assert!(ended.is_none(), "{name}: {ended:?}");
        }
        if name != TRACED {
            assert_eq!(process.status("TracerPid:"), "0", "{name}");
        }
        // Handlers block their own signals meanwhile. A thread that starts another one blocks all, for a moment.
        if expected == Signals::None {
            let (none, begin) = ("0".repeat(16), Instant::now());
            while process.status("SigBlk:") != none {
                assert!(begin.elapsed() < LIMIT, "{name}");
            }
        }
    }
}
