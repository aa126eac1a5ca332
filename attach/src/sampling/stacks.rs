//! The part of the program that copies the guest's stacks, which are unwound later.
//!
//! Stacks are at guest-virtual addresses. So the program walks the guest's page tables as the processor does (AMD APM volume 2,
//! section 5.3; Intel SDM volume 3, section 4.5). All jumps go forward, so that every walk ends, whatever the guest's tables contain.

use super::assembly::{
    ADD_IMMEDIATE, ADD_REGISTER, AND_IMMEDIATE, HELPER_PROBE_READ_USER, JUMP,
    JUMP_IF_ABOVE_IMMEDIATE, JUMP_IF_ANY_BIT, JUMP_IF_NEGATIVE, JUMP_IF_NOT, JUMP_IF_NOT_ABOVE,
    JUMP_IF_NOT_BELOW, JUMP_IF_NOT_EQUAL, OR_IMMEDIATE, OR_REGISTER, Program, RECORD, Range,
    SHIFT_LEFT, SHIFT_RIGHT, SHIFT_RIGHT_SIGNED, STACK, STORE_IMMEDIATE_64, SUBTRACT_REGISTER,
    offset16,
};
use super::record::{
    AVAILABLE, COPIES, COPY, CR3, FLAGS, FRAME, GENERAL, INTERRUPT, KERNEL, RBP, RSP, STACK_BYTES,
    TASKS_ROOT, USER,
};
use crate::kernel_memory::program::{LOAD_64, MOVE_IMMEDIATE, MOVE_REGISTER, STORE_64};

/// Bytes of the smallest page.
const PAGE: i32 = 4096;
/// Bits of an entry of a page table: it is in use, and it maps a large page.
const PRESENT: i32 = 1;
const LARGE: i32 = 1 << 7;
/// The bits of an address that are in the last page, and those that one level translates.
const PAGE_SHIFT: i32 = 12;
const LEVEL_SHIFT: i32 = 9;
/// A task's stack in the kernel ends at a multiple of this (`THREAD_SIZE`, `arch/x86/include/asm/page_64_types.h`).
const KERNEL_STACK: i32 = 16 << 10;
/// The outermost word of an interrupt's stack is the last one of a page.
const LAST_WORD: i32 = 0xff8;
/// The bytes that an entry of the kernel from user mode saves at the end of its stack: SS, RSP, RFLAGS and CS.
const SAVED_BYTES: i32 = 32;
/// Bytes of all registers that it saves there (`struct pt_regs`, `arch/x86/include/asm/ptrace.h`).
const SAVED_REGISTERS: i32 = 168;
/// The segments of user code differ only in one bit (`__USER32_CS`, `__USER_CS`).
const USER_CODE: i32 = 0x23;
const USER_CODE_BIT: i32 = 0x10;

/// Registers that calls don't change: the address that is translated or copied, and the table that translates it.
const ADDRESS: u8 = 7;
const TABLE: u8 = 8;
/// Offsets of variables on the program's own stack: an entry of a table; the end of the part that is copied; the number of bytes
/// copied in all; the length of the next piece; the saved registers; an address on the task's stack; and the outermost word of the
/// interrupt stack.
const ENTRY: i16 = -8;
const END: i16 = -16;
const USED: i16 = -24;
const PIECE: i16 = -32;
const SAVED: i16 = -64;
const TASK_STACK: i16 = -72;
const OUTERMOST: i16 = -80;

/// How many stacks there are.
pub const MOST: usize = 3;

/// Which parts of which stacks are copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stacks {
    /// Maximum number of bytes of each stack.
    pub bytes: i32,
    /// What is known of the guest's kernel; `None` if that isn't Linux. Then only the stack that is in use is copied.
    pub linux: Option<LinuxStacks>,
    /// Whether the stack pointer isn't in memory, as with VT-x. Then what is copied is the stack at the frame pointer, if that is one of user code, the
    /// registers that a task's entry into the kernel has saved, and the stack at the pointer among these.
    pub hides_pointer: bool,
    /// 4 or 5 levels of page tables.
    pub levels: i32,
    /// Guest memory, by physical address.
    pub memory: Vec<Range>,
}

