use super::*;
use crate::code::test_code::TestCode;

#[test]
fn cached_rules_are_the_same() {
    let rule = |kind, sp, sp_offset, bp, bp_offset| OrcEntry {
        kind,
        sp,
        sp_offset,
        bp,
        bp_offset,
    };
    for entry in [
        rule(Kind::Call, Base::Sp, 8, Base::Undefined, 0),
        rule(Kind::Call, Base::Sp, 32760, Base::CallerSp, -32760),
        rule(Kind::Call, Base::Bp, 16, Base::CallerSp, -16),
        rule(Kind::Call, Base::SpIndirect, 8, Base::Undefined, 0),
        rule(Kind::Registers, Base::Sp, 0, Base::Undefined, 0),
        rule(Kind::End, Base::Sp, 0, Base::Undefined, 0),
        rule(Kind::ProcessorFrame, Base::Sp, 8, Base::Undefined, 0),
        rule(Kind::Undefined, Base::Sp, 0, Base::Undefined, 0),
    ] {
        assert!(pack(Some(entry)) >> RULE_BITS == 0);
        assert_eq!(unpack(pack(Some(entry))), Some(entry));
    }
    assert_eq!(unpack(pack(None)), None);
}

/// The distances of the caller's place from the stack pointer, at some bytes of a function's code.
#[test]
fn the_callers_place_follows_from_the_epilogue() {
    for (code, expected) in [
        (
            // push %rbx; push %rbp; sub $16, %rsp; nop; add $16, %rsp; pop %rbp; pop %rbx; ret
            &b"\x53\x55\x48\x83\xec\x10\x90\x48\x83\xc4\x10\x5d\x5b\xc3"[..],
            &[
                (0, 8),
                (1, 16),
                (2, 24),
                (6, 40),
                (11, 24),
                (12, 16),
                (13, 8),
            ][..],
        ),
        // push %rbx; jmp; pop %rbx; ret. In a file, a test of the processor's features is a jump out of the code, which comes back behind the jump or
        // elsewhere.
        (b"\x53\xe9\x00\x00\x00\x10\x5b\xc3", &[(1, 16), (6, 16)]),
        // Two paths that disagree give no rule: one pops twice, the other one once.
        (b"\x74\x03\x5b\x5b\xc3\x5b\xc3", &[(2, 24), (5, 16)]),
    ] {
        let mut kernel = TestCode::default();
        kernel.add("function", code);
        let distances = kernel.distances().unwrap();
        for (index, distance) in expected {
            assert_eq!(distances[*index], Some(*distance), "{code:x?} {index}");
        }
        assert_eq!(distances[0].is_none(), code[0] == 0x74);
    }
}

/// What an interrupt finds on the stack is known until the registers are being saved. A system call has no caller in the kernel.
#[test]
fn entries_have_rules_for_their_own_code() {
    let mut kernel = TestCode::default();
    // endbr64; three bytes for clac; push $-1; call; nop
    let code = b"\xf3\x0f\x1e\xfa\x0f\x1f\x00\x6a\xff\xe8\x00\x00\x00\x00\x90\xc3";
    let interrupt = kernel.add("asm_sysvec_test", code);
    let call = kernel.add("entry_SYSCALL_64", b"\x0f\x01\xf8\x90\xc3");
    // pop %r15; pop %r14; call; nop
    let back = b"\x41\x5f\x41\x5e\xe8\x00\x00\x00\x00\x90";
    let back = kernel.add("syscall_return_via_sysret", back);
    let thunk = kernel.add("__x86_indirect_thunk_rax", b"\xff\xe0");
    // Most functions have no frame pointers.
    kernel.add("plain", b"\x53\x5b\xc3");
    let rules = kernel.rules().unwrap();
    let rule = |address, is_exact| {
        let entry: Option<OrcEntry> = rules.entry(address, is_exact);
        entry.map(|entry| (entry.kind, entry.sp_offset))
    };
    let frame = |pushed| Some((Kind::ProcessorFrame, pushed));
    let at = |offset| rule(interrupt + offset, true);
    assert_eq!(
        [at(0), at(4), at(7), at(9)],
        [frame(0), frame(0), frame(0), frame(8)]
    );
    // Within an instruction, and behind the call.
    assert_eq!([at(2), at(14)], [None, None]);
    assert_eq!(rule(interrupt + 14, false), Some((Kind::Registers, 0)));
    assert_eq!(
        [rule(call, true), rule(call + 3, true)],
        [Some((Kind::End, 0)); 2]
    );
    assert_eq!(
        [
            rule(back, true),
            rule(back + 2, true),
            rule(back + 9, false)
        ],
        [Some((Kind::End, 0)); 3]
    );
    assert_eq!(
        [rule(thunk, true), rule(thunk + 2, false)],
        [Some((Kind::Undefined, 0)), None]
    );
}

