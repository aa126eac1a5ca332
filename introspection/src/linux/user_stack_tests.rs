//! Tests of the user part of stacks of a vCPU in the kernel.

use kvmprof_recording::{StackEnd, StackParts, StackSummary};
use vm_memory::Bytes;

use super::*;
use crate::test_guest::LinuxGuest;
use crate::{Registers, Stack, StackCopy, VcpuIntrospector};
use kvmprof_introspection_fixtures::kernel::{Areas, HOT, TEXT, offsets, task};
use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, SLIDE, TABLES, TASKS, USER_TABLES};
use kvmprof_introspection_fixtures::page_tables::Tables;
use kvmprof_introspection_fixtures::processes::FixtureMemory;

/// The page tables of another process, and page tables right after those of the first one.
const OTHER_TABLES: u64 = 0x5_0000;
const NEXT_TABLES: u64 = USER_TABLES;
/// Both processes have their code and their stack at the same addresses.
const CODE: u64 = 0x40_0000;
const STACK: u64 = 0x7fff_0000_0000;
/// The stack of the kernel, by physical address.
const KERNEL_STACK: u64 = 0x50_0000;
const WHOLE: StackEnd = StackEnd::Complete;

/// A guest with two processes: tasks 1 and 2 with pids 41 and 42. Their user stacks have two and three frames.
struct Processes {
    guest: LinuxGuest,
    introspector: VcpuIntrospector,
    /// The first process's `struct mm_struct`.
    memory: u64,
}

impl Processes {
    fn new() -> Self {
        let guest = LinuxGuest::new(HOT);
        let mut kernel_half = [0; 4096];
        let tables = GuestAddress(TABLES);
        guest.memory.read_slice(&mut kernel_half, tables).unwrap();
        guest.write(OTHER_TABLES, &kernel_half);
        for (root, pages, frames) in [(TABLES, 0x52_0000, 2), (OTHER_TABLES, 0x53_0000, 3)] {
            let mut tables = Tables::new(guest.memory.clone(), root, 4);
            tables.skip_to(pages + 0x8000);
            tables.map(CODE, pages, 1);
            tables.map(STACK, pages + 0x1000, 1);
            // Every eight bytes of code end with a call.
            guest.write(pages, &[0xe8; 4096]);
            // HLT behind the outermost call.
            guest.write(pages + 0x100 * (frames - 1), &[0xf4]);
            for index in 0..frames - 1 {
                let is_last = index == frames - 2;
                let caller = if is_last { 0 } else { STACK + (index + 1) * 16 };
                let frame = [caller, CODE + 0x100 * (index + 1)].map(u64::to_le_bytes);
                guest.write(pages + 0x1000 + index * 16, frame.as_flattened());
            }
        }
        let mut room = FixtureMemory::new(&guest, Areas::Tree);
        let [memory, other] = [1, 2].map(|index| room.process(index, &[]));
        room.page_tables(other, OTHER_TABLES);
        // The registers that were saved at the entry into the kernel.
        guest.write(KERNEL_STACK, &[0; 168]);
        for (offset, register) in [(32, STACK), (128, CODE), (136, 0x33), (152, STACK)] {
            guest.write(KERNEL_STACK + offset, &register.to_le_bytes());
        }
        Self {
            introspector: guest.introspector(0),
            guest,
            memory,
        }
    }

    fn room(&self) -> FixtureMemory<'_> {
        FixtureMemory::new(&self.guest, Areas::Tree)
    }

    /// The user frames and their end, of a vCPU in the kernel with page tables `cr3` that came from user mode.
    fn user_part(&mut self, cr3: u64) -> (Vec<u64>, StackEnd) {
        let registers = Registers {
            rip: TEXT + SLIDE + offsets::ENTRY + 4,
            rsp: DIRECT_MAP + KERNEL_STACK,
            cr3,
            ..self.guest.kernel(0)
        };
        let (frames, summary) = self.unwind(&registers);
        assert_eq!((summary.kernel, summary.kernel_end), (1, WHOLE));
        assert_eq!(frames[0], registers.rip);
        (frames[1..].to_vec(), summary.user_end)
    }

    fn unwind(&mut self, registers: &Registers) -> (Vec<u64>, StackSummary) {
        let parts = StackParts {
            kernel: true,
            user: true,
        };
        let mut stack = Stack::default();
        let memory = &self.guest.memory;
        (self.introspector).identify(memory, registers, false, false);
        self.introspector.follow_process(memory, registers, 0);
        (self.introspector).unwind(memory, registers, parts, None, &mut stack);
        (stack.frames().to_vec(), stack.summary())
    }
}

