//! The entries of the maps: where their members are, in bytes. All numbers have 8 bytes, unless it is said.

use kvmprof_introspection::bytes::{u32_at, u64_at};

use super::counts::{AccessKind, Exits, Histogram, OfAccess, OfFunction, OfReason};

/// A vCPU's thread: the exit that it handles. The key is the thread's id. 0 if it handles none: when the exit came, in ns of CLOCK_MONOTONIC.
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
/// The size of a thread's entry.
pub const THREAD_BYTES: usize = 56;

/// The size of keys: of a thread; of a reason, with the vCPU; of an access or a function, with the reason. Reasons and vCPUs have 4 bytes.
pub const THREAD_KEY: usize = 8;
pub const REASON_KEY: usize = 8;
pub const PLACE_KEY: usize = 16;

/// Exits: their number, and their time in ns.
pub const COUNT: i16 = 0;
pub const TOTAL: i16 = 8;
/// The size of the entry of an access or a function.
pub const PLACE_BYTES: usize = 16;
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
/// The size of the totals.
pub const TOTALS_BYTES: usize = 48;

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
        histogram: Histogram(classes.collect::<Option<_>>()?),
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
        address: u64_at(key, 8)?,
        exits: exits(value)?,
    })
}
