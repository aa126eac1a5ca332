mod frame_pointers;
mod images;
mod initcalls;
mod modules;
mod outermost;
mod retpolines;
mod return_hooks;

use std::collections::HashMap;

use kvmprof_recording::{DEFAULT_STACK_FRAMES, MAX_STACK_FRAMES, StackEnd};
use proptest::prelude::*;

use super::orc::{Base, Kind, OrcFormat};
use super::*;
use crate::Registers;

const TEXT: u64 = 0xffff_ffff_8100_0000;
const SLIDE: u64 = 0x1e00_0000;
const TABLE: u64 = TEXT + 0x10_0000;
const STACK: u64 = 0xffff_c900_0000_3000;
const IRQ_STACK: u64 = 0xffff_c900_0000_1000;

/// Offsets of the test kernel's functions from [`TEXT`].
const LEAF: u64 = 0x100;
const CALLER: u64 = 0x200;
const FRAMED: u64 = 0x300;
const ENTRY: u64 = 0x400;
const INTERRUPT: u64 = 0x500;
const THREAD_END: u64 = 0x600;
const NOTHING: u64 = 0x700;
const SWITCH: u64 = 0x800;
const EXCEPTION: u64 = 0x900;

const CALL: u8 = 2;
const REGISTERS: u8 = 3;
const PROCESSOR_FRAME: u8 = 4;

/// Offsets and flags in the format of 6.4: address, sp offset, bp offset, sp and bp bases, kind.
const ROWS: [(u64, i16, i16, u8, u8); 9] = [
    (LEAF, 8, 0, 5, CALL),
    (CALLER, 24, 0, 5, CALL),
    (FRAMED, 16, -16, 4 | 1 << 4, CALL),
    (ENTRY, 0, 0, 5, REGISTERS),
    (INTERRUPT, 0, 0, 5, REGISTERS),
    (THREAD_END, 0, 0, 0, 1),
    (NOTHING, 0, 0, 0, 0),
    (SWITCH, 8, 0, 9, CALL),
    (EXCEPTION, 40, 0, 5, PROCESSOR_FRAME),
];

/// [`ROWS`] with the register numbers of 7.1.
fn renumbered() -> [(u64, i16, i16, u8, u8); 9] {
    const NUMBERS: [u8; 11] = [0, 8, 2, 5, 4, 3, 6, 7, 10, 9, 1];
    let number = |old: u8| NUMBERS[usize::from(old)];
    ROWS.map(|(address, sp, bp, registers, kind)| {
        let registers = number(registers & 0xf) | number(registers >> 4) << 4;
        (address, sp, bp, registers, kind)
    })
}

fn table(rows: &[(u64, i16, i16, u8, u8)], release: &str) -> Option<OrcTable> {
    let (mut addresses, mut entries) = (Vec::new(), Vec::new());
    for (row, place) in rows.iter().zip((TABLE..).step_by(4)) {
        let distance = (TEXT + row.0).wrapping_sub(place).cast_signed();
        addresses.extend(i32::try_from(distance).unwrap().to_le_bytes());
        entries.extend(row.1.to_le_bytes());
        entries.extend(row.2.to_le_bytes());
        entries.extend([row.3, row.4]);
    }
    let format = OrcFormat::from_kernel(release, &entries)?;
    OrcTable::parse(TABLE, &addresses, &entries, format)
}

#[derive(Default)]
struct Words(HashMap<u64, u64>);

impl Words {
    fn set(&mut self, address: u64, words: &[u64]) {
        for (word, place) in words.iter().zip((address..).step_by(8)) {
            self.0.insert(place, *word);
        }
    }

    /// A `struct pt_regs`.
    fn registers(&mut self, at: u64, ip: u64, cs: u64, sp: u64, bp: u64) {
        self.set(at, &[0; 21]);
        self.set(at + 32, &[bp]);
        self.set(at + 128, &[ip, cs, 0x246, sp, 0x18]);
    }
}

