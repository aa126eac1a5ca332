use std::collections::HashMap;

use kvmprof_recording::{DEFAULT_STACK_FRAMES, StackEnd};
use proptest::prelude::*;

use super::tests::Hostile;
use super::*;
use kvmprof_introspection_fixtures::eh_frame::eh_frame;

/// The test program's link-time address, and its distance from the run-time address.
pub(super) const BASE: u64 = 0x1000;
pub(super) const BIAS: u64 = 0x5555_0000_0000;
pub(super) const SECTION: u64 = 0x8000;
pub(super) const LENGTH: u64 = 0x10_0000;
pub(super) const STACK: u64 = 0x7fff_0000_0000;

/// Functions of the program, 0x100 bytes each.
pub(super) const LEAF: u64 = 0x1_1000;
pub(super) const MIDDLE: u64 = 0x1_2000;
pub(super) const START: u64 = 0x1_3000;
pub(super) const FRAMED: u64 = 0x1_4000;
pub(super) const SIGNAL: u64 = 0x1_5000;
/// A function without unwind information.
pub(super) const UNKNOWN: u64 = 0x1_6000;

/// Call frame instructions and operations (DWARF 5, sections 7.24 and 7.7.1), with their operands.
pub(super) const STACK_16: &[u8] = &[0x0e, 16];
pub(super) const STACK_48: &[u8] = &[0x0e, 48];
pub(super) const FROM_RBP: &[u8] = &[0x0c, 6, 16, 0x86, 2];
pub(super) const OUTERMOST: &[u8] = &[0x07, 16];
/// glibc's rules for the return address of a signal handler: the caller's stack pointer and return address are on the
/// stack, at 160 and 168; its frame pointer at 120.
const BEHIND_SIGNAL: &[u8] = &[
    0x0f, 4, 0x77, 0xa0, 0x01, 0x06, 0x10, 16, 3, 0x77, 0xa8, 0x01, 0x10, 6, 3, 0x77, 0xf8, 0x00,
];
/// The linker's rules for the procedure linkage table: 8 or 16 above the stack pointer.
const LINKAGE_TABLE: &[u8] = &[
    0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
];
/// Relative to an unknown register.
pub(super) const FROM_R10: &[u8] = &[0x0c, 10, 16];
/// A jump to itself.
pub(super) const ENDLESS: &[u8] = &[0x0f, 5, 0x77, 0, 0x2f, 0xfd, 0xff];

pub(super) fn section(functions: &[(u64, &[u8])]) -> Vec<u8> {
    eh_frame(SECTION, functions)
}

pub(super) fn program() -> Vec<u8> {
    section(&[
        (LEAF, &[]),
        (MIDDLE, STACK_48),
        (START, OUTERMOST),
        (FRAMED, FROM_RBP),
        // Its rules read memory, because registers are where the kernel saved them.
        (SIGNAL - 1, BEHIND_SIGNAL),
    ])
}

fn table(section: &[u8]) -> Option<UnwindTable> {
    UnwindTable::new(section, SECTION, 0, vec![(0, BASE, LENGTH)])
}

pub(super) fn unwinder(section: &[u8]) -> UserUnwinder {
    let table = table(section).unwrap();
    UserUnwinder::new([(BIAS + BASE, BIAS + BASE + LENGTH, 0, table.into())])
}

/// A stack, and the code before its return addresses.
#[derive(Default)]
pub(super) struct Memory {
    words: HashMap<u64, u64>,
    calls: Vec<u64>,
    signal: Option<u64>,
    /// The true one for a return address at a place.
    returns: HashMap<(u64, u64), u64>,
    /// What a runtime knows about frames with these frame pointers.
    executed: HashMap<u64, Executed>,
    /// Code at addresses.
    code: Vec<(u64, Vec<u8>)>,
}

impl Memory {
    pub fn set(&mut self, address: u64, word: u64) {
        self.words.insert(address, word);
    }

    /// The code at `address`.
    pub fn code(&mut self, address: u64, bytes: &[u8]) {
        self.code.push((address, bytes.to_vec()));
    }

    /// Writes a return address into `function` to `address`.
    pub fn call(&mut self, address: u64, function: u64) {
        let back = BIAS + function + 0x20;
        self.set(address, back);
        self.calls.push(back);
    }
}

