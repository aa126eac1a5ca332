//! Locks whose state is one word: queued spin locks, and queued reader-writer locks.
//!
//! Which register has the lock's address depends on the compiler, but hardly any other memory has the form of the word
//! while the lock is held and others wait (`include/asm-generic/qspinlock_types.h`, `qrwlock_types.h`). The lock is the
//! only register's value that is the address of such a word. If no register fits, or if several do, the lock is
//! unknown, as it is when nobody holds it any more. The word doesn't name the holder.

use std::ops::Range;

use kvmprof_recording::LockWait;

use super::forms_of;
use crate::image::Symbols;
use crate::linux::LinuxKnowledge;
use crate::only;
use crate::{PhysicalMemory, Registers};

/// The functions that wait, and the kind of the lock's word.
const LOOPS: [(&str, Word); 6] = [
    ("native_queued_spin_lock_slowpath", Word::SpinLock),
    ("__pv_queued_spin_lock_slowpath", Word::SpinLock),
    ("queued_spin_lock_slowpath", Word::SpinLock),
    ("kvm_wait", Word::SpinLock),
    ("queued_read_lock_slowpath", Word::Readers),
    ("queued_write_lock_slowpath", Word::Writers),
];
/// Maximum number of CPUs of x86-64 Linux (`NR_CPUS`). The word has this layout for less than 16,384 CPUs.
const MAX_CPUS: u32 = 8192;
/// Maximum number of readers that hold a lock or wait for it.
const MAX_READERS: u32 = 1 << 16;

/// The kind of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// `struct qspinlock`.
    SpinLock,
    /// `struct qrwlock`, for readers.
    Readers,
    /// `struct qrwlock`, for writers.
    Writers,
}

impl Word {
    /// Whether `bytes`, 8 bytes of memory in little-endian order, begin with the word of a lock that is held and that
    /// others wait for.
    fn is_waited_for(self, bytes: u64) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let word = bytes as u32;
        if self == Self::SpinLock {
            return is_contended(word);
        }
        // The first waiter holds the spin lock after the word.
        let is_queued = (bytes >> 32) & 0xff == 1;
        let (writer, is_waiting, readers) = (word & 0xff, word & 0x100 != 0, word >> 9);
        let is_held_by_writer = writer == 0xff;
        let is_sound = (writer == 0 || is_held_by_writer) && readers < MAX_READERS;
        is_queued
            && is_sound
            && match self {
                // The count includes a waiting reader.
                Self::Readers => is_held_by_writer && readers > 0,
                _ => is_waiting && (is_held_by_writer || readers > 0),
            }
    }
}

/// Whether `word` is that of a queued spin lock that one CPU holds and another one waits for.
fn is_contended(word: u32) -> bool {
    // The second value is that of a paravirtualized lock whose waiter sleeps (`_Q_SLOW_VAL`).
    let is_held = matches!(word & 0xff, 1 | 3);
    let pending = (word >> 8) & 0xff;
    // The last CPU in the queue, counted from 1; 0 if the queue is empty.
    let tail = word >> 18;
    let is_tail_sound = tail <= MAX_CPUS && (tail > 0 || (word >> 16) & 3 == 0);
    is_held && pending <= 1 && is_tail_sound && (pending == 1 || tail > 0)
}

/// Code that waits for a lock in a loop.
#[derive(Debug)]
pub(super) struct WordLoop {
    /// Its link-time addresses.
    pub code: Range<u64>,
    word: Word,
}

impl WordLoop {
    /// Finds the code.
    pub fn find(symbols: &Symbols) -> Vec<Self> {
        let loops = LOOPS.iter().flat_map(|(name, word)| {
            forms_of(symbols, name).map(|code| Self { code, word: *word })
        });
        loops.collect()
    }
}