/// The stacks of a Linux guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinuxStacks {
    /// Whether the stack in user mode is copied, too.
    pub user: bool,
    /// The VMM's address of the pointer to the interrupts' stack.
    pub interrupt_stack: Option<u64>,
}

impl Stacks {
    /// Maximum number of bytes of a record, and of one piece behind it: the verifier only knows that each piece
    /// is smaller than a page.
    pub fn room(&self) -> usize {
        STACK_BYTES + usize::try_from(self.most() + PAGE).unwrap_or_default()
    }

    fn most(&self) -> i32 {
        3 * self.bytes
    }

    /// Maximum number of pieces of a stack, which may begin anywhere in a page.
    fn pieces(&self) -> i32 {
        (self.bytes + PAGE - 1) / PAGE + 1
    }
}

impl Program {
    /// Nothing is copied yet, and the task's stack isn't known.
    pub fn begin_stacks(&mut self) {
        for variable in [USED, TASK_STACK] {
            self.add(STORE_IMMEDIATE_64, STACK, 0, variable, 0);
        }
    }

    /// Reads the address of the task's stack, which is at the address in register 3.
    pub fn read_task_stack(&mut self) {
        self.read_word(TASK_STACK);
    }

    /// Copies stacks behind the record's [`STACK_BYTES`]. The record has the guest's registers, CR3 and flags already. Changes all registers of
    /// the program but the record and the context.
    pub fn copy_stacks(&mut self, stacks: &Stacks) {
        if stacks.hides_pointer {
            self.copy_without_pointer(stacks);
            return;
        }
        self.load(1, AVAILABLE);
        let has_pointer = self.jump(JUMP_IF_ANY_BIT, 1, 0, 1 << RSP);
        let no_pointer = self.jump(JUMP, 0, 0, 0);
        self.land(has_pointer);
        self.load(ADDRESS, GENERAL + 8 * RSP);
        self.immediate(AND_IMMEDIATE, ADDRESS, -8);
        let mut ends = vec![no_pointer];
        match stacks.linux {
            Some(linux) => ends.extend(self.copy_linux_stacks(stacks, linux)),
            None => self.copy_all(stacks, KERNEL),
        }
        self.land_all(ends);
    }

    /// Copies what is known of user stacks without the stack pointer, if the task's page tables are.
    fn copy_without_pointer(&mut self, stacks: &Stacks) {
        self.load(1, FLAGS);
        let has_root = self.jump(JUMP_IF_ANY_BIT, 1, 0, TASKS_ROOT);
        let has_none = self.jump(JUMP, 0, 0, 0);
        self.land(has_root);
        self.load(ADDRESS, GENERAL + 8 * RBP);
        self.immediate(AND_IMMEDIATE, ADDRESS, -8);
        let is_kernels = self.jump(JUMP_IF_NEGATIVE, ADDRESS, 0, 0);
        self.copy_all(stacks, FRAME);
        self.land(is_kernels);
        self.end_of_kernel_stack(ADDRESS);
        self.registers(MOVE_REGISTER, 1, ADDRESS);
        self.immediate(ADD_IMMEDIATE, ADDRESS, -SAVED_REGISTERS);
        self.copy(stacks, KERNEL, 1);
        let ends = self.find_user_stack(stacks);
        self.copy_all(stacks, USER);
        self.land_all(ends);
        self.land(has_none);
    }

    /// Copies the stack at [`ADDRESS`], and those that it interrupts. The returned jumps are taken if nothing is left to copy.
    fn copy_linux_stacks(&mut self, stacks: &Stacks, linux: LinuxStacks) -> Vec<usize> {
        let is_kernels = self.jump(JUMP_IF_NEGATIVE, ADDRESS, 0, 0);
        let is_users = self.jump(JUMP, 0, 0, 0);
        self.land(is_kernels);
        let mut ends = Vec::new();
        if let Some(pointer) = linux.interrupt_stack {
            ends.extend(self.copy_interrupt_stack(stacks, pointer));
        }
        self.add(STORE_64, STACK, ADDRESS, TASK_STACK, 0);
        self.copy_kernel_stack(stacks);
        if linux.user {
            ends.extend(self.find_user_stack(stacks));
        } else {
            ends.push(self.jump(JUMP, 0, 0, 0));
        }
        self.land(is_users);
        if linux.user {
            self.copy_all(stacks, USER);
        }
        ends
    }

