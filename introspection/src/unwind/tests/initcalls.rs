//! Initcalls that end by a jump to another function.

use super::*;
use crate::Symbols;

/// The initcalls, in the code of [`LEAF`], and a function there that isn't an initcall. [`CALLER`] is `do_one_initcall`.
const FUNCTIONS: [u64; 3] = [LEAF, LEAF + 0x20, LEAF + 0x40];
const OTHER: u64 = LEAF + 0x60;
/// Return addresses in `do_one_initcall`: that of initcalls, and that of another function.
const BACK: u64 = CALLER + 9;
const OTHER_BACK: u64 = CALLER + 0x29;
/// The link-time address of the table.
const INITCALLS: u64 = TEXT + 0x18_0000;
/// A word that isn't a pointer.
const NOWHERE: u64 = 7;

fn symbols() -> Symbols {
    let named = [
        (FUNCTIONS[0], "first"),
        (FUNCTIONS[1], "second"),
        (FUNCTIONS[2], "third"),
        (OTHER, "other"),
        (CALLER, "do_one_initcall"),
        (FRAMED, "last"),
    ];
    let named = named.into_iter();
    Symbols::from_elf(named.map(|(offset, name)| (TEXT + offset, name, true)))
}

fn entries(functions: &[u64]) -> Vec<u8> {
    let mut entries = Vec::new();
    for (function, place) in functions.iter().zip((INITCALLS..).step_by(4)) {
        let distance = (TEXT + *function).wrapping_sub(place).cast_signed();
        entries.extend(i32::try_from(distance).unwrap().to_le_bytes());
    }
    entries
}

fn parse(entries: &[u8]) -> Option<Initcalls> {
    let caller = TEXT + CALLER..TEXT + FRAMED;
    Initcalls::parse(caller, INITCALLS, entries, &symbols())
}

/// The run-time address of an entry.
fn pointer(index: u64) -> u64 {
    INITCALLS + SLIDE + 4 * index
}

fn unwinder<'a>(orc: Option<&'a OrcTable>, initcalls: &'a Initcalls) -> KernelUnwinder<'a> {
    KernelUnwinder {
        initcalls: Some(initcalls),
        ..super::unwinder(orc)
    }
}

/// The stack of a vCPU at `ip` with `words` on it, of at most `limit` frames, if each of `do_one_initcall` has `length` words.
fn walked(initcalls: &Initcalls, ip: u64, words: &[u64], (length, limit): (usize, usize)) -> Stack {
    let orc = table_with(length);
    let mut memory = Words::default();
    memory.set(STACK, words);
    let mut stack = Stack::with_limit(limit);
    let registers = in_kernel(ip, STACK, 0);
    unwinder(Some(&orc), initcalls).walk(&registers, &mut memory, &mut stack);
    stack
}

/// The frames of a task that waits, with the registers that a task switch saves, and then `words` on its stack.
fn waiting(initcalls: &Initcalls, words: &[u64]) -> Vec<u64> {
    let orc = table_with(2);
    let mut memory = Words::default();
    memory.set(STACK, &[&[0; 6], words].concat());
    let mut stack = Stack::default();
    unwinder(Some(&orc), initcalls).walk_switched(STACK, [None; 2], &mut memory, &mut stack);
    stack.frames().to_vec()
}

/// A table in which frames of `do_one_initcall` have this many words.
fn table_with(words: usize) -> OrcTable {
    let mut rows = ROWS;
    rows[1].1 = i16::try_from(8 * (words + 1)).unwrap();
    table(&rows, "6.12.9").unwrap()
}

/// The frames of a vCPU at `ip` with `words` on the stack, two of them in each frame of `do_one_initcall`.
fn unwound(initcalls: &Initcalls, ip: u64, words: &[u64]) -> Vec<u64> {
    let stack = walked(initcalls, ip, words, (2, DEFAULT_STACK_FRAMES));
    assert_eq!(stack.summary().kernel_end, StackEnd::Complete);
    stack.frames().to_vec()
}

