//! Rules beyond a distance from the stack pointer or the frame pointer, code without rules, and ends of stacks.

use kvmprof_recording::StackEnd;

use super::user_registers::number;
use super::user_tests::*;
use super::{Stack, UserRegisters};

/// Call frame instructions (DWARF 5, section 7.24). A realigned stack, as by GCC: the caller's stack pointer is kept 8
/// bytes below the frame.
const REALIGNED: &[u8] = &[0x0f, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0];
/// The caller's stack pointer is 16 above RBX; the caller's RBX is saved there.
const FROM_RBX: &[u8] = &[0x0c, 3, 16, 0x83, 2];
/// The caller's stack pointer is 48 above, and RBX is saved 16 below that.
const SAVES_RBX: &[u8] = &[0x0e, 48, 0x83, 2];
/// The caller's stack pointer is 8 above the word that is 56 above RSP.
const THROUGH_MEMORY: &[u8] = &[0x0f, 5, 0x77, 0x38, 0x06, 0x23, 0x08];
/// The return address is in RDI.
const BACK_IN_RDI: &[u8] = &[0x0c, 7, 0, 0x09, 16, 5];
/// The return address has no rule.
const WITHOUT_BACK: &[u8] = &[0x08, 16];

fn frames(stack: &Stack) -> (Vec<u64>, StackEnd) {
    let names = functions(stack).into_iter().map(|(function, _)| function);
    (names.collect(), stack.summary().user_end)
}

#[test]
fn a_realigned_stack_is_unwound_without_the_frame_pointer() {
    let unwinder = unwinder(&section(&[
        (LEAF, &[]),
        (FRAMED, REALIGNED),
        (MIDDLE, STACK_48),
        (START, OUTERMOST),
    ]));
    let mut memory = Memory::default();
    let (bp, caller) = (STACK + 0x100, STACK + 0x400);
    memory.call(STACK, FRAMED);
    memory.set(bp - 8, caller);
    memory.set(bp, 0x1234);
    // What a frame would have there is the return address's copy.
    memory.call(bp + 8, START);
    memory.call(caller - 8, MIDDLE);
    memory.call(caller + 40, START);
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF, bp);
    let whole = vec![LEAF, FRAMED, MIDDLE, START];
    assert_eq!(frames(&stack), (whole, StackEnd::Complete));
}

#[test]
fn rules_may_use_any_register_that_is_known() {
    let unwinder = unwinder(&section(&[
        (LEAF, SAVES_RBX),
        (MIDDLE, FROM_RBX),
        (FRAMED, THROUGH_MEMORY),
        (SIGNAL, FROM_R10),
        (START, OUTERMOST),
    ]));
    let mut memory = Memory::default();
    let (saved, kept) = (STACK + 0x200, STACK + 0x400);
    memory.set(STACK + 32, saved);
    memory.call(STACK + 40, MIDDLE);
    memory.call(saved + 8, FRAMED);
    memory.set(saved + 16 + 56, kept);
    memory.call(kept, START);
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF, 7);
    let whole = vec![LEAF, MIDDLE, FRAMED, START];
    assert_eq!(frames(&stack), (whole, StackEnd::Complete));
    // R10 is known in the innermost function alone.
    let mut start = UserRegisters::at(BIAS + SIGNAL, STACK, 7);
    let stack = walk_from(&unwinder, &mut memory, start);
    assert_eq!(frames(&stack), (vec![SIGNAL], StackEnd::Broken));
    start.at.set(number::R8 + 2, Some(kept - 8));
    let stack = walk_from(&unwinder, &mut memory, start);
    assert_eq!(frames(&stack), (vec![SIGNAL, START], StackEnd::Complete));
}

#[test]
fn a_return_address_may_be_in_a_register_and_must_have_a_rule() {
    let unwinder = unwinder(&section(&[
        (LEAF, BACK_IN_RDI),
        (MIDDLE, WITHOUT_BACK),
        (START, OUTERMOST),
    ]));
    let mut memory = Memory::default();
    memory.call(0, START);
    let mut start = UserRegisters::at(BIAS + LEAF + 2, STACK, 0);
    for (rdi, expected) in [
        (BIAS + START + 0x20, (vec![LEAF, START], StackEnd::Complete)),
        (0, (vec![LEAF], StackEnd::Broken)),
    ] {
        start.at.set(number::RDI, Some(rdi));
        let stack = walk_from(&unwinder, &mut memory, start);
        assert_eq!(frames(&stack), expected);
    }
    let stack = walk(&unwinder, &mut memory, BIAS + MIDDLE, 0);
    assert_eq!(frames(&stack), (vec![MIDDLE], StackEnd::Broken));
}