    /// Copies from [`ADDRESS`] as much as is copied of a stack, as copy number `index`.
    fn copy_all(&mut self, stacks: &Stacks, index: usize) {
        self.registers(MOVE_REGISTER, 1, ADDRESS);
        self.immediate(ADD_IMMEDIATE, 1, stacks.bytes);
        self.copy(stacks, index, 1);
    }

    /// If [`ADDRESS`] is on the interrupt stack, copies that stack and sets the address to where the interrupted stack continues.
    /// The returned jumps are taken if that address isn't known.
    fn copy_interrupt_stack(&mut self, stacks: &Stacks, pointer: u64) -> [usize; 2] {
        self.load_immediate(3, pointer);
        self.read_word(ENTRY);
        let unknown = self.jump(JUMP_IF_NOT, 0, 0, 0);
        self.add(LOAD_64, 1, STACK, ENTRY, 0);
        self.immediate(ADD_IMMEDIATE, 1, -8);
        self.immediate(OR_IMMEDIATE, 1, LAST_WORD);
        self.add(STORE_64, STACK, 1, OUTERMOST, 0);
        self.registers(MOVE_REGISTER, 2, 1);
        self.registers(SUBTRACT_REGISTER, 2, ADDRESS);
        let is_elsewhere = self.jump(JUMP_IF_ABOVE_IMMEDIATE, 2, 0, KERNEL_STACK);
        self.immediate(ADD_IMMEDIATE, 1, 8);
        self.limit(stacks);
        self.copy(stacks, INTERRUPT, 1);
        self.add(LOAD_64, ADDRESS, STACK, OUTERMOST, 0);
        self.translate(stacks);
        self.read_word(ENTRY);
        let unreadable = self.jump(JUMP_IF_NOT, 0, 0, 0);
        self.add(LOAD_64, ADDRESS, STACK, ENTRY, 0);
        self.immediate(AND_IMMEDIATE, ADDRESS, -8);
        let is_kernels = self.jump(JUMP_IF_NEGATIVE, ADDRESS, 0, 0);
        let is_none = self.jump(JUMP, 0, 0, 0);
        self.land_all([unknown, is_elsewhere, is_kernels]);
        [unreadable, is_none]
    }

    /// Reads a word at the address in register 3, to the program's own stack.
    fn read_word(&mut self, place: i16) {
        self.registers(MOVE_REGISTER, 1, STACK);
        self.immediate(ADD_IMMEDIATE, 1, place.into());
        self.immediate(MOVE_IMMEDIATE, 2, 8);
        self.call(HELPER_PROBE_READ_USER);
    }

    /// Lowers the address in register 1 to the last one that is copied from [`ADDRESS`] on.
    fn limit(&mut self, stacks: &Stacks) {
        self.registers(MOVE_REGISTER, 2, ADDRESS);
        self.immediate(ADD_IMMEDIATE, 2, stacks.bytes);
        let is_nearer = self.jump(JUMP_IF_NOT_ABOVE, 1, 2, 0);
        self.registers(MOVE_REGISTER, 1, 2);
        self.land(is_nearer);
    }

    /// Puts the record's length into `register`.
    pub fn record_length(&mut self, register: u8, stacks: &Stacks) {
        self.add(LOAD_64, register, STACK, USED, 0);
        let is_beyond = self.jump(JUMP_IF_ABOVE_IMMEDIATE, register, 0, stacks.most());
        let is_within = self.jump(JUMP, 0, 0, 0);
        self.land(is_beyond);
        self.immediate(MOVE_IMMEDIATE, register, 0);
        self.land(is_within);
        self.immediate(ADD_IMMEDIATE, register, offset16(STACK_BYTES).into());
    }

    /// Copies from [`ADDRESS`] up to the end of a task's stack at most.
    fn copy_kernel_stack(&mut self, stacks: &Stacks) {
        self.end_of_kernel_stack(1);
        self.limit(stacks);
        self.copy(stacks, KERNEL, 1);
    }