impl LinuxKnowledge {
    /// The lock that a vCPU waits for in this loop, with `registers`. Makes at most one read for each register.
    pub(super) fn lock_by_word<M: PhysicalMemory>(
        &self,
        waits: &WordLoop,
        memory: &M,
        registers: &Registers,
    ) -> Option<LockWait> {
        let view = self.view(memory, registers)?;
        // Unlike structures with pointers, such locks have addresses that are multiples of 4.
        let can_be_lock = |address: &u64| address >> 63 == 1 && address.is_multiple_of(4);
        let is_lock = |address: &u64| {
            let bytes = view.u64(*address);
            bytes.is_some_and(|bytes| waits.word.is_waited_for(bytes))
        };
        let values = registers.general().into_iter();
        Some(LockWait {
            address: only(values.filter(can_be_lock).filter(is_lock))?,
            owner: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock_wait;
    use super::*;
    use crate::test_guest::LinuxGuest;
    use kvmprof_introspection_fixtures::kernel::{HOT, NEW, OLD, TEXT, offsets};
    use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, SLIDE};

    const SPIN_LOOP: u64 = offsets::SPIN_LOOPS[0];
    const READ_LOOP: u64 = offsets::SPIN_LOOPS[1];
    const WRITE_LOOP: u64 = offsets::SPIN_LOOPS[2];
    /// Physical addresses of two locks.
    const LOCKS: [u64; 2] = [0x90_0000, 0x90_0104];

    fn look(guest: &LinuxGuest, code: u64, change: impl Fn(&mut Registers)) -> Option<LockWait> {
        let registers = Registers {
            rip: TEXT + SLIDE + code,
            rdi: DIRECT_MAP + LOCKS[0],
            r12: DIRECT_MAP + LOCKS[1],
            ..guest.kernel(0)
        };
        lock_wait(guest, registers, change)
    }

    #[test]
    fn a_spin_lock_is_recognised_by_its_word() {
        for kernel in [OLD, HOT, NEW] {
            let guest = LinuxGuest::new(kernel);
            // Held with one CPU pending; held with CPU 1 in the queue, on its second node; both; held by a CPU that has
            // to wake its waiter.
            for word in [0x101, 0x9_0001, 0x9_0101, 0x4_0003_u32] {
                guest.write(LOCKS[0], &word.to_le_bytes());
                let found = look(&guest, SPIN_LOOP, |_| {}).unwrap();
                assert_eq!(found.address, DIRECT_MAP + LOCKS[0], "{word:#x}");
                assert_eq!(found.owner, None);
            }
            // Free; held without waiters; just released; an invalid CPU; a node without a CPU; other numbers.
            for word in [0, 1, 0x4_0000, 0xffff_0001, 0x1_0101, 0x201, 0x102_u32] {
                guest.write(LOCKS[0], &word.to_le_bytes());
                assert_eq!(look(&guest, SPIN_LOOP, |_| {}), None, "{word:#x}");
            }
        }
    }

    #[test]
    fn a_read_write_lock_is_recognised_by_its_words() {
        let guest = LinuxGuest::new(HOT);
        let found = |code, bytes: u64| {
            guest.write(LOCKS[0], &bytes.to_le_bytes());
            look(&guest, code, |_| {}).is_some()
        };
        let queued = 1_u64 << 32;
        let cases = [
            // A writer holds the lock, and one reader waits.
            (queued | 0x2ff, true, false),
            // The same without a waiter at the head of the queue.
            (0x2ff, false, false),
            // A writer waits for two readers, or for another writer.
            (queued | 0x500, false, true),
            (queued | 0x1ff, false, true),
            // Readers hold the lock, and nobody waits.
            (queued | 0x400, false, false),
            // Invalid words.
            (queued | 0x2fe, false, false),
            (queued | 0xffff_ffff, false, false),
        ];
        for (bytes, readers, writers) in cases {
            assert_eq!(found(READ_LOOP, bytes), readers, "{bytes:#x}");
            assert_eq!(found(WRITE_LOOP, bytes), writers, "{bytes:#x}");
        }
    }

    #[test]
    fn an_inconsistent_lock_is_unknown() {
        let guest = LinuxGuest::new(HOT);
        guest.write(LOCKS[0], &0x101_u32.to_le_bytes());
        let spin = |change: &dyn Fn(&mut Registers)| look(&guest, SPIN_LOOP, change);
        assert!(spin(&|_| {}).is_some());
        // The same address in two registers isn't ambiguous.
        assert!(spin(&|it| it.rbx = it.rdi).is_some());
        // Other code; an address without such a word; an address outside the kernel.
        assert_eq!(spin(&|it| it.rip = TEXT + SLIDE + offsets::FRAMED), None);
        assert_eq!(spin(&|it| it.rdi += 2), None);
        assert_eq!(spin(&|it| it.rdi = 0x1000), None);
        // Two possible locks.
        guest.write(LOCKS[1], &0x101_u32.to_le_bytes());
        assert_eq!(spin(&|_| {}), None);
    }
}
