//! Locks whose owner a vCPU compares while it waits.
//!
//! Linux waits in a loop for a mutex or a reader-writer semaphore while its owner is on a CPU (`mutex_spin_on_owner`,
//! `kernel/locking/mutex.c`; `rwsem_spin_on_owner`, `kernel/locking/rwsem.c`). Each iteration compares the lock's word
//! `owner` with the owner at the start, so registers have both addresses. The lock is the only register's value whose
//! `owner` in memory is another register's value and a task. If no register fits, or if several do, the lock is
//! unknown.

use std::ops::Range;

use kvmprof_recording::{LockOwner, LockWait};

use super::forms_of;
use crate::image::Symbols;
use crate::image::types::Types;
use crate::linux::LinuxKnowledge;
use crate::linux::cpu::{comm, task_at};
use crate::linux::view::kernel_pointer;
use crate::only;
use crate::{PhysicalMemory, Registers};

/// The functions that wait in a loop, the structure that is their first argument, and its member that points to the owner.
const LOOPS: [(&str, &str, &str); 2] = [
    ("mutex_spin_on_owner", "mutex", "owner"),
    ("rwsem_spin_on_owner", "rw_semaphore", "owner"),
];
/// The lowest bits of such a word, which are flags (`MUTEX_FLAGS`, `kernel/locking/mutex.c`; `RWSEM_OWNER_FLAGS_MASK`,
/// `kernel/locking/rwsem.c`). Tasks have addresses that are multiples of 64.
const OWNER_FLAGS: u64 = 7;
/// The flag in a semaphore's word for readers that hold it. The task is then only the last one that took it
/// (`RWSEM_READER_OWNED`).
const READER_OWNED: u64 = 1;

/// Code that waits in a loop for a lock with an owner.
#[derive(Debug)]
pub(super) struct OwnedLoop {
    /// Its link-time addresses.
    pub code: Range<u64>,
    /// The offset of the owner in the lock, in bytes.
    owner: u64,
    /// Flags with which the task isn't the owner.
    shared: u64,
}

impl OwnedLoop {
    /// Finds the code. Kernels without optimistic spinning have none.
    pub fn find(symbols: &Symbols, types: &Types<'_>) -> Vec<Self> {
        let mut loops = Vec::new();
        for (name, structure, member) in LOOPS {
            let Some(owner) = types.offset_of(structure, member) else {
                continue;
            };
            loops.extend(forms_of(symbols, name).map(|code| Self {
                code,
                owner,
                shared: if structure == "rw_semaphore" {
                    READER_OWNED
                } else {
                    0
                },
            }));
        }
        loops
    }
}