#[test]
fn a_zero_return_address_by_rules_alone_ends_a_stack() {
    let unwinder = unwinder(&program());
    let mut memory = Memory::default();
    memory.call(STACK, MIDDLE);
    memory.set(STACK + 48, 0);
    let end = |memory: &mut Memory| frames(&walk(&unwinder, memory, BIAS + LEAF, 0)).1;
    assert_eq!(end(&mut memory), StackEnd::Complete);
    // Another stack follows.
    memory.call(STACK + 56, MIDDLE);
    assert_eq!(end(&mut memory), StackEnd::Complete);
}

#[test]
fn after_a_frame_pointer_a_zero_return_address_must_be_the_last_word() {
    let unwinder = unwinder(&program());
    let mut memory = Memory::default();
    memory.set(STACK + 0x40, 0);
    memory.call(STACK + 0x48, MIDDLE);
    for place in (STACK + 0x78..STACK + 0x300).step_by(8) {
        memory.set(place, 0);
    }
    let seen = |memory: &mut Memory| frames(&walk(&unwinder, memory, BIAS + UNKNOWN, STACK + 0x40));
    let both = vec![UNKNOWN, MIDDLE];
    assert_eq!(seen(&mut memory), (both.clone(), StackEnd::Complete));
    memory.call(STACK + 0x100, MIDDLE);
    assert_eq!(seen(&mut memory), (both, StackEnd::Broken));
}

/// A function without rules at [`UNKNOWN`] + 0x50, whose frame pointer leads to a frame with a return address into
/// [`MIDDLE`], behind a call of `called`. There is one word between them.
fn without_rules(called: u64, word: u64, memory: &mut Memory) -> (Vec<u64>, StackEnd) {
    let unwinder = unwinder(&program());
    let bp = STACK + 0x40;
    for place in (STACK..bp).step_by(8) {
        memory.set(place, 0);
    }
    memory.set(STACK + 0x10, word);
    memory.set(bp, 0);
    memory.set(bp + 8, BIAS + MIDDLE + 0x20);
    direct_call(memory, MIDDLE, called);
    memory.call(bp + 16 + 40, START);
    frames(&walk(&unwinder, memory, BIAS + UNKNOWN + 0x50, bp))
}

/// Puts a call of `target` before offset 0x20 of `function`, and returns the return address.
fn direct_call(memory: &mut Memory, function: u64, target: u64) -> u64 {
    let back = function + 0x20;
    let distance = u32::try_from(target.wrapping_sub(back) & 0xffff_ffff).unwrap();
    let code = [&[0xe8][..], &distance.to_le_bytes()].concat();
    memory.code(BIAS + back - 5, &code);
    BIAS + back
}

#[test]
fn a_frame_pointer_is_used_only_if_it_skips_no_caller() {
    let whole = (vec![UNKNOWN, MIDDLE, START], StackEnd::Complete);
    let cut = (vec![UNKNOWN], StackEnd::Broken);
    // An ordinary word, and a pointer to code that follows no call.
    for word in [5, BIAS + LEAF + 3] {
        let mut memory = Memory::default();
        assert_eq!(without_rules(UNKNOWN, word, &mut memory), whole);
    }
    // A function between them has called this one, and has no frame.
    let mut memory = Memory::default();
    let word = direct_call(&mut memory, UNKNOWN, UNKNOWN + 0x40);
    assert_eq!(without_rules(UNKNOWN, word, &mut memory), cut);
    // An old return address, behind a call of another function.
    let mut memory = Memory::default();
    let word = direct_call(&mut memory, UNKNOWN, LEAF);
    assert_eq!(without_rules(UNKNOWN, word, &mut memory), whole);
    // The call of the frame's function is unknown.
    let mut memory = Memory::default();
    let word = direct_call(&mut memory, LEAF, UNKNOWN + 0x40);
    assert_eq!(without_rules(SIGNAL + 0x500_0000, word, &mut memory), cut);
}

#[test]
fn instructions_outside_of_frames_have_their_return_address_on_top() {
    let unwinder = unwinder(&program());
    let endbr: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    let jump: &[u8] = &[0xff, 0x25, 1, 2, 3, 4];
    let enter: &[u8] = &[0x55, 0x48, 0x89, 0xe5];
    for (words, within, code) in [
        (0, 0, jump.to_vec()),
        (0, 0, [endbr, jump].concat()),
        (0, 0, [endbr, &[0xf2], jump].concat()),
        (0, 0, enter.to_vec()),
        (0, 0, [endbr, enter].concat()),
        (0, 0, vec![0xc3]),
        (1, 1, enter.to_vec()),
        (1, 0, vec![0x5d, 0xc3]),
        (1, 0, [&[0xff, 0x35, 1, 2, 3, 4][..], jump].concat()),
        (2, 6, [&[0xff, 0x35, 1, 2, 3, 4][..], jump].concat()),
    ] {
        let mut memory = Memory::default();
        memory.code(BIAS + UNKNOWN + 0x10, &code);
        for place in 0..words {
            memory.set(STACK + 8 * place, 0x77);
        }
        memory.call(STACK + 8 * words, MIDDLE);
        memory.call(STACK + 8 * words + 48, START);
        // The frame pointer is that of a function further out.
        memory.set(STACK + 0x80, 0);
        memory.call(STACK + 0x88, START);
        let ip = BIAS + UNKNOWN + 0x10 + within;
        let stack = walk(&unwinder, &mut memory, ip, STACK + 0x80);
        let whole = (vec![UNKNOWN, MIDDLE, START], StackEnd::Complete);
        assert_eq!(frames(&stack), whole, "{code:x?} {within}");
    }
}