impl StackMemory for Words {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.0.get(&address).copied()
    }

    fn code_before(&mut self, address: u64) -> Option<[u8; 8]> {
        let word = self.0.get(&address.checked_sub(8)?)?;
        Some(word.to_le_bytes())
    }
}

fn at(function: u64) -> u64 {
    TEXT + SLIDE + function
}

fn in_kernel(ip: u64, sp: u64, bp: u64) -> Registers {
    Registers {
        rip: ip,
        rsp: sp,
        rbp: bp,
        ..Registers::default()
    }
}

fn walk(
    orc: Option<&OrcTable>,
    registers: &Registers,
    memory: &mut impl StackMemory,
) -> (Stack, Option<UserRegisters>) {
    walk_hooked(orc, None, registers, memory)
}

fn walk_hooked(
    orc: Option<&OrcTable>,
    hooks: Option<(&ReturnHooks, Option<u64>)>,
    registers: &Registers,
    memory: &mut impl StackMemory,
) -> (Stack, Option<UserRegisters>) {
    let unwinder = KernelUnwinder {
        hooks,
        ..unwinder(orc)
    };
    let mut stack = Stack::default();
    let user = unwinder.walk(registers, memory, &mut stack);
    (stack, user)
}

/// The unwinder of a kernel that has nothing else.
fn unwinder(orc: Option<&OrcTable>) -> KernelUnwinder<'_> {
    KernelUnwinder {
        orc,
        rules: None,
        modules: None,
        initcalls: None,
        slide: SLIDE,
        image: TEXT..TEXT + 0x20_0000,
        hooks: None,
    }
}

/// The same table in the forms of 6.12 and 7.2.
fn both_forms() -> [OrcTable; 2] {
    [(ROWS, "6.12.9"), (renumbered(), "7.2.13")]
        .map(|(rows, release)| table(&rows, release).unwrap())
}

/// The stack of a system call, from `LEAF` to the user's registers.
fn system_call() -> Words {
    let mut memory = Words::default();
    // LEAF's return address. CALLER keeps 16 bytes, and FRAMED has a frame pointer.
    memory.set(STACK, &[at(CALLER) + 9]);
    memory.set(STACK + 8, &[1, 2, at(FRAMED) + 5]);
    memory.set(STACK + 0x80, &[0xdead, at(ENTRY) + 7]);
    memory.registers(STACK + 0x90, 0x40_1234, 0x33, 0x7fff_0000, 0x7fff_0040);
    memory
}

#[test]
fn a_system_call_is_unwound_to_user_mode() {
    for orc in both_forms() {
        let registers = in_kernel(at(LEAF) + 3, STACK, STACK + 0x80);
        let (stack, user) = walk(Some(&orc), &registers, &mut system_call());
        let expected = [at(LEAF) + 3, at(CALLER) + 8, at(FRAMED) + 4, at(ENTRY) + 6];
        assert_eq!(stack.frames(), expected);
        assert_eq!(stack.summary().kernel_end, StackEnd::Complete);
        let user = user.unwrap();
        let found = (user.at.ip, user.at.sp, user.at.bp());
        assert_eq!(found, (0x40_1234, 0x7fff_0000, Some(0x7fff_0040)));
        assert!(user.is_64_bit && user.is_exact);
    }
}

#[test]
fn stacks_cross_an_interrupt() {
    let mut memory = system_call();
    // The interrupt's stack points to the interrupted stack.
    memory.set(IRQ_STACK, &[at(SWITCH) + 5]);
    memory.set(IRQ_STACK + 8, &[STACK - 0x200]);
    memory.set(STACK - 0x200, &[at(INTERRUPT) + 1]);
    // SWITCH's caller has its registers at its own stack pointer.
    memory.registers(STACK - 0x1f8, at(LEAF) + 3, 0x10, STACK, STACK + 0x80);
    let registers = in_kernel(at(LEAF) + 1, IRQ_STACK, 7);
    for orc in both_forms() {
        let (stack, user) = walk(Some(&orc), &registers, &mut memory);
        let interrupt = [at(LEAF) + 1, at(SWITCH) + 4, at(INTERRUPT)];
        let call = [at(LEAF) + 3, at(CALLER) + 8, at(FRAMED) + 4, at(ENTRY) + 6];
        assert_eq!(stack.frames(), [&interrupt[..], &call].concat());
        assert!(user.is_some());
    }
}

