//! The entries of the maps: where their members are, in bytes. All numbers have 8 bytes, unless it is said.

use kvmprof_introspection::bytes::{array_at, u32_at, u64_at};
use kvmprof_recording::exits::{
    AccessKind, Exits, Histogram, InterruptKind, OfAccess, OfFunction, OfInterrupt, OfProcess,
    OfReason, OfThread, OfWait,
};

/// A vCPU's thread: the exit that it handles, and its waits for a processor. The key is the thread's id. Times are in ns of CLOCK_MONOTONIC.
/// When the exit came; 0 if it handles none.
pub const TIME: i16 = 0;
/// The reason, as the processor has given it.
pub const REASON: i16 = 8;
/// The vCPU's number.
pub const VCPU: i16 = 16;
/// The guest's program counter.
pub const RIP: i16 = 24;
/// The first access that KVM emulates, and 0 before: [`AccessKind`].
pub const ACCESS: i16 = 32;
/// What it is an access of.
pub const PLACE: i16 = 40;
/// Whether the exit was handed to the VMM: 1, otherwise 0.
pub const LEFT: i16 = 48;
/// The id of the guest's process, in 4 bytes; -1 if it couldn't be read.
pub const PID: i16 = 56;
/// The VMM's address of the process's name; 0 if it isn't known.
pub const NAME_AT: i16 = 64;
/// Whether the thread runs: 1, otherwise 0.
pub const ON_CPU: i16 = 72;
/// When it began to wait for a processor, and for which one; 0 if it doesn't wait.
pub const SINCE: i16 = 80;
pub const CPU: i16 = 88;
/// The time of all waits that are over, in ns, and their number.
pub const WAITED: i16 = 96;
pub const WAITS: i16 = 104;
/// Since when an interrupt, and since when a softirq has its processor, and by how much time of interrupts the softirq was interrupted; 0 for no such one.
pub const INTERRUPT: i16 = 112;
pub const SOFTIRQ: i16 = 120;
pub const INTERRUPTED: i16 = 128;
/// How often it was moved to another processor.
pub const MIGRATIONS: i16 = 136;
/// The size of a thread's entry.
pub const THREAD_BYTES: usize = 144;

/// The size of keys: of a thread; of a reason, with the vCPU, or the process; of an access or a function, with the reason, and the kind or the process; of a wait, with
/// the thread that waits, and the other's thread and process; of an interrupt, with the thread that it interrupts, the kind and the number. All but threads that wait,
/// accesses, functions and numbers of interrupts have 4 bytes.
pub const THREAD_KEY: usize = 8;
pub const REASON_KEY: usize = 8;
pub const PLACE_KEY: usize = 16;

/// Exits: their number, and their time in ns.
pub const COUNT: i16 = 0;
pub const TOTAL: i16 = 8;
/// The size of the entry of an access, a function or an interrupt.
pub const PLACE_BYTES: usize = 16;
/// Of a process or a wait, besides: its name.
pub const NAME: i16 = 16;
pub const NAME_BYTES: i32 = 16;
/// The size of the entry of a process or a wait.
pub const NAMED_BYTES: usize = 32;
/// Of a reason, besides: the longest one, those that were handed to the VMM, and the numbers in the histogram's classes.
pub const LONGEST: i16 = 16;
pub const LEFT_COUNT: i16 = 24;
pub const LEFT_TOTAL: i16 = 32;
pub const CLASSES: i16 = 40;
/// The size of a reason's entry.
pub const REASON_BYTES: usize = 40 + 8 * Histogram::CLASSES;

/// Totals: `KVM_ISA_*`, by which reasons are named.
pub const ISA: i16 = 0;
/// How often an entry didn't fit into a map: of threads, and so on.
pub const LOST_THREADS: i16 = 8;
pub const LOST_REASONS: i16 = 16;
pub const LOST_ACCESSES: i16 = 24;
pub const LOST_FUNCTIONS: i16 = 32;
/// How often KVM has handed something to the VMM.
pub const LEFT_KVM: i16 = 40;
/// As above, of processes and of waits, how often too many vCPUs waited for one processor, and of interrupts.
pub const LOST_PROCESSES: i16 = 48;
pub const LOST_WAITS: i16 = 56;
pub const LOST_SLOTS: i16 = 64;
pub const LOST_INTERRUPTS: i16 = 72;
/// The size of the totals.
pub const TOTALS_BYTES: usize = 80;

/// An entry of a map: the key, and the value.
pub type Entry = (Vec<u8>, Vec<u8>);

fn exits(value: &[u8]) -> Option<Exits> {
    Some(Exits {
        count: u64_at(value, 0)?,
        time: u64_at(value, 8)?,
    })
}

pub fn reason((key, value): &Entry) -> Option<OfReason> {
    let classes = (0..Histogram::CLASSES).map(|class| u64_at(value, 40 + 8 * class));
    Some(OfReason {
        reason: u32_at(key, 0)?,
        vcpu: u32_at(key, 4)?,
        exits: exits(value)?,
        longest: u64_at(value, 16)?,
        left: exits(value.get(24..)?)?,
        histogram: Histogram::new(classes.collect::<Option<Vec<u64>>>()?),
    })
}

pub fn access((key, value): &Entry) -> Option<OfAccess> {
    Some(OfAccess {
        reason: u32_at(key, 0)?,
        kind: AccessKind::of(u32_at(key, 4)?)?,
        place: u64_at(key, 8)?,
        exits: exits(value)?,
    })
}

pub fn function((key, value): &Entry) -> Option<OfFunction> {
    Some(OfFunction {
        reason: u32_at(key, 0)?,
        process: process_id(u32_at(key, 4)?),
        address: u64_at(key, 8)?,
        exits: exits(value)?,
    })
}

pub fn process((key, value): &Entry) -> Option<OfProcess> {
    Some(OfProcess {
        reason: u32_at(key, 0)?,
        process: process_id(u32_at(key, 4)?),
        name: array_at(value, 16)?,
        exits: exits(value)?,
    })
}

/// The id of a guest's process; `None` for -1.
fn process_id(number: u32) -> Option<i32> {
    Some(number.cast_signed()).filter(|id| *id != -1)
}

/// The waits of a vCPU's thread until `now`, in ns of the host's CLOCK_MONOTONIC.
pub fn thread((key, value): &Entry, now: u64) -> Option<OfThread> {
    let current = match u64_at(value, 80)? {
        0 => 0,
        since => now.saturating_sub(since),
    };
    Some(OfThread {
        thread: u32_at(key, 0)?,
        vcpu: u32_at(value, 16)?,
        waits: Exits {
            count: u64_at(value, 104)?,
            time: u64_at(value, 96)?.saturating_add(current),
        },
        migrations: u64_at(value, 136)?,
    })
}

pub fn wait((key, value): &Entry) -> Option<OfWait> {
    Some(OfWait {
        thread: u32_at(key, 0)?,
        other_thread: u32_at(key, 8)?,
        other_process: u32_at(key, 12)?,
        name: array_at(value, 16)?,
        turns: exits(value)?,
    })
}

pub fn interrupt((key, value): &Entry) -> Option<OfInterrupt> {
    Some(OfInterrupt {
        thread: u32_at(key, 0)?,
        kind: InterruptKind::of(u32_at(key, 4)?)?,
        number: u32_at(key, 8)?,
        time: exits(value)?,
    })
}