/// What the processor has saved is found until the registers are being saved, and once they are popped.
#[test]
fn entries_know_where_the_processor_has_saved() {
    let frame = |offset| Some((Kind::ProcessorFrame, offset));
    let mut pops = [0x41, 0x5f].repeat(4);
    // pop %rbp, and nine others; pop %rdi; add $8, %rsp; iretq
    pops.extend([0x5d; 11]);
    pops.extend(b"\x48\x83\xc4\x08\x48\xcf");
    // cld; push %rsi; mov 8(%rsp), %rsi; 15 more; mov %rax, %rsp; nop
    let mut pushes = b"\xfc\x56\x48\x8b\x74\x24\x08".to_vec();
    pushes.extend([0x50; 15]);
    pushes.extend(b"\x48\x89\xc4\x90");
    for (name, code, expected) in [
        // endbr64; call
        (
            "asm_exc_page_fault",
            b"\xf3\x0f\x1e\xfa\xe8\x00\x00\x00\x00".to_vec(),
            &[(0, frame(8)), (4, frame(8))][..],
        ),
        (
            "asm_exc_divide_error",
            b"\x6a\xff\xe8\x00\x00\x00\x00".to_vec(),
            &[(0, frame(0)), (2, frame(8))],
        ),
        (
            "error_entry",
            pushes,
            &[
                (0, frame(16)),
                (2, frame(24)),
                (21, frame(136)),
                (22, Some((Kind::Call, 8))),
                (25, None),
            ],
        ),
        (
            "restore_regs_and_return_to_kernel",
            pops,
            &[
                (0, Some((Kind::Registers, 0))),
                (2, None),
                (8, None),
                (9, frame(88)),
                (19, frame(8)),
                (23, frame(0)),
            ],
        ),
        ("native_iret", b"\x48\xcf".to_vec(), &[(0, frame(0))]),
    ] {
        let mut kernel = TestCode::default();
        let begin = kernel.add(name, &code);
        // Most functions have no frame pointers.
        kernel.add("plain", b"\x53\x5b\xc3");
        let rules = kernel.rules().unwrap();
        for (offset, expected) in expected {
            let found: Option<OrcEntry> = rules.entry(begin + offset, true);
            let found = found.map(|entry| (entry.kind, entry.sp_offset));
            assert_eq!(found, *expected, "{name} {offset}");
        }
    }
}

/// Threads begin in assembly code, which later kernels have under another name.
#[test]
fn threads_begin_in_assembly_code() {
    // call *%rbx; nop
    let code = b"\xff\xd3\x90";
    for (names, outermost) in [
        (&["ret_from_fork"][..], "ret_from_fork"),
        (&["ret_from_fork", "ret_from_fork_asm"], "ret_from_fork_asm"),
    ] {
        let mut kernel = TestCode::default();
        let added: Vec<_> = names
            .iter()
            .map(|name| (*name, kernel.add(name, code)))
            .collect();
        kernel.add("plain", b"\x53\x5b\xc3");
        let rules = kernel.rules().unwrap();
        for (name, address) in added {
            let entry: Option<OrcEntry> = rules.entry(address + 2, false);
            let is_outermost = entry.is_some_and(|entry| entry.kind == Kind::End);
            assert_eq!(is_outermost, name == outermost, "{name} of {names:?}");
        }
    }
}

#[test]
fn code_after_a_noreturn_call_gives_no_rule() {
    let mut kernel = TestCode::default();
    let panic = kernel.add("panic", b"\x0f\x0b");
    // call panic; pop %rbx; ret
    let mut code = vec![0xe8];
    let begin = panic + 16;
    let distance = i32::try_from(panic.cast_signed() - (begin + 5).cast_signed()).unwrap();
    code.extend_from_slice(&distance.to_le_bytes());
    code.extend_from_slice(b"\x5b\xc3");
    assert_eq!(kernel.add("dies", &code), begin);
    let distances = kernel.distances().unwrap();
    assert_eq!((distances[16], distances[21]), (Some(8), Some(16)));
}