    fn end_of_kernel_stack(&mut self, register: u8) {
        self.add(LOAD_64, register, STACK, TASK_STACK, 0);
        self.immediate(OR_IMMEDIATE, register, KERNEL_STACK - 1);
        self.immediate(ADD_IMMEDIATE, register, 1);
    }

    /// Sets [`ADDRESS`] to the stack pointer that was saved when the kernel was entered. The returned jumps are taken if no
    /// stack pointer was saved.
    fn find_user_stack(&mut self, stacks: &Stacks) -> [usize; 3] {
        self.end_of_kernel_stack(ADDRESS);
        self.immediate(ADD_IMMEDIATE, ADDRESS, -SAVED_BYTES);
        self.translate(stacks);
        self.registers(MOVE_REGISTER, 1, STACK);
        self.immediate(ADD_IMMEDIATE, 1, SAVED.into());
        self.immediate(MOVE_IMMEDIATE, 2, SAVED_BYTES);
        self.call(HELPER_PROBE_READ_USER);
        let unreadable = self.jump(JUMP_IF_NOT, 0, 0, 0);
        self.add(LOAD_64, 1, STACK, SAVED, 0);
        self.immediate(OR_IMMEDIATE, 1, USER_CODE_BIT);
        let is_other = self.jump(JUMP_IF_NOT, 1, 0, USER_CODE | USER_CODE_BIT);
        self.add(LOAD_64, ADDRESS, STACK, SAVED + 16, 0);
        self.immediate(AND_IMMEDIATE, ADDRESS, -8);
        let is_kernels = self.jump(JUMP_IF_NEGATIVE, ADDRESS, 0, 0);
        [unreadable, is_other, is_kernels]
    }

    /// Copies from [`ADDRESS`] up to the address in register `end`, as copy number `index`. It ends at the first page that
    /// can't be read.
    fn copy(&mut self, stacks: &Stacks, index: usize, end: u8) {
        let place = COPIES + COPY * index;
        self.add(STORE_64, STACK, end, END, 0);
        self.add(STORE_64, RECORD, ADDRESS, offset16(place), 0);
        let mut ends = Vec::new();
        for _ in 0..stacks.pieces() {
            ends.extend(self.copy_piece(stacks));
        }
        self.land_all(ends);
        self.load(1, place);
        self.registers(MOVE_REGISTER, 2, ADDRESS);
        self.registers(SUBTRACT_REGISTER, 2, 1);
        self.add(STORE_64, RECORD, 2, offset16(place + 8), 0);
    }

    /// Copies the piece in the page of [`ADDRESS`], and moves [`ADDRESS`] behind it. The returned jumps are taken if nothing is
    /// left to copy.
    fn copy_piece(&mut self, stacks: &Stacks) -> [usize; 4] {
        self.add(LOAD_64, 1, STACK, END, 0);
        let is_whole = self.jump(JUMP_IF_NOT_BELOW, ADDRESS, 1, 0);
        self.registers(SUBTRACT_REGISTER, 1, ADDRESS);
        self.registers(MOVE_REGISTER, 2, ADDRESS);
        self.immediate(AND_IMMEDIATE, 2, PAGE - 1);
        self.immediate(MOVE_IMMEDIATE, 3, PAGE);
        self.registers(SUBTRACT_REGISTER, 3, 2);
        let is_inner = self.jump(JUMP_IF_NOT_ABOVE, 3, 1, 0);
        self.registers(MOVE_REGISTER, 3, 1);
        self.land(is_inner);
        self.add(STORE_64, STACK, 3, PIECE, 0);
        self.translate(stacks);
        // The verifier has to see that both are bounded.
        self.add(LOAD_64, 2, STACK, PIECE, 0);
        let is_long = self.jump(JUMP_IF_ABOVE_IMMEDIATE, 2, 0, PAGE);
        self.add(LOAD_64, 1, STACK, USED, 0);
        let is_full = self.jump(JUMP_IF_ABOVE_IMMEDIATE, 1, 0, stacks.most());
        self.registers(ADD_REGISTER, 1, RECORD);
        self.immediate(ADD_IMMEDIATE, 1, offset16(STACK_BYTES).into());
        self.call(HELPER_PROBE_READ_USER);
        let unreadable = self.jump(JUMP_IF_NOT, 0, 0, 0);
        self.add(LOAD_64, 2, STACK, PIECE, 0);
        self.registers(ADD_REGISTER, ADDRESS, 2);
        self.add(LOAD_64, 1, STACK, USED, 0);
        self.registers(ADD_REGISTER, 1, 2);
        self.add(STORE_64, STACK, 1, USED, 0);
        [is_whole, is_long, is_full, unreadable]
    }