/// The frames of a vCPU at `callee`, which `do_one_initcall` has called right before `back`, with `words` in its frame.
fn frames(initcalls: &Initcalls, callee: u64, back: u64, words: [u64; 2]) -> Vec<u64> {
    let [first, second] = words;
    let words = [at(back), first, second, at(THREAD_END) + 1];
    unwound(initcalls, at(callee), &words)
}

/// The same frames, but only those on the stack.
fn on_stack(callee: u64, back: u64) -> Vec<u64> {
    vec![at(callee), at(back) - 1, at(THREAD_END)]
}

/// Initcalls after a stack has shown that the pointer is this many entries ahead.
fn learned(ahead: u64) -> Initcalls {
    let initcalls = parse(&entries(&FUNCTIONS)).unwrap();
    let callee = FUNCTIONS[1] + 3;
    let words = [pointer(1 + ahead), NOWHERE];
    let seen = frames(&initcalls, callee, BACK, words);
    assert_eq!(seen, on_stack(callee, BACK));
    initcalls
}

#[test]
fn an_initcall_that_ended_by_a_jump_is_restored() {
    for ahead in [0, 1] {
        let initcalls = learned(ahead);
        for (index, initcall) in (0..).zip(FUNCTIONS) {
            let entry = pointer(index + ahead);
            let expected = [at(OTHER), at(initcall), at(BACK) - 1, at(THREAD_END)];
            for words in [[NOWHERE, entry], [entry, NOWHERE], [entry, entry]] {
                let seen = frames(&initcalls, OTHER, BACK, words);
                assert_eq!(seen, expected, "{ahead}, {words:x?}");
            }
        }
    }
}

#[test]
fn an_initcall_on_the_stack_is_not_doubled() {
    for ahead in [0, 1] {
        let initcalls = learned(ahead);
        let words = [pointer(1 + ahead), NOWHERE];
        // At the initcall's first instruction, at its last byte, and in a function that it has called.
        for callee in [FUNCTIONS[1], FUNCTIONS[2] - 1] {
            let seen = frames(&initcalls, callee, BACK, words);
            assert_eq!(seen, on_stack(callee, BACK));
        }
        let end = at(THREAD_END) + 1;
        let stack = [at(FUNCTIONS[1]) + 7, at(BACK), words[0], words[1], end];
        let seen = unwound(&initcalls, at(OTHER), &stack);
        let callers = [at(FUNCTIONS[1]) + 6, at(BACK) - 1, at(THREAD_END)];
        assert_eq!(seen, [&[at(OTHER)][..], &callers].concat());
        // Interrupted before the call.
        let seen = unwound(&initcalls, at(CALLER) + 2, &[words[0], words[1], end]);
        assert_eq!(seen, [at(CALLER) + 2, at(THREAD_END)]);
    }
}

#[test]
fn nothing_is_restored_before_an_initcall_was_on_a_stack() {
    let initcalls = parse(&entries(&FUNCTIONS)).unwrap();
    let plain = on_stack(OTHER, BACK);
    let restores = || frames(&initcalls, OTHER, BACK, [pointer(1), NOWHERE]) != plain;
    assert!(!restores());
    // An initcall without a pointer, with two pointers, and with the pointer of another initcall.
    for words in [
        [NOWHERE, NOWHERE],
        [pointer(0), pointer(1)],
        [pointer(2), NOWHERE],
    ] {
        frames(&initcalls, FUNCTIONS[0], BACK, words);
        assert!(!restores(), "{words:x?}");
    }
    frames(&initcalls, FUNCTIONS[0], BACK, [pointer(0), NOWHERE]);
    assert!(restores());
    initcalls.forget();
    assert!(!restores());
    // An initcall that is in the table twice in a row shows nothing.
    let twice = parse(&entries(&[LEAF, LEAF])).unwrap();
    frames(&twice, LEAF, BACK, [pointer(1), NOWHERE]);
    let seen = frames(&twice, OTHER, BACK, [pointer(1), NOWHERE]);
    assert_eq!(seen, plain);
}