impl LinuxKnowledge {
    /// The lock that a vCPU waits for in this loop, with `registers`. Reads at most one word for each register, the two
    /// ids of the word's owner if that fits, and then the ids, the name and the CPU of one task.
    pub(super) fn owned_lock<M: PhysicalMemory>(
        &self,
        waits: &OwnedLoop,
        memory: &M,
        registers: &Registers,
    ) -> Option<LockWait> {
        let tasks = self.task_list.as_ref()?;
        let view = self.view(memory, registers)?;
        let values = registers.general();
        let pointers = values.into_iter().filter_map(kernel_pointer);
        let (address, owner) = only(pointers.filter_map(|address| {
            let word = view.u64(address.wrapping_add(waits.owner))?;
            let owner = word & !OWNER_FLAGS;
            // Tasks have pointers to themselves.
            let can_own = owner != 0 && owner != address && word & waits.shared == 0;
            let is_owner = can_own && values.contains(&owner);
            (is_owner && task_at(&view, owner).is_some()).then_some((address, owner))
        }))?;
        let task = task_at(&view, owner)?;
        let number = |offset: u64| view.i32(owner.wrapping_add(offset));
        let vcpu = match number(tasks.on_cpu)? {
            0 => None,
            _ => Some(u16::try_from(number(tasks.cpu)?).ok()?),
        };
        Some(LockWait {
            address,
            owner: Some(LockOwner {
                pid: task.process,
                tid: task.thread,
                comm: comm(&view, owner),
                vcpu,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock_wait;
    use super::*;
    use crate::test_guest::LinuxGuest;
    use kvmprof_introspection_fixtures::kernel::{
        HOT, Kernel, NEW, OLD, TEXT, lock, offsets, task,
    };
    use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, SLIDE, TASKS};

    /// The physical address of the lock.
    const LOCK: u64 = 0x90_0000;

    fn address(task: u64) -> u64 {
        DIRECT_MAP + TASKS + task * 0x1000
    }

    /// A guest whose CPU 0 waits for a lock with this word. Task 2 holds the lock, and is on CPU 1.
    fn guest(kernel: Kernel, member: u64, word: u64) -> LinuxGuest {
        let guest = LinuxGuest::new(kernel);
        guest.write(LOCK + member, &word.to_le_bytes());
        let owner = TASKS + 2 * 0x1000;
        guest.write(owner + task::ON_CPU, &1_u32.to_le_bytes());
        guest.write(owner + task::CPU, &1_u32.to_le_bytes());
        guest
    }

    fn look(guest: &LinuxGuest, change: impl Fn(&mut Registers)) -> Option<LockWait> {
        let registers = Registers {
            rip: TEXT + SLIDE + offsets::OWNER_LOOPS[0],
            rbx: DIRECT_MAP + LOCK,
            r12: address(2),
            rax: address(1),
            ..guest.kernel(0)
        };
        lock_wait(guest, registers, change)
    }

    #[test]
    fn a_lock_is_recognised_by_its_owner() {
        for kernel in [OLD, HOT, NEW] {
            for flags in [0, 1, 7] {
                let guest = guest(kernel, lock::MUTEX_OWNER, address(2) | flags);
                let found = look(&guest, |_| {}).unwrap();
                assert_eq!(found.address, DIRECT_MAP + LOCK);
                let owner = found.owner.unwrap();
                assert_eq!((owner.pid, owner.tid, owner.vcpu), (42, 142, Some(1)));
                assert_eq!(owner.comm, *b"task-42\0\0\0\0\0\0\0\0\0");
            }
        }
    }

    #[test]
    fn a_semaphore_of_readers_has_no_owner() {
        let rwsem = |registers: &mut Registers| {
            registers.rip = TEXT + SLIDE + offsets::OWNER_LOOPS[1];
        };
        let found = |flags| look(&guest(HOT, lock::RWSEM_OWNER, address(2) | flags), rwsem);
        assert!(found(0).is_some() && found(2).is_some());
        assert_eq!(found(1), None);
    }

    #[test]
    fn inconsistent_owners_are_unknown() {
        let guest = guest(HOT, lock::MUTEX_OWNER, address(2));
        assert!(look(&guest, |_| {}).is_some());
        // The same address in two registers isn't ambiguous.
        assert!(look(&guest, |it| it.rdi = it.rbx).is_some());
        // Other code; no register with the owner; another owner than in memory; no lock.
        let elsewhere = TEXT + SLIDE + offsets::FRAMED;
        assert_eq!(look(&guest, |it| it.rip = elsewhere), None);
        assert_eq!(look(&guest, |it| it.r12 = 0), None);
        assert_eq!(look(&guest, |it| it.r12 = address(0)), None);
        assert_eq!(look(&guest, |it| it.rbx = !7), None);
        assert_eq!(look(&guest, |it| it.rbx = 0x1000), None);
        // Two possible locks.
        let second = LOCK + 0x100;
        guest.write(second + lock::MUTEX_OWNER, &address(2).to_le_bytes());
        assert_eq!(look(&guest, |it| it.r15 = DIRECT_MAP + second), None);
    }

    #[test]
    fn an_owner_that_is_not_a_task_is_unknown() {
        let nothing = DIRECT_MAP + 0xa0_0000;
        let guest = guest(HOT, lock::MUTEX_OWNER, nothing);
        guest.write(0xa0_0000 + task::PID, &(-5_i32).to_le_bytes());
        assert_eq!(look(&guest, |it| it.r12 = nothing), None);
    }
}
