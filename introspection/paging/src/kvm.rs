//! A vCPU's registers as KVM gives them.

use kvm_bindings::{kvm_regs, kvm_sregs};

use crate::Registers;

const RFLAGS_VIRTUAL_8086: u64 = 1 << 17;
const CR0_PROTECTION_ENABLE: u64 = 1;

/// The registers that introspection needs, of what KVM_GET_REGS and KVM_GET_SREGS give, or the shared run page (`struct kvm_sync_regs`).
pub fn select_registers(regs: &kvm_regs, sregs: &kvm_sregs) -> Registers {
    let real_mode = sregs.cr0 & CR0_PROTECTION_ENABLE == 0;
    Registers {
        // A linear address: only 64-bit code ignores the segment's base.
        rip: if sregs.cs.l != 0 {
            regs.rip
        } else {
            sregs.cs.base.wrapping_add(regs.rip)
        },
        rsp: regs.rsp,
        rbp: regs.rbp,
        rax: regs.rax,
        rdx: regs.rdx,
        rdi: regs.rdi,
        r10: regs.r10,
        r13: regs.r13,
        rbx: regs.rbx,
        rcx: regs.rcx,
        rsi: regs.rsi,
        r8: regs.r8,
        r9: regs.r9,
        r11: regs.r11,
        r12: regs.r12,
        r14: regs.r14,
        r15: regs.r15,
        is_64_bit_code: sregs.cs.l != 0,
        rflags: regs.rflags,
        cr0: sregs.cr0,
        cr3: sregs.cr3,
        cr4: sregs.cr4,
        cr8: sregs.cr8,
        efer: sregs.efer,
        fs_base: sregs.fs.base,
        gs_base: sregs.gs.base,
        idt_base: sregs.idt.base,
        cpl: if real_mode {
            0
        } else if regs.rflags & RFLAGS_VIRTUAL_8086 != 0 {
            3
        } else {
            // SS.DPL is the CPL (SDM volume 3, 26.3.1.5 and 5.5).
            sregs.ss.dpl & 3
        },
    }
}