#[test]
fn ambiguous_words_restore_no_initcall() {
    let initcalls = learned(1);
    for words in [
        [NOWHERE, NOWHERE],
        [pointer(1), pointer(2)],
        // Before the first entry, after the last one, and within one.
        [pointer(0), NOWHERE],
        [pointer(0) - 4, NOWHERE],
        [pointer(4), NOWHERE],
        [pointer(1) + 2, NOWHERE],
        // Without the slide.
        [pointer(1) - SLIDE, NOWHERE],
    ] {
        let seen = frames(&initcalls, OTHER, BACK, words);
        assert_eq!(seen, on_stack(OTHER, BACK), "{words:x?}");
    }
    // The current entry is after the last one.
    let seen = frames(&learned(0), OTHER, BACK, [pointer(3), NOWHERE]);
    assert_eq!(seen, on_stack(OTHER, BACK));
    // A function that `do_one_initcall` calls at another place, such as for tracing.
    let seen = frames(&initcalls, OTHER, OTHER_BACK, [pointer(1), NOWHERE]);
    assert_eq!(seen, on_stack(OTHER, OTHER_BACK));
}

/// Tests a frame longer than any compiler makes, and many frames.
#[test]
fn one_frame_of_bounded_length_is_searched() {
    let initcalls = learned(0);
    for (length, is_searched) in [(40, true), (41, false)] {
        let mut words = vec![NOWHERE; length + 2];
        words[0] = at(BACK);
        words[length..].copy_from_slice(&[pointer(1), at(THREAD_END) + 1]);
        let stack = walked(
            &initcalls,
            at(OTHER),
            &words,
            (length, DEFAULT_STACK_FRAMES),
        );
        assert_eq!(stack.frames().len() == 4, is_searched, "{length}");
        assert_eq!(stack.summary().kernel_end, StackEnd::Complete);
    }
    let within = [at(BACK), pointer(1), NOWHERE, at(OTHER) + 5];
    let outer = [at(BACK), pointer(2), NOWHERE, at(THREAD_END) + 1];
    let seen = unwound(&initcalls, at(OTHER), &[within, outer].concat());
    let expected = [
        at(OTHER),
        at(FUNCTIONS[1]),
        at(BACK) - 1,
        at(OTHER) + 4,
        at(BACK) - 1,
        at(THREAD_END),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_restored_initcall_counts_as_a_frame() {
    let initcalls = learned(0);
    for (limit, room) in [(2, 1), (4, 2), (6, 3)] {
        let words = [at(BACK), pointer(1), NOWHERE, at(THREAD_END) + 1];
        let stack = walked(&initcalls, at(OTHER), &words, (2, limit));
        let expected = [at(OTHER), at(FUNCTIONS[1]), at(BACK) - 1];
        assert_eq!(stack.frames(), &expected[..room]);
        assert_eq!(stack.summary().kernel_end, StackEnd::Truncated);
    }
}

#[test]
fn waiting_tasks_get_the_restored_initcall() {
    let (back, end) = (at(BACK), at(THREAD_END));
    let words = [at(OTHER) + 5, back, pointer(1), NOWHERE, end + 1];
    let frames = waiting(&learned(1), &words);
    assert_eq!(frames, [at(OTHER) + 4, at(FUNCTIONS[0]), back - 1, end]);
}

/// Another vCPU may have run the task meanwhile, up to the next initcall, so that its words would be of different times.
#[test]
fn nothing_is_learned_from_tasks_that_wait() {
    let initcalls = parse(&entries(&FUNCTIONS)).unwrap();
    let (first, end) = (at(FUNCTIONS[0]), at(THREAD_END));
    let words = [first + 5, at(BACK), pointer(1), NOWHERE, end + 1];
    let expected = on_stack(FUNCTIONS[0] + 4, BACK);
    assert_eq!(waiting(&initcalls, &words), expected);
    assert!(!initcalls.has_learned());
    let restored = |initcalls: &Initcalls| frames(initcalls, OTHER, BACK, [pointer(1), NOWHERE]);
    assert_eq!(restored(&initcalls), on_stack(OTHER, BACK));
    // A running vCPU then shows the right value: the pointer is to this entry.
    frames(&initcalls, FUNCTIONS[0], BACK, [pointer(0), NOWHERE]);
    assert_eq!(restored(&initcalls)[1], at(FUNCTIONS[1]));
}

#[test]
fn stacks_by_frame_pointers_stay_as_they_are() {
    let initcalls = learned(0);
    let mut memory = Words::default();
    memory.set(STACK + 0x10, &[STACK + 0x40, at(BACK)]);
    memory.set(STACK + 0x20, &[pointer(1), NOWHERE, NOWHERE, NOWHERE]);
    memory.set(STACK + 0x40, &[0, at(THREAD_END) + 1]);
    let registers = in_kernel(at(OTHER), STACK, STACK + 0x10);
    let mut stack = Stack::default();
    unwinder(None, &initcalls).walk(&registers, &mut memory, &mut stack);
    assert_eq!(stack.frames(), on_stack(OTHER, BACK));
}

#[test]
fn an_invalid_table_is_refused() {
    let good = entries(&FUNCTIONS);
    assert!(parse(&good).is_some());
    // Within a function, before all of them, and the last one, whose end is unknown.
    for function in [LEAF + 4, LEAF - 0x10, FRAMED, FRAMED + 8] {
        let with = [&FUNCTIONS[..], &[function]].concat();
        assert!(parse(&entries(&with)).is_none(), "{function:#x}");
    }
    // Addresses, as in kernels before 4.19.
    let addresses = FUNCTIONS.map(|function| (TEXT + function).to_le_bytes());
    assert!(parse(addresses.as_flattened()).is_none());
    assert!(parse(&[]).is_none());
    assert!(parse(&good[..11]).is_none());
    let many = |count: usize| parse(&entries(&[LEAF].repeat(count)));
    assert!(many(16 << 10).is_some());
    assert!(many((16 << 10) + 1).is_none());
    for length in [0, 1 << 20] {
        let caller = TEXT + CALLER..TEXT + CALLER + length;
        assert!(Initcalls::parse(caller, INITCALLS, &good, &symbols()).is_none());
    }
    // At the end of the address space.
    let caller = TEXT + CALLER..TEXT + FRAMED;
    assert!(Initcalls::parse(caller, u64::MAX - 3, &good, &symbols()).is_none());
}

proptest! {
    /// For any table and words of a frame, the result is an initcall's start or nothing.
    #[test]
    fn hostile_words_give_an_initcall_or_none(
        stacks in prop::collection::vec((any::<u64>(), any::<u64>(), prop::collection::vec(
            prop_oneof![Just(None::<u64>), any::<u64>().prop_map(Some), (INITCALLS - 8..INITCALLS + 24).prop_map(Some)],
            0..8,
        )), 0..8),
        callee in prop::sample::select(FUNCTIONS.to_vec()),
    ) {
        let initcalls = parse(&entries(&FUNCTIONS)).unwrap();
        for (back, callee_at, words) in stacks {
            let back = [back, TEXT + BACK][usize::from(back.is_multiple_of(2))];
            let callee = [callee_at, TEXT + callee][usize::from(callee_at.is_multiple_of(2))];
            let ended = initcalls.ended(back, callee, words.into_iter());
            let is_initcall = |begin: u64| FUNCTIONS.contains(&begin.wrapping_sub(TEXT));
            prop_assert!(ended.is_none_or(is_initcall));
        }
    }
}
