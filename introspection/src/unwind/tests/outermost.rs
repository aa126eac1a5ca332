//! Tests of the ends of stacks that are unwound by frame pointers.

use super::*;

const FRAME: u64 = 0x7fff_0000;
/// A return address after a call, and a return address without one.
const BACK: u64 = 0x40_1010;
const ELSEWHERE: u64 = 0x40_2011;

/// Code with a call before [`BACK`].
fn code() -> Words {
    let mut memory = Words::default();
    let call = [0x90, 0x90, 0x90, 0xe8, 1, 2, 3, 4];
    memory.set(BACK - 8, &[u64::from_le_bytes(call)]);
    memory.set(ELSEWHERE - 8, &[u64::from_le_bytes([0x55; 8])]);
    memory
}

/// The number of frames from `bp` on, and the kind of the stack's end.
fn ended(bp: u64, memory: &mut Words) -> (u16, StackEnd) {
    let start = UserRegisters::at(0x40_0123, FRAME - 0x20, bp);
    let mut stack = Stack::default();
    stack.walk_user(&start, None, memory);
    (stack.summary().user, stack.summary().user_end)
}

#[test]
fn a_register_alone_does_not_prove_a_complete_stack() {
    // Threads start with 0, and code without frame pointers leaves it unchanged.
    let mut memory = code();
    assert_eq!(ended(0, &mut memory), (1, StackEnd::Broken));
    // RBP may point to any words.
    for words in [[0, 0], [FRAME + 0x10, 0], [0, ELSEWHERE], [0, 7]] {
        memory.set(FRAME, &words);
        assert_eq!(
            ended(FRAME, &mut memory),
            (1, StackEnd::Broken),
            "{words:x?}"
        );
    }
}

#[test]
fn the_outermost_function_is_recognised_by_its_code() {
    let ends = [[0x90; 8], [0xf4; 8], frame_pointer::THREAD_EXIT];
    let expected = [StackEnd::Broken, StackEnd::Complete, StackEnd::Complete];
    for (code_behind, end) in ends.into_iter().zip(expected) {
        let mut memory = code();
        memory.set(BACK, &[u64::from_le_bytes(code_behind)]);
        memory.set(FRAME, &[0, BACK]);
        assert_eq!(ended(FRAME, &mut memory), (2, end), "{code_behind:x?}");
        // The value of its RBP proves nothing.
        memory.set(FRAME, &[FRAME + 0x10, BACK]);
        for words in [
            [0, ELSEWHERE],
            [0, 0],
            [FRAME + 0x20, 0],
            [0, 0x1234_5678],
            [FRAME + 0x20, ELSEWHERE],
        ] {
            memory.set(FRAME + 0x10, &words);
            assert_eq!(ended(FRAME, &mut memory), (2, end), "{words:x?}");
        }
    }
}

#[test]
fn a_goroutine_ends_with_the_function_that_it_was_started_with() {
    // `runtime.goexit`: NOP, CALL, NOP; goroutines return to the address after the first instruction.
    let mut memory = code();
    let goexit = 0x40_3000;
    let instructions = [0xcc, 0xcc, 0xcc, 0x90, 0xe8, 5, 6, 7];
    memory.set(goexit + 1 - 4, &[u64::from_le_bytes(instructions)]);
    memory.set(
        goexit + 1 - 8,
        &[u64::from_le_bytes([
            0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0x90,
        ])],
    );
    memory.set(FRAME, &[0, goexit + 1]);
    assert_eq!(ended(FRAME, &mut memory), (1, StackEnd::Complete));
    memory.set(FRAME, &[FRAME + 0x10, BACK]);
    memory.set(FRAME + 0x10, &[0, goexit + 1]);
    assert_eq!(ended(FRAME, &mut memory), (2, StackEnd::Complete));
}