#[test]
fn a_processor_frame_keeps_the_other_registers() {
    let orc = table(&ROWS, "6.12.9").unwrap();
    let mut memory = system_call();
    // The entry has the end of a frame with all registers.
    let frame = STACK - 0x100;
    memory.set(frame + 40, &[at(CALLER) + 9, 0x10, 0x246, STACK + 8, 0x18]);
    let registers = in_kernel(at(EXCEPTION), frame, STACK + 0x80);
    let (stack, user) = walk(Some(&orc), &registers, &mut memory);
    assert_eq!(stack.frames()[1], at(CALLER) + 9);
    assert!(user.is_some(), "{stack:?}");
}

#[test]
fn kernel_threads_end_and_unknown_code_breaks() {
    let orc = table(&ROWS, "6.12.9").unwrap();
    let (complete, broken) = (StackEnd::Complete, StackEnd::Broken);
    let module = 0xffff_ffff_c012_3456;
    let found = |ip, sp, bp, words: &[u64]| {
        let mut memory = Words::default();
        memory.set(STACK, words);
        let (stack, user) = walk(Some(&orc), &in_kernel(ip, sp, bp), &mut memory);
        assert_eq!(user, None);
        (stack.frames()[1..].to_vec(), stack.summary().kernel_end)
    };
    let of_leaf = |words: &[u64]| found(at(LEAF), STACK, 0, words);
    let (end, nothing) = (at(THREAD_END), at(NOTHING));
    assert_eq!(of_leaf(&[end + 1]), (vec![end], complete));
    assert_eq!(of_leaf(&[nothing + 1]), (vec![nothing], broken));
    // An entry point, and a thunk with the same mark that was called.
    for (back, kind) in [(0x40_1000, complete), (at(CALLER), broken)] {
        assert_eq!(found(end, STACK, 0, &[back]).1, kind, "{back:#x}");
    }
    // Unknown code outside the image, with a value that looks like a frame pointer.
    let words = [module, 0, STACK + 0x40, at(CALLER) + 1];
    let expected = (vec![module - 1], broken);
    assert_eq!(found(at(LEAF), STACK, STACK + 0x10, &words), expected);
    // An invalid return address, and unreadable memory.
    assert_eq!(of_leaf(&[0x1234]), (vec![], broken));
    assert_eq!(found(at(LEAF), 0x10, 0, &[]), (vec![], broken));
}

#[test]
fn endless_stacks_are_cut_short() {
    let orc = table(&ROWS, "6.12.9").unwrap();
    let mut deep = Words::default();
    for place in (STACK..STACK + 0x1000).step_by(8) {
        deep.set(place, &[at(LEAF) + 1]);
    }
    let registers = in_kernel(at(LEAF), STACK, 0);
    let (stack, _) = walk(Some(&orc), &registers, &mut deep);
    assert_eq!(stack.frames().len(), DEFAULT_STACK_FRAMES / 2);
    assert_eq!(stack.summary().kernel_end, StackEnd::Truncated);
    // Saved registers that point to themselves.
    let mut circular = Words::default();
    circular.registers(STACK, at(ENTRY), 0x10, STACK, 0);
    let registers = in_kernel(at(ENTRY), STACK, 0);
    let (stack, _) = walk(Some(&orc), &registers, &mut circular);
    assert!(stack.frames().len() < 16);
    assert_eq!(stack.summary().kernel_end, StackEnd::Broken);
}