#[test]
fn user_memory_is_read_by_the_running_tasks_page_tables() {
    let mut processes = Processes::new();
    let first = (vec![CODE, CODE + 0xff], WHOLE);
    let second = (vec![CODE, CODE + 0xff, CODE + 0x1ff], WHOLE);
    assert_eq!(processes.user_part(TABLES | 3), first);
    // The next task's tables have been loaded, but it isn't the current task yet.
    let nothing = (vec![], StackEnd::Broken);
    assert_eq!(processes.user_part(OTHER_TABLES), nothing);
    processes.guest.run(0, 2);
    assert_eq!(processes.user_part(OTHER_TABLES), second);
    assert_eq!(processes.user_part(TABLES), nothing);
}

#[test]
fn adjacent_page_tables_are_a_pair_only_with_kpti() {
    let mut processes = Processes::new();
    // The user half of the pair, at the kernel's first instructions: it maps only the user's memory.
    let mut tables = Tables::new(processes.guest.memory.clone(), USER_TABLES, 4);
    tables.skip_to(0x54_0000);
    tables.map(CODE, 0x52_0000, 1);
    tables.map(STACK, 0x52_1000, 1);
    let own = (vec![CODE, CODE + 0xff], WHOLE);
    assert_eq!(processes.user_part(USER_TABLES), own);
    // Without KPTI, these tables belong to another process.
    let mut other = [0; 4096];
    let from = GuestAddress(OTHER_TABLES);
    (processes.guest.memory.read_slice(&mut other, from)).unwrap();
    processes.guest.write(NEXT_TABLES, &other);
    let nothing = (vec![], StackEnd::Broken);
    assert_eq!(processes.user_part(NEXT_TABLES), nothing);
}

#[test]
fn tasks_without_memory_of_their_own_have_no_user_part() {
    let mut processes = Processes::new();
    // The task exits, while its memory is still loaded.
    let mm = DIRECT_MAP + TASKS + 0x1000 + task::MM;
    processes.room().put(mm, 0);
    let nothing = (vec![], StackEnd::Absent);
    assert_eq!(processes.user_part(TABLES), nothing);
    processes.room().put(mm, processes.memory);
    assert_eq!(processes.user_part(TABLES).0.len(), 2);
    // The task executes another program that isn't loaded yet.
    processes.room().start_code(processes.memory, 0);
    assert_eq!(processes.user_part(TABLES), nothing);
    // The running task is unknown.
    processes.guest.task(1, -1, 1, 1);
    assert_eq!(processes.user_part(TABLES), (vec![], StackEnd::Broken));
}

#[test]
fn in_user_mode_the_memory_is_the_running_tasks() {
    let mut processes = Processes::new();
    let registers = Registers {
        rip: CODE,
        rsp: STACK,
        rbp: STACK,
        cr3: OTHER_TABLES,
        cpl: 3,
        is_64_bit_code: true,
        ..processes.guest.user()
    };
    let (frames, summary) = processes.unwind(&registers);
    assert_eq!(frames, [CODE, CODE + 0xff, CODE + 0x1ff]);
    assert_eq!((summary.kernel, summary.user_end), (0, WHOLE));
}

/// Copies of the first process's stacks, and the task that ran.
struct Copied {
    kernel: [u8; 168],
    user: [u8; 32],
    /// The address of the kernel's stack.
    saved: u64,
    registers: Registers,
    task: u64,
}

impl Copied {
    fn new(processes: &Processes) -> Self {
        let (mut kernel, mut user) = ([0; 168], [0; 32]);
        let memory = &processes.guest.memory;
        let read = |buffer: &mut [u8], from| memory.read_slice(buffer, GuestAddress(from));
        read(&mut kernel, KERNEL_STACK).unwrap();
        read(&mut user, 0x52_1000).unwrap();
        Self {
            kernel,
            user,
            saved: DIRECT_MAP + KERNEL_STACK,
            registers: Registers {
                rip: TEXT + SLIDE + offsets::ENTRY + 4,
                rsp: DIRECT_MAP + KERNEL_STACK,
                cr3: TABLES,
                ..processes.guest.kernel(0)
            },
            task: DIRECT_MAP + TASKS + 0x1000,
        }
    }