/// Such a function has no return, like that of kernel threads: what it pushes tells where its caller is.
#[test]
fn a_function_that_does_not_return_has_rules_from_its_begin() {
    let mut kernel = TestCode::default();
    let panic = kernel.add("panic", b"\x0f\x0b");
    kernel.add("plain", b"\x53\x5b\xc3");
    // push %rbp; push %rbx; sub $8, %rsp; xor %ebp, %ebp; call *%rax; call panic
    let mut code = b"\x55\x53\x48\x83\xec\x08\x31\xed\xff\xd0\xe8".to_vec();
    let begin = panic + 32;
    let after = begin + u64::try_from(code.len()).unwrap() + 4;
    let distance = i32::try_from(panic.cast_signed() - after.cast_signed()).unwrap();
    code.extend_from_slice(&distance.to_le_bytes());
    assert_eq!(kernel.add("thread", &code), begin);
    let rules = kernel.rules().unwrap();
    let rule = |address, is_exact| rules.entry(address, is_exact);
    let stacked = |sp_offset| OrcEntry {
        kind: Kind::Call,
        sp: Base::Sp,
        sp_offset,
        bp: Base::CallerSp,
        bp_offset: -16,
    };
    assert_eq!(rule(begin + 1, true).map(|rule| rule.sp_offset), Some(16));
    assert_eq!(rule(begin + 10, false), Some(stacked(32)));
    // Behind the last call.
    assert_eq!(rule(after, false), Some(stacked(32)));
    assert_eq!(rule(after, true), None);
}

/// Code that returns from an interrupt is jumped to.
#[test]
fn code_that_is_not_called_has_no_rules_from_its_begin() {
    let mut kernel = TestCode::default();
    kernel.add("plain", b"\x53\x5b\xc3");
    // pop %rdi; iretq
    let way_back = kernel.add("restore_regs", b"\x5f\x48\xcf");
    let rules = kernel.rules().unwrap();
    assert_eq!(rules.entry(way_back, true), None);
}

#[test]
fn a_kernel_with_frame_pointers_needs_no_rules() {
    let mut kernel = TestCode::default();
    // push %rbp; mov %rsp, %rbp; pop %rbp; ret
    kernel.add("framed", b"\x55\x48\x89\xe5\x5d\xc3");
    assert_eq!(kernel.distances(), None);
}

/// A module's functions return by the kernel's thunk, call its functions at their end, and call some that don't return.
#[test]
fn modules_have_rules_that_end_in_the_kernel() {
    const SLIDE: u64 = 0x1e00_0000;
    const MODULE: u64 = 0xffff_ffff_c012_3000;
    let mut kernel = TestCode::default();
    let thunk = kernel.add("__x86_return_thunk", b"\xc3");
    let called = kernel.add("kfree", b"\x53\x5b\xc3");
    let panic = kernel.add("panic", b"\x0f\x0b");
    let kernel = Arc::new(kernel.rules().unwrap());
    // `pop %rbx`, and a jump or a call to the kernel.
    let module = |operation: u8, target: u64| {
        let mut code = vec![0x5b, operation];
        let distance = (target + SLIDE).wrapping_sub(MODULE + 6).to_le_bytes();
        code.extend_from_slice(&distance[..4]);
        code.extend_from_slice(b"\x5b\xc3");
        let functions = [(MODULE, "function")].into_iter();
        CodeRules::of_module(code, MODULE, functions, &kernel, SLIDE)
    };
    let (jump, call) = (0xe9, 0xe8);
    let distance = |rules: &CodeRules| rules.entry(MODULE, true).map(|entry| entry.sp_offset);
    assert_eq!(distance(&module(jump, thunk)), Some(16));
    assert_eq!(distance(&module(jump, called)), Some(16));
    // Into the middle of a function, and to no function.
    assert_eq!(distance(&module(jump, called + 1)), None);
    assert_eq!(distance(&module(jump, thunk - 64)), None);
    assert_eq!(distance(&module(call, called)), Some(24));
    assert_eq!(distance(&module(call, panic)), None);
    let after = |rules: &CodeRules| rules.entry(MODULE + 6, false).map(|entry| entry.sp_offset);
    assert_eq!(after(&module(call, called)), Some(16));
    assert_eq!(after(&module(call, panic)), None);
}