impl StackMemory for Memory {
    fn word(&mut self, address: u64) -> Option<u64> {
        assert!(address >> 63 == 0, "{address:#x} is on no user's stack");
        self.words.get(&address).copied()
    }

    fn true_return(&self, back: u64, place: u64) -> Option<u64> {
        self.returns.get(&(back, place)).copied()
    }

    fn executed(&mut self, frame: BareFrame) -> Executed {
        let known = self.executed.get(&frame.bp);
        known.copied().unwrap_or(Executed::Unknown)
    }

    fn code_before(&mut self, address: u64) -> Option<[u8; 8]> {
        if self.signal.is_some_and(|signal| signal + 9 == address) {
            return Some([0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]);
        }
        // A call far away.
        let call = [0, 0, 0, 0xe8, 1, 2, 3, 0x40];
        let mut bytes = match self.calls.contains(&address) {
            true => call,
            false => [0x90; 8],
        };
        for (place, byte) in (address.checked_sub(8)?..address).zip(&mut bytes) {
            for (start, code) in &self.code {
                let offset = usize::try_from(place.wrapping_sub(*start)).ok();
                if let Some(known) = offset.and_then(|offset| code.get(offset)) {
                    *byte = *known;
                }
            }
        }
        Some(bytes)
    }
}

pub(super) fn walk(
    unwinder: &UserUnwinder,
    memory: &mut impl StackMemory,
    ip: u64,
    bp: u64,
) -> Stack {
    walk_from(unwinder, memory, UserRegisters::at(ip, STACK, bp))
}

pub(super) fn walk_from(
    unwinder: &UserUnwinder,
    memory: &mut impl StackMemory,
    start: UserRegisters,
) -> Stack {
    let mut stack = Stack::default();
    let mut cache = UnwindCache::default();
    stack.walk_user(&start, Some((unwinder, &mut cache)), memory);
    let first = stack.frames().to_vec();
    // The cache's contents lead to the same frames.
    stack.clear();
    stack.walk_user(&start, Some((unwinder, &mut cache)), memory);
    assert_eq!(stack.frames(), first);
    stack
}

/// The frames as functions of the program and offsets in them.
pub(super) fn functions(stack: &Stack) -> Vec<(u64, u64)> {
    let frames = stack.frames().iter();
    frames
        .map(|frame| ((frame - BIAS) & !0xfff, (frame - BIAS) & 0xfff))
        .collect()
}

#[test]
fn code_without_frames_is_followed_to_its_end() {
    let unwinder = unwinder(&program());
    let mut memory = Memory::default();
    memory.call(STACK, MIDDLE);
    memory.call(STACK + 8 + 40, MIDDLE);
    memory.call(STACK + 8 + 48 + 40, START);
    // RBP may have any value.
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF + 5, 0x1234);
    assert_eq!(
        functions(&stack),
        [(LEAF, 5), (MIDDLE, 0x1f), (MIDDLE, 0x1f), (START, 0x1f)]
    );
    assert_eq!(stack.summary().user_end, StackEnd::Complete);
}

#[test]
fn a_return_address_that_the_kernel_has_replaced_is_the_true_one_or_the_end() {
    const TRAMPOLINE: u64 = STACK - 0x1000;
    let unwinder = unwinder(&program());
    let mut memory = Memory::default();
    memory.set(STACK, TRAMPOLINE);
    memory.call(STACK + 8 + 40, START);
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF + 5, 0x1234);
    assert_eq!(functions(&stack), [(LEAF, 5)]);
    assert_eq!(stack.summary().user_end, StackEnd::Broken);
    let back = BIAS + MIDDLE + 0x20;
    memory.calls.push(back);
    memory.returns.insert((TRAMPOLINE, STACK), back);
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF + 5, 0x1234);
    let whole = [(LEAF, 5), (MIDDLE, 0x1f), (START, 0x1f)];
    assert_eq!(functions(&stack), whole);
    assert_eq!(stack.summary().user_end, StackEnd::Complete);
}

