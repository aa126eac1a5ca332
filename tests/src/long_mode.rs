//! Registers for vCPUs of guests that run without having booted.

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
use kvm_ioctls::VcpuFd;
use kvmprof_introspection::Registers;

/// Bits of the control registers that are set for a guest in long mode.
const CR0: u64 = 0x8005_0033;
const PAE: u64 = 1 << 5;
const LONG_MODE: u64 = 0x500;

/// Registers for a vCPU in the kernel, in long mode, with these `registers`.
///
/// # Panics
/// If KVM doesn't return the vCPU's own registers.
pub fn registers_in_long_mode(vcpu: &VcpuFd, registers: &Registers) -> (kvm_regs, kvm_sregs) {
    let mut special = vcpu.get_sregs().unwrap();
    special.cr0 = CR0;
    special.cr3 = registers.cr3 & !0xfff;
    special.cr4 = PAE;
    special.efer = LONG_MODE;
    special.idt.base = registers.idt_base;
    special.idt.limit = 0xfff;
    let segment = |selector, kind, long: bool| kvm_segment {
        selector,
        type_: kind,
        present: 1,
        s: 1,
        l: u8::from(long),
        db: u8::from(!long),
        g: 1,
        limit: u32::MAX,
        ..kvm_segment::default()
    };
    special.cs = segment(0x10, 11, true);
    let data = segment(0x18, 3, false);
    (special.ds, special.es, special.fs) = (data, data, data);
    (special.gs, special.ss) = (data, data);
    special.gs.base = registers.gs_base;
    let general = kvm_regs {
        rip: registers.rip,
        rsp: registers.rip,
        rflags: 2,
        ..kvm_regs::default()
    };
    (general, special)
}
