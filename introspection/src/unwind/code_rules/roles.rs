//! What functions are to a walk, by their names.

use std::ops::Range;

/// Functions that don't return: what follows a call of them belongs to another path.
const NO_RETURN: [&str; 21] = [
    "__fortify_panic",
    "__fortify_report",
    "__module_put_and_kthread_exit",
    "__reiserfs_panic",
    "__stack_chk_fail",
    "cpu_startup_entry",
    "do_exit",
    "do_group_exit",
    "do_task_dead",
    "kthread_complete_and_exit",
    "kthread_exit",
    "machine_real_restart",
    "make_task_dead",
    "nmi_panic",
    "nmi_panic_self_stop",
    "panic",
    "panic_smp_self_stop",
    "rest_init",
    "rewind_stack_and_make_dead",
    "stop_this_cpu",
    "usercopy_abort",
];

/// Exceptions of which the processor pushes an error code (SDM volume 3, section 7.13).
const WITH_CODE: [&str; 8] = [
    "asm_exc_alignment_check",
    "asm_exc_control_protection",
    "asm_exc_double_fault",
    "asm_exc_general_protection",
    "asm_exc_invalid_tss",
    "asm_exc_page_fault",
    "asm_exc_segment_not_present",
    "asm_exc_stack_segment",
];

/// Where threads begin, from Linux 6.5 on.
const FORK_IN_ASSEMBLY: &str = "ret_from_fork_asm";

/// What a function is to a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// One that returns.
    Plain,
    /// A part of another function, which the compiler has put elsewhere.
    Part,
    /// One that doesn't return.
    NoReturn,
    /// What a function jumps to in order to return.
    ReturnThunk,
    /// Its jump target, to continue at an address in a register: in another function or in a part of itself.
    JumpThunk,
    /// Assembly code that has saved all registers, and calls C code with the stack pointer at them.
    Entry,
    /// The same for an interrupt: until it has saved registers, those that the processor has saved are on the stack.
    Interrupt,
    /// The same, after the processor or a stub has pushed a code.
    InterruptWithCode,
    /// What the code of an interrupt calls to save the registers.
    SavesRegisters,
    /// What pops all registers, to return from an interrupt.
    RestoresRegisters,
    /// The return itself: only what the processor has saved is still on the stack.
    Returns,
    /// The same for a system call, from user mode only: it has no caller in the kernel.
    SystemCall,
    /// Assembly code that is the outermost of its stack, without saved registers of its caller.
    Outermost,
}

/// The `functions`, addresses and names, within `range`, by their offsets from its start, and their roles.
pub fn roles<'s>(
    functions: impl Iterator<Item = (u64, &'s str)>,
    range: Range<u64>,
) -> Vec<(u32, Role)> {
    // `ret_from_fork`, where threads begin, is assembly code until Linux 6.5, then C code that assembly code calls.
    let (mut fork, mut is_fork_in_c) = (None, false);
    let mut roles: Vec<(u32, Role)> = functions
        .filter(|(address, _)| range.contains(address))
        .filter_map(|(address, name)| {
            let offset = u32::try_from(address - range.start).ok()?;
            is_fork_in_c |= name.starts_with(FORK_IN_ASSEMBLY);
            if name == "ret_from_fork" {
                fork = Some(offset);
            }
            Some((offset, role(name)))
        })
        .collect();
    let outermost = fork.filter(|_| !is_fork_in_c);
    roles.extend(outermost.map(|offset| (offset, Role::Outermost)));
    // Of several names of a function, the one that says most about it counts.
    roles.sort_unstable();
    roles.dedup_by(|later, earlier| {
        let is_same = later.0 == earlier.0;
        if is_same {
            earlier.1 = earlier.1.max(later.1);
        }
        is_same
    });
    roles
}

/// The role of the function `name` (`arch/x86/entry/entry_64.S`, `arch/x86/lib/retpoline.S`,
/// `arch/x86/kernel/head_64.S`).
fn role(name: &str) -> Role {
    match name {
        _ if NO_RETURN.contains(&name) => Role::NoReturn,
        _ if name.contains("return_thunk") => Role::ReturnThunk,
        _ if name.contains("indirect_thunk") => Role::JumpThunk,
        "entry_SYSCALL_64" | "entry_SYSCALL_64_safe_stack" | "entry_SYSCALL_64_after_hwframe" => {
            Role::SystemCall
        }
        // The ways back to user mode: what they call finds no saved registers where others find them.
        "syscall_return_via_sysret"
        | "entry_SYSRETQ_unsafe_stack"
        | "entry_SYSRETQ_end"
        | "swapgs_restore_regs_and_return_to_usermode" => Role::Outermost,
        "entry_SYSENTER_compat"
        | "entry_SYSENTER_compat_after_hwframe"
        | "entry_SYSCALL_compat"
        | "entry_SYSCALL_compat_after_hwframe"
        | "entry_INT80_compat" => Role::Entry,
        "error_entry" | "paranoid_entry" => Role::SavesRegisters,
        "error_return" | "restore_regs_and_return_to_kernel" => Role::RestoresRegisters,
        "native_iret" | "native_irq_return_iret" => Role::Returns,
        "asm_common_interrupt" | "asm_spurious_interrupt" => Role::InterruptWithCode,
        _ if WITH_CODE.contains(&name) => Role::InterruptWithCode,
        _ if name.starts_with("asm_sysvec_") || name.starts_with("asm_exc_") => Role::Interrupt,
        _ if name.starts_with("asm_fred_") => Role::Entry,
        _ if name.starts_with("secondary_startup_64") || name.starts_with(FORK_IN_ASSEMBLY) => {
            Role::Outermost
        }
        _ if name.contains(".cold") => Role::Part,
        _ => Role::Plain,
    }
}