#[test]
fn mixed_stacks_continue_by_frame_pointers_without_rules() {
    let unwinder = unwinder(&program());
    let mut memory = Memory::default();
    // LEAF, FRAMED, an unknown function with a frame, MIDDLE, START.
    let (first, second) = (STACK + 0x40, STACK + 0x80);
    memory.call(STACK, FRAMED);
    memory.set(first, second);
    memory.call(first + 8, UNKNOWN);
    memory.set(second, 0x77);
    memory.call(second + 8, MIDDLE);
    memory.call(second + 16 + 40, START);
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF, first);
    let expected = [LEAF, FRAMED, UNKNOWN, MIDDLE, START];
    assert!(
        functions(&stack)
            .iter()
            .map(|(function, _)| function)
            .eq(&expected)
    );
    assert_eq!(stack.summary().user_end, StackEnd::Complete);
    // Without a valid frame, the stack is broken there.
    memory.set(first, 0x77);
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF, first);
    assert_eq!(
        (stack.summary().user, stack.summary().user_end),
        (3, StackEnd::Broken)
    );
}

#[test]
fn signal_frames_are_unwound_to_the_interrupted_code() {
    let unwinder = unwinder(&program());
    let mut memory = Memory::default();
    let back = BIAS + SIGNAL;
    memory.set(STACK, back);
    memory.signal = Some(back);
    let saved = STACK + 8;
    // On another stack, at a function's first instruction.
    let interrupted = STACK - 0x10_0000;
    memory.set(saved + 120, interrupted + 0x40);
    memory.set(saved + 160, interrupted);
    memory.set(saved + 168, BIAS + LEAF);
    memory.call(interrupted, START);
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF + 9, 0);
    assert_eq!(
        functions(&stack),
        [(LEAF, 9), (SIGNAL, 0), (LEAF, 0), (START, 0x1f)]
    );
    assert_eq!(stack.summary().user_end, StackEnd::Complete);
}

#[test]
fn an_invalid_return_address_ends_the_stack() {
    let unwinder = unwinder(&program());
    let ended = |memory: &mut Memory| {
        let stack = walk(&unwinder, memory, BIAS + LEAF + 5, 0);
        (stack.summary().user, stack.summary().user_end)
    };
    let mut memory = Memory::default();
    assert_eq!(ended(&mut memory), (1, StackEnd::Broken));
    for back in [1, BIAS + MIDDLE + 0x20, u64::MAX - 7, 1 << 63] {
        memory.set(STACK, back);
        assert_eq!(ended(&mut memory), (1, StackEnd::Broken), "{back:#x}");
    }
    memory.set(STACK, 0);
    assert_eq!(ended(&mut memory), (1, StackEnd::Complete));
}

#[test]
fn only_rules_of_bounded_cost_are_used() {
    let long = [0x0e, 16].repeat(5000);
    let remembers = [0x0a; 17];
    let good: (u64, &[u8]) = (MIDDLE, STACK_16);
    for bad in [ENDLESS, &long, &remembers] {
        let section = section(&[(LEAF, bad), good]);
        // The function isn't known to have a frame pointer, so the one that is there isn't used.
        let mut memory = Memory::default();
        memory.call(STACK, MIDDLE);
        memory.set(STACK + 0x40, STACK + 0x80);
        memory.call(STACK + 0x48, MIDDLE);
        let stack = walk(
            &unwinder(&section),
            &mut memory,
            BIAS + LEAF + 5,
            STACK + 0x40,
        );
        let summary = stack.summary();
        assert_eq!((summary.user, summary.user_end), (1, StackEnd::Broken));
        assert_eq!(table(&section).unwrap().functions(), 2);
    }
    assert!(table(&section(&[(LEAF, &long)])).is_none());
    assert!(table(&[]).is_none());
    let signal = table(&section(&[(SIGNAL, BEHIND_SIGNAL)])).unwrap();
    assert!(signal.covers(SIGNAL) && signal.covers(SIGNAL + 0xff));
    assert!(!signal.covers(SIGNAL - 1) && !signal.covers(SIGNAL + 0x100));
}

