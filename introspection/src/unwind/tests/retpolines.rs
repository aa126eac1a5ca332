//! Thunks of indirect calls.

use super::*;

/// `call .+12; pause; lfence; jmp .-5; mov %rax, (%rsp); ret`, at LEAF.
const THUNK: [u8; 24] = [
    0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x48, 0x89, 0x04, 0x24, 0xc3, 0xcc,
    0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
];
const CALL_AT: u64 = 0;
const MOVE_AT: u64 = 12;
const RETURN_AT: u64 = 16;

/// Guest memory with this code at LEAF, and a call right before `CALLER + 9`.
struct Code<'a> {
    stack: Words,
    code: &'a [u8],
}

impl StackMemory for Code<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.stack.word(address)
    }

    fn code_before(&mut self, address: u64) -> Option<[u8; 8]> {
        if address == at(CALLER) + 9 {
            return Some([0, 0, 0, 0xe8, 1, 2, 3, 4]);
        }
        let end = address.checked_sub(at(LEAF))?;
        let byte = |back: u64| {
            let index = end
                .checked_sub(back)
                .and_then(|index| usize::try_from(index).ok());
            index
                .and_then(|index| self.code.get(index).copied())
                .unwrap_or(0xcc)
        };
        Some(std::array::from_fn(|index| byte(8 - index as u64)))
    }
}

/// The frames from an instruction of `code`, whose row has this kind, with `words` on the stack.
fn frames(code: &[u8], offset: u64, row: (i16, u8, u8), words: &[u64]) -> (Vec<u64>, StackEnd) {
    let mut rows = ROWS;
    rows[0] = (LEAF, row.0, 0, row.1, row.2);
    let orc = table(&rows, "6.12.9").unwrap();
    let mut stack = Words::default();
    stack.set(STACK, words);
    let mut memory = Code { stack, code };
    let registers = in_kernel(at(LEAF) + offset, STACK, 0);
    let (stack, _) = walk(Some(&orc), &registers, &mut memory);
    (stack.frames().to_vec(), stack.summary().kernel_end)
}

const BACK: u64 = TEXT + SLIDE + CALLER + 9;
const TARGET: u64 = TEXT + SLIDE + FRAMED;
const CALLED: (i16, u8, u8) = (8, 5, CALL);
const UNKNOWN: (i16, u8, u8) = (0, 0, 0);
const END: (i16, u8, u8) = (0, 0, 1);

#[test]
fn the_target_of_a_retpoline_is_not_its_caller() {
    for row in [CALLED, UNKNOWN, END] {
        let (frames, _) = frames(&THUNK, RETURN_AT, row, &[TARGET, BACK]);
        assert_eq!(frames, [at(LEAF) + RETURN_AT, BACK - 1], "{row:?}");
    }
    // A jump in place of the return.
    let mut code = THUNK;
    code[16] = 0xe9;
    let (frames, _) = frames(&code, RETURN_AT, CALLED, &[TARGET, BACK]);
    assert_eq!(frames[1..], [BACK - 1]);
}

#[test]
fn a_thunk_without_an_orc_entry_has_a_caller() {
    let inside = at(LEAF) + 5;
    for row in [UNKNOWN, END] {
        for (offset, words) in [(CALL_AT, [BACK, 0]), (MOVE_AT, [inside, BACK])] {
            let (frames, _) = frames(&THUNK, offset, row, &words);
            assert_eq!(frames, [at(LEAF) + offset, BACK - 1], "{row:?}");
        }
        for jump in [
            [0xe8, 1, 0, 0],
            [0x0f, 0xae, 0xe8, 0xff],
            [0xff, 0xe0, 0xcc, 0xcc],
            [0x41, 0xff, 0xe3, 0xcc],
            [0xc3, 0xcc, 0xcc, 0xcc],
        ] {
            let (frames, _) = frames(&jump, 0, row, &[BACK, 0]);
            assert_eq!(frames[1..], [BACK - 1], "{jump:x?}");
        }
    }
}

#[test]
fn other_code_is_not_taken_for_a_thunk() {
    // A return to the caller, from a function that has stored another value.
    let code = [0x48, 0x89, 0x04, 0x25, 0xc3, 0xcc, 0xcc, 0xcc];
    let (seen, _) = frames(&code, 4, CALLED, &[BACK, TARGET]);
    assert_eq!(seen[1..], [BACK - 1]);
    // The stack has no return address of a call.
    for (offset, words) in [(CALL_AT, [TARGET, BACK]), (MOVE_AT, [BACK, TARGET])] {
        let (seen, end) = frames(&THUNK, offset, UNKNOWN, &words);
        assert_eq!((seen.len(), end), (1, StackEnd::Broken));
    }
}