#[test]
fn entries_are_read_in_the_form_of_their_kernel() {
    let rows = [
        (0x10, 8, 0, 5, 0),
        (0x20, 0, 0, 5, 1),
        (0x30, 0, 0, 5, 2),
        (0x40, 0, 0, 0, 4),
        (0x50, 0, 0, 0, 0),
    ];
    let kinds = |release| {
        let orc = table(&rows, release).unwrap();
        [0x10, 0x25, 0x30, 0x4f, 0x50].map(|offset| orc.find(TEXT + offset).unwrap().kind)
    };
    let old = [
        Kind::Call,
        Kind::Registers,
        Kind::ProcessorFrame,
        Kind::End,
        Kind::Undefined,
    ];
    assert_eq!(kinds("5.10.0-8-amd64"), old);
    assert_eq!(kinds("6.1.0"), old);
    let new = [
        Kind::Undefined,
        Kind::End,
        Kind::Call,
        Kind::ProcessorFrame,
        Kind::Undefined,
    ];
    assert_eq!(kinds("6.4"), new);
    let offset_first = |release| table(&rows, release).unwrap().format().offset_first;
    assert!(offset_first("5.10.1") && !offset_first("5.13-rc1"));
    for unknown in ["4.9", "", "six"] {
        assert!(table(&rows, unknown).is_none(), "{unknown}");
    }
    // No known kernel uses this register for most entries.
    assert!(table(&rows.map(|row| (row.0, 8, 0, 7, 0)), "7.9.1").is_none());
}

#[test]
fn tables_are_sorted_and_bounded() {
    let mut rows = ROWS;
    rows.reverse();
    let orc = table(&rows, "6.12.9").unwrap();
    assert_eq!(orc.len(), ROWS.len());
    assert_eq!(orc.find(TEXT + LEAF - 1), None);
    let found = orc.find(TEXT + FRAMED + 0x20).unwrap();
    assert_eq!(
        (found.sp, found.bp, found.bp_offset),
        (Base::Bp, Base::CallerSp, -16)
    );
    assert!(table(&[], "6.1").is_none());
    let format = orc.format();
    assert!(OrcTable::parse(TABLE, &[], &[], format).is_none());
    assert!(OrcTable::parse(TABLE, &[0; 8], &[0; 6], format).is_none());
}

/// A user stack of three calls, each with another instruction.
fn user() -> (UserRegisters, Words) {
    let mut memory = Words::default();
    let frames = 0x7fff_0000;
    memory.set(frames + 0x20, &[frames + 0x40, 0x40_1010]);
    memory.set(frames + 0x40, &[frames + 0x80, 0x40_2010]);
    memory.set(frames + 0x80, &[0, 0x40_3010]);
    for (address, code) in [
        (0x40_1008, [0x90, 0x90, 0x90, 0xe8, 1, 2, 3, 4]),
        (0x40_2008, [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0]),
        // CALL [RSP + 0x10].
        (0x40_3008, [0x90, 0x90, 0x90, 0x90, 0xff, 0x54, 0x24, 0x10]),
    ] {
        memory.set(address, &[u64::from_le_bytes(code)]);
    }
    let start = UserRegisters::at(0x40_0123, frames, frames + 0x20);
    (start, memory)
}

#[test]
fn user_stacks_follow_frame_pointers_over_calls() {
    let (start, mut memory) = user();
    let mut stack = Stack::default();
    stack.walk_user(&start, None, &mut memory);
    assert_eq!(stack.frames(), [0x40_0123, 0x40_100f, 0x40_200f, 0x40_300f]);
    // What has called the outermost of them may have no frame pointer.
    assert_eq!(stack.summary().user_end, StackEnd::Broken);
}