    /// Puts the VMM's address for guest-virtual [`ADDRESS`] into register 3. If the address isn't mapped, register 3 has an address that can't be read.
    ///
    /// The verifier checks all paths through the program. So that paths join again, nothing depends on the range that an address is in: an
    /// address without memory becomes 0, which is read like all others, and that read fails.
    fn translate(&mut self, stacks: &Stacks) {
        let mut nowhere = vec![self.jump_unless_canonical(stacks.levels)];
        let mut mapped = Vec::new();
        self.load(TABLE, CR3);
        self.frame(TABLE);
        for level in (1..=stacks.levels).rev() {
            let shift = PAGE_SHIFT + LEVEL_SHIFT * (level - 1);
            self.registers(MOVE_REGISTER, 1, ADDRESS);
            self.immediate(SHIFT_RIGHT, 1, shift);
            self.immediate(AND_IMMEDIATE, 1, (1 << LEVEL_SHIFT) - 1);
            self.immediate(SHIFT_LEFT, 1, 3);
            self.registers(ADD_REGISTER, 1, TABLE);
            self.find(1, &stacks.memory);
            self.read_word(ENTRY);
            nowhere.push(self.jump(JUMP_IF_NOT, 0, 0, 0));
            self.add(LOAD_64, TABLE, STACK, ENTRY, 0);
            let is_present = self.jump(JUMP_IF_ANY_BIT, TABLE, 0, PRESENT);
            nowhere.push(self.jump(JUMP, 0, 0, 0));
            self.land(is_present);
            if matches!(level, 2 | 3) {
                let is_large = self.jump(JUMP_IF_ANY_BIT, TABLE, 0, LARGE);
                let is_table = self.jump(JUMP, 0, 0, 0);
                self.land(is_large);
                self.page(shift);
                mapped.push(self.jump(JUMP, 0, 0, 0));
                self.land(is_table);
            }
            self.frame(TABLE);
        }
        self.page(PAGE_SHIFT);
        self.land_all(mapped);
        self.find(1, &stacks.memory);
        let found = self.jump(JUMP, 0, 0, 0);
        self.land_all(nowhere);
        self.immediate(MOVE_IMMEDIATE, 3, 0);
        self.land(found);
    }

    /// A jump that is taken if [`ADDRESS`] isn't canonical: the bits above those that are translated differ.
    fn jump_unless_canonical(&mut self, levels: i32) -> usize {
        let unused = 64 - PAGE_SHIFT - LEVEL_SHIFT * levels;
        self.registers(MOVE_REGISTER, 1, ADDRESS);
        self.immediate(SHIFT_LEFT, 1, unused);
        self.immediate(SHIFT_RIGHT_SIGNED, 1, unused);
        self.jump(JUMP_IF_NOT_EQUAL, 1, ADDRESS, 0)
    }

    /// Clears all bits but the address in an entry of a page table, or in CR3.
    fn frame(&mut self, register: u8) {
        for (code, bits) in [(SHIFT_LEFT, 12), (SHIFT_RIGHT, 24), (SHIFT_LEFT, 12)] {
            self.immediate(code, register, bits);
        }
    }

    /// Puts the physical address of [`ADDRESS`] into register 1. [`TABLE`] has the entry of the address's page, which has 2^`shift` bytes.
    fn page(&mut self, shift: i32) {
        self.frame(TABLE);
        self.registers(MOVE_REGISTER, 1, TABLE);
        self.immediate(SHIFT_RIGHT, 1, shift);
        self.immediate(SHIFT_LEFT, 1, shift);
        self.registers(MOVE_REGISTER, 2, ADDRESS);
        self.immediate(SHIFT_LEFT, 2, 64 - shift);
        self.immediate(SHIFT_RIGHT, 2, 64 - shift);
        self.registers(OR_REGISTER, 1, 2);
    }
}