#[test]
fn the_code_of_a_threads_and_a_contexts_start_is_an_end() {
    let unwinder = unwinder(&program());
    // A thread's function returns to code that ends the thread.
    let mut memory = Memory::default();
    memory.call(STACK, UNKNOWN);
    let exit = [0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05];
    memory.code(BIAS + UNKNOWN + 0x20, &exit);
    let stack = walk(&unwinder, &mut memory, BIAS + LEAF, 1);
    assert_eq!(frames(&stack), (vec![LEAF, UNKNOWN], StackEnd::Complete));
    // A context's function returns to the first instruction of another one.
    let start: &[u8] = &[0x48, 0x89, 0xdc, 0x5f, 0x48, 0x85, 0xff, 0x74];
    for (address, code, end) in [
        (MIDDLE, start, StackEnd::Complete),
        (MIDDLE, &[0x48, 0x89, 0xdc, 0x90][..], StackEnd::Broken),
        (MIDDLE + 1, start, StackEnd::Broken),
    ] {
        let mut memory = Memory::default();
        memory.set(STACK, BIAS + address);
        memory.code(BIAS + address, code);
        let stack = walk(&unwinder, &mut memory, BIAS + LEAF, 1);
        assert_eq!(frames(&stack), (vec![LEAF], end));
    }
}

#[test]
fn a_programs_start_without_rules_is_an_end_if_it_clears_rbp() {
    let segments = vec![(0, BASE, LENGTH)];
    let table = super::UnwindTable::new(&program(), SECTION, UNKNOWN, segments).unwrap();
    let mapped = [(BIAS + BASE, BIAS + BASE + LENGTH, 0, table.into())];
    let unwinder = super::UserUnwinder::new(mapped);
    let plain: &[u8] = &[0x31, 0xed];
    let wide: &[u8] = &[0x48, 0x31, 0xed];
    let marked: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa, 0x31, 0xed];
    let other: &[u8] = &[0x90, 0x90];
    for (code, end) in [
        (plain, StackEnd::Complete),
        (wide, StackEnd::Complete),
        (marked, StackEnd::Complete),
        (other, StackEnd::Broken),
    ] {
        let mut memory = Memory::default();
        memory.call(STACK, UNKNOWN);
        memory.code(BIAS + UNKNOWN, code);
        let stack = walk(&unwinder, &mut memory, BIAS + LEAF, 0);
        assert_eq!(frames(&stack), (vec![LEAF, UNKNOWN], end), "{code:x?}");
        // From a function without rules it is the next return address.
        memory.call(STACK + 0x20, UNKNOWN);
        memory.set(STACK, 0x77);
        for place in [8, 0x10, 0x18] {
            memory.set(STACK + place, 5);
        }
        let ip = BIAS + UNKNOWN + 0x800;
        let expected = match end {
            StackEnd::Complete => (vec![UNKNOWN; 2], end),
            _ => (vec![UNKNOWN], end),
        };
        assert_eq!(frames(&walk(&unwinder, &mut memory, ip, 0)), expected);
        memory.call(STACK + 8, LEAF);
        let cut = (vec![UNKNOWN], StackEnd::Broken);
        assert_eq!(frames(&walk(&unwinder, &mut memory, ip, 0)), cut);
    }
}

#[test]
fn a_system_call_belongs_to_the_instruction_before() {
    let unwinder = unwinder(&program());
    let mut memory = Memory::default();
    memory.call(STACK, START);
    let mut start = UserRegisters::at(BIAS + LEAF + 0x100, STACK, 0);
    start.is_exact = false;
    // Without the instruction, the registers are those of an interrupt by coincidence.
    let ip = BIAS + LEAF + 0x100;
    assert_eq!(walk_from(&unwinder, &mut memory, start).frames()[0], ip);
    memory.code(ip - 2, &[0x0f, 0x05]);
    let stack = walk_from(&unwinder, &mut memory, start);
    assert_eq!(stack.frames()[0], ip - 1);
    assert_eq!(frames(&stack), (vec![LEAF, START], StackEnd::Complete));
}