/// Tests 300 callers, each at the same place, and a function that the innermost of them has called.
#[test]
fn stacks_have_the_requested_depth() {
    const FRAMES: u64 = 0x7ffe_0000;
    let (start, mut memory) = user();
    // HLT.
    memory.set(0x40_1010, &[0xf4]);
    for number in 0..300 {
        let frame = FRAMES + 16 * number;
        let back = if number < 299 { frame + 16 } else { 0 };
        memory.set(frame, &[back, 0x40_1010]);
    }
    let start = UserRegisters::at(start.at.ip, FRAMES - 16, FRAMES);
    let mut walk = |limit| {
        let mut stack = Stack::with_limit(limit);
        stack.walk_user(&start, None, &mut memory);
        assert_eq!(stack.frames().len(), stack.summary().frames());
        (stack.summary().user, stack.summary().user_end)
    };
    assert_eq!(walk(DEFAULT_STACK_FRAMES), (128, StackEnd::Truncated));
    assert_eq!(walk(299), (299, StackEnd::Truncated));
    assert_eq!(walk(MAX_STACK_FRAMES), (301, StackEnd::Complete));
}

#[test]
fn inconsistent_user_stacks_are_marked() {
    let ended = |start: UserRegisters, memory: &mut Words| {
        let mut stack = Stack::default();
        stack.walk_user(&start, None, memory);
        (stack.summary().user, stack.summary().user_end)
    };
    let (start, mut memory) = user();
    let (ip, sp) = (start.at.ip, start.at.sp);
    for bp in [sp - 8, sp + 0x24, sp + (9 << 20), 1 << 63] {
        let start = UserRegisters::at(ip, sp, bp);
        assert_eq!(ended(start, &mut memory), (1, StackEnd::Broken), "{bp:#x}");
    }
    let narrow = UserRegisters {
        is_64_bit: false,
        ..start
    };
    assert_eq!(ended(narrow, &mut memory), (1, StackEnd::Unsupported));
    // There is no call before the second return address.
    memory.set(0x40_2008, &[0]);
    assert_eq!(ended(start, &mut memory), (2, StackEnd::Broken));
    // A frame that is its own caller.
    memory.set(sp + 0x20, &[sp + 0x20]);
    assert_eq!(ended(start, &mut memory), (2, StackEnd::Broken));
}

/// Memory full of pointers that would lead a careless unwinder astray.
pub(super) struct Hostile<'a> {
    pub words: &'a [u64],
    pub reads: usize,
}

impl StackMemory for Hostile<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.reads += 1;
        let index = usize::try_from(address >> 3).ok()? % self.words.len();
        Some(self.words[index])
    }

    fn code_before(&mut self, _address: u64) -> Option<[u8; 8]> {
        self.reads += 1;
        Some([0xe8; 8])
    }
}

proptest! {
    #[test]
    fn hostile_memory_ends_within_bounds(
        words in prop::collection::vec(prop_oneof![
            any::<u64>(),
            (0_u64..0x1000).prop_map(at),
            (STACK..STACK + 0x1000).prop_map(|address| address & !7),
            0x7fff_0000_u64..0x7fff_1000,
        ], 1..64),
        function in 0_u64..0x1000,
        sp in any::<u64>(),
        bp in any::<u64>(),
        rows in prop::collection::vec((0_u64..0x1000, any::<i16>(), any::<i16>(), any::<u8>(), any::<u8>()), 1..40),
        release in prop_oneof![Just("5.10"), Just("6.1"), Just("6.12")],
        has_orc in any::<bool>(),
    ) {
        let orc = table(&rows, release).filter(|_| has_orc);
        let mut memory = Hostile { words: &words, reads: 0 };
        let registers = in_kernel(at(function), sp, bp);
        let (mut stack, user) = walk(orc.as_ref(), &registers, &mut memory);
        let start = user.unwrap_or(UserRegisters::at(function, 0x7fff_0000, bp));
        stack.walk_user(&start, None, &mut memory);
        prop_assert!(stack.frames().len() <= DEFAULT_STACK_FRAMES);
        let others = 10 * DEFAULT_STACK_FRAMES;
        prop_assert!(memory.reads <= user::MAX_READS as usize + others);
    }
}