#[test]
fn frames_lie_above_the_stack_pointer_in_any_case() {
    // 0 as a number and by arithmetic, an address below the stack pointer, and saved registers far away.
    let zero: &[u8] = &[0x0f, 1, 0x30];
    let sum: &[u8] = &[0x0f, 5, 0x77, 8, 0x77, 8, 0x1c];
    let shifted: &[u8] = &[
        0x0f, 10, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x4f, 0x24,
    ];
    let below: &[u8] = &[0x13, 0x80, 0x08];
    let far: &[u8] = &[
        0x0e, 16, 0x86, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x08,
    ];
    for bad in [zero, sum, shifted, below, far] {
        let unwinder = unwinder(&section(&[(LEAF, bad), (MIDDLE, LINKAGE_TABLE)]));
        let mut memory = Memory::default();
        let stack = walk(&unwinder, &mut memory, BIAS + LEAF, 3);
        assert_eq!(stack.summary().user_end, StackEnd::Broken);
    }
    // The linkage table itself.
    let unwinder = unwinder(&section(&[(LEAF, LINKAGE_TABLE), (START, OUTERMOST)]));
    for (within, size) in [(3, 0), (11, 8)] {
        let mut memory = Memory::default();
        memory.call(STACK + size, START);
        let stack = walk(&unwinder, &mut memory, BIAS + LEAF + within, 3);
        assert_eq!(functions(&stack), [(LEAF, within), (START, 0x1f)]);
        assert_eq!(stack.summary().user_end, StackEnd::Complete);
    }
}

#[test]
fn a_frame_pointer_of_0_ends_no_stack_of_code_without_frame_pointers() {
    let unwinder = unwinder(&section(&[(LEAF, FROM_R10), (MIDDLE, STACK_16)]));
    let mut memory = Memory::default();
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF, 0);
    assert_eq!(
        (stack.summary().user, stack.summary().user_end),
        (1, StackEnd::Broken)
    );
    // Nor does it end the stack after a frame that unwind information has found.
    memory.call(STACK + 8, UNKNOWN);
    let stack = walk(&unwinder, &mut memory, BIAS + MIDDLE, 0);
    assert_eq!(
        (stack.summary().user, stack.summary().user_end),
        (2, StackEnd::Broken)
    );
}

/// A runtime's frame that executes a function, and has an old return address in it, then one of its own code, and the outermost function.
#[test]
fn frames_of_a_runtime_lead_to_their_callers() {
    const MADE: u64 = 0x2000_0000;
    let unwinder = unwinder(&program());
    let [first, second] = [STACK + 0x40, STACK + 0x80];
    let mut memory = Memory::default();
    for (offset, word) in [(0, 0), (8, 0), (0x10, MADE + 0x100)] {
        memory.set(STACK + offset, word);
    }
    memory.code(MADE + 0xfe, &[0xff, 0xd0]);
    memory.set(first, second);
    memory.call(first + 8, UNKNOWN);
    memory.set(second, 0x1234);
    memory.call(second + 8, START);
    let walked = |memory: &mut Memory, known| {
        memory.executed = HashMap::from([(first, known), (second, Executed::Runtime)]);
        let stack = walk(&unwinder, memory, MADE, first);
        (stack.frames().to_vec(), stack.summary().user_end)
    };
    let [own, outermost] = [UNKNOWN, START].map(|function| BIAS + function + 0x1f);
    let frames = vec![MADE, 77, own, outermost];
    let function = Executed::Function(77);
    assert_eq!(walked(&mut memory, function), (frames, StackEnd::Complete));
    // The frame pointer alone proves nothing.
    for unknown in [Executed::Unknown, Executed::Unread] {
        let expected = (vec![MADE], StackEnd::Broken);
        assert_eq!(walked(&mut memory, unknown), expected);
    }
    // A stack without one of its functions isn't whole.
    memory.set(STACK + 0x10, 0);
    let expected = (vec![MADE, own, outermost], StackEnd::Broken);
    assert_eq!(walked(&mut memory, Executed::Unread), expected);
    // At its last instruction, a function has the frame pointer of its caller.
    memory.code(MADE, &[0xc3]);
    memory.call(STACK, UNKNOWN);
    let expected = (vec![MADE, own, 77, own, outermost], StackEnd::Complete);
    assert_eq!(walked(&mut memory, function), expected);
}

