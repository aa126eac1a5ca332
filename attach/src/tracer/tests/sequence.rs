//! A thread in a restartable sequence (rseq(2)).

use std::arch::global_asm;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// `struct rseq` (`include/uapi/linux/rseq.h`), and the signature in front of the handler of ends before time.
#[repr(C, align(32))]
struct Rseq {
    cpus: [u32; 2],
    sequence: AtomicU64,
    rest: [u32; 4],
}
const SIGNATURE: u32 = 0x5305_3053;

/// The current attempt, the last aborted one and the last other one, and the sequence's start and end addresses.
static TOLD: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
const ATTEMPT: usize = 0;
const ABORTED: usize = 1;
const COMMITTED: usize = 2;
const START: usize = 3;
const END: usize = 4;
/// Iterations of the loop in the sequence.
const SPINS: u64 = 2_000_000;

// test_sequence(rseq: rdi, place: rsi, value: rdx, spins: rcx) -> 1 if the value was stored, 0 if the sequence was aborted.
global_asm!(
    ".pushsection .data.test_sequence, \"aw\"",
    ".balign 32",
    "2: .long 0, 0",
    ".quad 3f, 4f - 3f, 5f",
    ".popsection",
    ".globl test_sequence",
    "test_sequence:",
    "lea rax, [rip + 2b]",
    "mov [rdi + 8], rax",
    ".globl test_sequence_start",
    "test_sequence_start:",
    "3:",
    "dec rcx",
    "jnz 3b",
    "mov [rsi], rdx",
    ".globl test_sequence_end",
    "test_sequence_end:",
    "4:",
    "mov eax, 1",
    "ret",
    ".long {signature}",
    "5:",
    "xor eax, eax",
    "ret",
    signature = const SIGNATURE,
);

unsafe extern "C" {
    fn test_sequence(rseq: *mut Rseq, place: *mut u64, value: u64, spins: u64) -> u64;
    fn test_sequence_start();
    fn test_sequence_end();
}

/// The process: one thread makes attempts.
#[test]
fn the_process() {
    if is_started().is_none() {
        return;
    }
    let (sender, received) = channel();
    thread::spawn(move || {
        let mut rseq = Rseq {
            cpus: [0; 2],
            sequence: AtomicU64::new(0),
            rest: [0; 4],
        };
        let size = size_of::<Rseq>();
        // SAFETY: the structure stays where it is until the process ends.
        let result = unsafe { libc::syscall(libc::SYS_rseq, &raw mut rseq, size, 0, SIGNATURE) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        sender.send(own_thread()).unwrap();
        for attempt in 1.. {
            let mut place = 0;
            TOLD[ATTEMPT].store(attempt, Ordering::SeqCst);
            // SAFETY: it stores to `place`, and to the thread's own structure.
            let result = unsafe { test_sequence(&raw mut rseq, &raw mut place, attempt, SPINS) };
            assert_eq!(place, result * attempt);
            let end = if result == 1 { COMMITTED } else { ABORTED };
            TOLD[end].store(attempt, Ordering::SeqCst);
        }
    });
    for (index, address) in [
        (START, test_sequence_start as *const () as u64),
        (END, test_sequence_end as *const () as u64),
    ] {
        TOLD[index].store(address, Ordering::SeqCst);
    }
    tell(received.recv().unwrap(), TOLD.as_ptr() as u64);
    stdin().read_line(&mut String::new()).unwrap();
}

/// An attempt during which the thread was stopped is aborted, and the thread isn't moved out of it and back.
#[test]
fn a_restartable_sequence_is_aborted() {
    let process = OtherProcess::begin("sequence::the_process", "1");
    let mut vcpu = process.vcpu();
    let [_, _, _, start, end] = process.told();
    let mut inside = 0;
    while inside < 50 {
        let (mut attempt, mut is_inside) = (0, false);
        let looked = vcpu.look(|vcpu| {
            attempt = process.told::<5>()[ATTEMPT];
            is_inside = (start..end).contains(&vcpu.thread.registers().rip);
            vcpu.registers().map(drop)
        });
        match looked {
            Err(TraceError::Restartable) => {
                assert!(is_inside);
                inside += 1;
                let mut told = process.told::<5>();
                while told[COMMITTED].max(told[ABORTED]) < attempt {
                    thread::yield_now();
                    told = process.told();
                }
                assert_ne!(told[COMMITTED], attempt, "{told:?}");
            }
            // Between two attempts, where it can be moved.
            Err(TraceError::Kvm(_)) => assert!(!is_inside),
            // The host is busy.
            Err(TraceError::Slow) => {}
            other => panic!("{other:?}"),
        }
    }
}