    /// The stack of a task of process `pid` from the first bytes of these copies.
    fn unwind(
        &self,
        processes: &mut Processes,
        pid: i32,
        kernel: usize,
        user: usize,
    ) -> (Vec<u64>, StackSummary) {
        let parts = StackParts {
            kernel: true,
            user: true,
        };
        let copies = [
            StackCopy {
                address: self.saved,
                bytes: &self.kernel[..kernel],
            },
            StackCopy {
                address: STACK,
                bytes: &self.user[..user],
            },
        ];
        let mut stack = Stack::default();
        let memory = &processes.guest.memory;
        let introspector = &mut processes.introspector;
        introspector.recall(memory, &self.registers, self.task, pid);
        introspector.follow_process(memory, &self.registers, 0);
        introspector.unwind(memory, &self.registers, parts, Some(&copies), &mut stack);
        (stack.frames().to_vec(), stack.summary())
    }
}

#[test]
fn copied_stacks_unwind_without_guest_memory() {
    let mut processes = Processes::new();
    // This locates the kernel.
    assert_eq!(processes.user_part(TABLES).1, WHOLE);
    let copied = Copied::new(&processes);
    processes.guest.write(KERNEL_STACK, &[0xff; 168]);
    processes.guest.write(0x52_1000, &[0xff; 32]);
    let (frames, summary) = copied.unwind(&mut processes, 41, 168, 32);
    assert_eq!(frames, [copied.registers.rip, CODE, CODE + 0xff]);
    assert_eq!((summary.kernel_end, summary.user_end), (WHOLE, WHOLE));
}

#[test]
fn partly_copied_stacks_are_marked_as_truncated() {
    let mut processes = Processes::new();
    assert_eq!(processes.user_part(TABLES).1, WHOLE);
    let copied = Copied::new(&processes);
    let cut = StackEnd::Truncated;
    let (frames, summary) = copied.unwind(&mut processes, 41, 168, 8);
    assert_eq!(frames, [copied.registers.rip, CODE]);
    assert_eq!((summary.kernel_end, summary.user_end), (WHOLE, cut));
    let (frames, summary) = copied.unwind(&mut processes, 41, 128, 32);
    assert_eq!(frames, [copied.registers.rip]);
    let nothing = StackEnd::Absent;
    assert_eq!((summary.kernel_end, summary.user_end), (cut, nothing));
}

/// As with VT-x.
#[test]
fn without_the_stack_pointer_the_user_part_begins_with_the_saved_registers() {
    let mut processes = Processes::new();
    assert_eq!(processes.user_part(TABLES).1, WHOLE);
    let mut copied = Copied::new(&processes);
    copied.registers.rsp = 0;
    let mut at = |offset: u64, copied: &mut Copied| {
        copied.registers.rip = TEXT + SLIDE + offset;
        let (frames, summary) = copied.unwind(&mut processes, 41, 168, 32);
        assert_eq!(frames[0], copied.registers.rip);
        assert_eq!(
            (summary.kernel, summary.kernel_end),
            (1, StackEnd::Unsupported)
        );
        (frames[1..].to_vec(), summary.user_end)
    };
    let whole = (vec![CODE, CODE + 0xff], WHOLE);
    assert_eq!(at(offsets::ENTRY_END + 0x24, &mut copied), whole);
    // While they are saved they aren't whole.
    let none = (vec![], StackEnd::Absent);
    for offset in [0, 0x7f, 0x80, 0x9f] {
        assert_eq!(at(offsets::ENTRY + offset, &mut copied), none);
    }
    // Nor is other code known to run after that.
    copied.registers.rip = 0xffff_fe00_0000_6000;
    let (frames, summary) = copied.unwind(&mut processes, 41, 168, 32);
    assert_eq!((frames.len(), summary.user), (1, 0));
    // A program's code has its own tables, or nothing.
    (copied.registers.rip, copied.registers.cpl) = (CODE, 3);
    (copied.registers.rbp, copied.registers.is_64_bit_code) = (STACK, true);
    let (frames, summary) = copied.unwind(&mut processes, 41, 168, 32);
    assert_eq!((frames, summary.user_end), (vec![CODE], StackEnd::Broken));
}

#[test]
fn an_ended_task_owns_no_stack() {
    let mut processes = Processes::new();
    assert_eq!(processes.user_part(TABLES).1, WHOLE);
    let copied = Copied::new(&processes);
    let (frames, summary) = copied.unwind(&mut processes, 43, 168, 32);
    assert_eq!(frames, [copied.registers.rip]);
    assert_eq!(summary.user_end, StackEnd::Broken);
    // The task now has the page tables of another process.
    let room = processes.room();
    room.page_tables(processes.memory, OTHER_TABLES);
    let (_, summary) = copied.unwind(&mut processes, 41, 168, 32);
    assert_eq!(summary.user_end, StackEnd::Broken);
}