#[test]
fn a_runtime_may_know_the_caller_of_a_frame() {
    const MADE: u64 = 0x2000_0000;
    let unwinder = unwinder(&program());
    let mut memory = Memory::default();
    // The frame pointer leads elsewhere.
    let bp = STACK + 0x40;
    memory.set(bp, 0);
    memory.call(bp + 8, UNKNOWN);
    let mut walked = |known| {
        memory.executed = HashMap::from([(bp, known)]);
        let stack = walk(&unwinder, &mut memory, MADE, bp);
        (stack.frames().to_vec(), stack.summary().user_end)
    };
    let caller = BIAS + START + 0x20;
    let called = |sp: u64, is_cut| {
        let mut called = CalledFrame::new([caller, sp, 0]);
        called.is_cut = is_cut;
        assert!(called.push(77) && called.push(78));
        Executed::Called(called)
    };
    let frames = vec![MADE, 77, 78, caller - 1];
    let whole = (frames.clone(), StackEnd::Complete);
    assert_eq!(walked(called(STACK + 0x80, false)), whole);
    assert_eq!(
        walked(called(STACK + 0x80, true)),
        (frames, StackEnd::Broken)
    );
    // One that doesn't know it ends the stack, and so does a caller below the frame.
    assert_eq!(walked(Executed::Lost), (vec![MADE], StackEnd::Broken));
    let expected = (vec![MADE, 77, 78], StackEnd::Broken);
    assert_eq!(walked(called(STACK, false)), expected);
    let mut full = CalledFrame::default();
    assert_eq!(
        (0..100).filter(|word| full.push(*word)).count(),
        MAX_INLINED
    );
}

#[test]
fn code_of_a_runtime_is_a_long_stretch() {
    let whole = table(&program()).unwrap();
    assert!(whole.is_in_stretch(UNKNOWN) && whole.is_in_stretch(BASE + LENGTH - 1));
    for other in [LEAF + 5, LEAF + 0x200, BASE, BASE + LENGTH, 0, u64::MAX] {
        assert!(!whole.is_in_stretch(other), "{other:#x}");
    }
    let short = UnwindTable::new(&program(), SECTION, 0, vec![(0, BASE, 0x2_0000)]);
    assert!(!short.unwrap().is_in_stretch(UNKNOWN));
}

#[test]
fn mappings_tell_where_a_file_runs() {
    let segments = vec![(0x2345, 0x40_3345, 0x5000)];
    let table = UnwindTable::new(&program(), SECTION, 0, segments).unwrap();
    assert_eq!(
        table.bias(0x7f00_0000_2000, 0x2000),
        Some(0x7f00_0000_2000 - 0x40_3000)
    );
    assert_eq!(table.bias(0x40_4000, 0x3000), Some(0));
    assert_eq!(table.bias(0x40_4000, 0x1000), None);
    assert_eq!(table.bias(0x40_4000, 0x8000), None);
}

#[test]
fn reads_the_unwind_information_of_a_program() {
    let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let table = UnwindTable::from_elf(&file).unwrap();
    assert!(table.functions() > 1000, "{}", table.functions());
    assert!(UnwindTable::from_elf(b"\x7fELF").is_none());
}

proptest! {
    #[test]
    fn hostile_tables_and_stacks_end_within_bounds(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        words in prop::collection::vec(prop_oneof![
            any::<u64>(),
            (LEAF..UNKNOWN + 0x100).prop_map(|address| BIAS + address),
            (STACK..STACK + 0x1000).prop_map(|address| address & !7),
        ], 1..64),
        function in LEAF..UNKNOWN + 0x100,
        sp in prop_oneof![any::<u64>(), Just(STACK)],
        bp in any::<u64>(),
    ) {
        let mut section = program();
        for (index, value) in flips {
            let index = index.index(section.len());
            section[index] = value;
        }
        let Some(table) = table(&section) else {
            return Ok(());
        };
        let unwinder = UserUnwinder::new([(BIAS + BASE, BIAS + BASE + LENGTH, 0, table.into())]);
        let mut memory = Hostile { words: &words, reads: 0 };
        let start = UserRegisters::at(BIAS + function, sp, bp);
        let mut stack = Stack::default();
        let mut cache = UnwindCache::default();
        stack.walk_user(&start, Some((&unwinder, &mut cache)), &mut memory);
        prop_assert!(stack.frames().len() <= DEFAULT_STACK_FRAMES);
        let others = 40 * DEFAULT_STACK_FRAMES;
        prop_assert!(memory.reads <= MAX_READS as usize + others);
    }
}
