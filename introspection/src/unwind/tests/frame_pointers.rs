//! Stacks of kernels without ORC.

use super::*;

#[test]
fn without_orc_frame_pointers_reach_the_encoded_registers() {
    let mut memory = Words::default();
    memory.set(STACK, &[STACK + 0x40, at(CALLER) + 1]);
    memory.set(STACK + 0x40, &[(STACK + 0x80) | 1, at(ENTRY) + 1]);
    memory.registers(STACK + 0x80, 0x40_1234, 0x33, 0x7fff_0000, 0);
    let registers = in_kernel(at(LEAF), STACK - 8, STACK);
    let (stack, user) = walk(None, &registers, &mut memory);
    assert_eq!(stack.frames(), [at(LEAF), at(CALLER), at(ENTRY)]);
    assert!(user.is_some());
}

#[test]
fn without_orc_a_system_call_uses_the_registers_at_the_stacks_end() {
    // The outermost frame of a system call: entry code has cleared RBP.
    let top = 0xffff_c900_0000_4000;
    for (padding, ip, is_user) in [
        (0, 0x40_1234, true),
        (16, 0x40_1234, true),
        (8, 0x40_1234, false),
        (0, TEXT, false),
    ] {
        let mut memory = Words::default();
        let saved = top - padding - 168;
        memory.registers(saved, ip, 0x33, 0x7fff_0000, 0x7fff_0040);
        memory.set(saved - 16, &[0, at(ENTRY) + 1]);
        let registers = in_kernel(at(LEAF), saved - 32, saved - 16);
        let (stack, user) = walk(None, &registers, &mut memory);
        assert_eq!(stack.frames(), [at(LEAF), at(ENTRY)]);
        assert_eq!(stack.summary().kernel_end, StackEnd::Complete);
        assert_eq!(user.is_some(), is_user, "{padding} {ip:#x}");
        if let Some(user) = user {
            assert_eq!((user.at.ip, user.at.bp()), (0x40_1234, Some(0x7fff_0040)));
        }
    }
    // A kernel thread has zeroed registers there.
    let mut memory = Words::default();
    memory.registers(top - 168, 0, 0, 0, 0);
    memory.set(top - 168 - 16, &[0, at(ENTRY) + 1]);
    let registers = in_kernel(at(LEAF), top - 200, top - 168 - 16);
    let (stack, user) = walk(None, &registers, &mut memory);
    let ended = (stack.summary().kernel_end, user);
    assert_eq!(ended, (StackEnd::Complete, None));
}

#[test]
fn without_orc_an_interrupt_stack_is_followed_by_the_interrupted_one() {
    let mut memory = Words::default();
    let far = STACK + 0x10_0000;
    // The handler's frame. Its caller's frame is on the other stack, and the first word here points to it.
    memory.set(IRQ_STACK, &[far, at(SWITCH) + 1, far - 0x40]);
    memory.set(far, &[(far + 0x40) | 1, at(INTERRUPT) + 1]);
    memory.registers(far + 0x40, at(CALLER), 0x10, far + 0x200, 0);
    let registers = in_kernel(at(LEAF), IRQ_STACK - 0x20, IRQ_STACK);
    let (stack, _) = walk(None, &registers, &mut memory);
    assert_eq!(
        stack.frames(),
        [at(LEAF), at(SWITCH), at(INTERRUPT), at(CALLER)]
    );
    assert_eq!(stack.summary().kernel_end, StackEnd::Complete);
    // Any other value there is invalid.
    memory.set(IRQ_STACK + 16, &[far + 0x40]);
    let (stack, _) = walk(None, &registers, &mut memory);
    assert_eq!(stack.frames(), [at(LEAF), at(SWITCH)]);
    assert_eq!(stack.summary().kernel_end, StackEnd::Broken);
}
