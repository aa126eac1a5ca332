//! Reads a stopped vCPU's registers.

use kvm_ioctls::{SyncReg, VcpuFd};
use kvmprof_recording::IPL_MASKED;

use kvmprof_introspection::{Registers, select_registers};

const RFLAGS_INTERRUPT_ENABLE: u64 = 1 << 9;

/// The source of the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterSource {
    /// The shared run page (KVM_CAP_SYNC_REGS): no system call.
    RunPage,
    /// KVM_GET_REGS and KVM_GET_SREGS.
    Ioctls,
}

impl RegisterSource {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::RunPage => "run page",
            Self::Ioctls => "ioctls",
        }
    }

    /// Makes KVM store the registers at each exit to user space, or not.
    pub fn enable(self, vcpu: &mut VcpuFd, on: bool) {
        if self == Self::Ioctls {
            return;
        }
        for register_set in [SyncReg::Register, SyncReg::SystemRegister] {
            if on {
                vcpu.set_sync_valid_reg(register_set);
            } else {
                vcpu.clear_sync_valid_reg(register_set);
            }
        }
    }

    /// The registers as of the last return of KVM_RUN. After an exit that the guest has caused, its instruction may be
    /// unfinished: the program counter is at the instruction or behind it, and the value that it reads hasn't arrived. `None`
    /// if KVM refuses the registers.
    pub fn read(self, vcpu: &mut VcpuFd) -> Option<Registers> {
        match self {
            Self::RunPage => {
                let page = vcpu.sync_regs_mut();
                Some(select_registers(&page.regs, &page.sregs))
            }
            Self::Ioctls => read_by_ioctls(vcpu),
        }
    }
}

/// The registers by KVM_GET_REGS and KVM_GET_SREGS. After an I/O exit, the instruction hasn't changed some of them yet.
pub fn read_by_ioctls(vcpu: &VcpuFd) -> Option<Registers> {
    Some(select_registers(
        &vcpu.get_regs().ok()?,
        &vcpu.get_sregs().ok()?,
    ))
}

/// The address of the page tables that `cr3` selects, without the PCID and cache control in its low 12 bits (SDM
/// volume 3, section 4.5).
pub fn page_table_root(cr3: u64) -> u64 {
    cr3 & 0x000f_ffff_ffff_f000
}

/// The interrupt priority level: 15 with interrupts off, or else the task priority class in CR8.
pub fn interrupt_priority_level(registers: &Registers) -> u8 {
    if registers.rflags & RFLAGS_INTERRUPT_ENABLE == 0 {
        return IPL_MASKED;
    }
    u8::try_from(registers.cr8 & 0xf).unwrap_or(IPL_MASKED)
}

#[cfg(test)]
mod tests {
    use kvm_bindings::{kvm_regs, kvm_sregs};

    use super::*;

    const RFLAGS_VIRTUAL_8086: u64 = 1 << 17;
    const CR0_PROTECTION_ENABLE: u64 = 1;

    fn protected_mode() -> (kvm_regs, kvm_sregs) {
        let mut sregs = kvm_sregs {
            cr0: CR0_PROTECTION_ENABLE,
            ..kvm_sregs::default()
        };
        sregs.cs.l = 1;
        (kvm_regs::default(), sregs)
    }

    #[test]
    fn privilege_level_is_that_of_the_stack_segment() {
        let (mut regs, mut sregs) = protected_mode();
        sregs.ss.dpl = 3;
        assert_eq!(select_registers(&regs, &sregs).cpl, 3);
        sregs.cr0 = 0;
        assert_eq!(select_registers(&regs, &sregs).cpl, 0);
        sregs.cr0 = CR0_PROTECTION_ENABLE;
        sregs.ss.dpl = 0;
        regs.rflags = RFLAGS_VIRTUAL_8086;
        assert_eq!(select_registers(&regs, &sregs).cpl, 3);
    }

    #[test]
    fn program_counter_is_linear() {
        let (mut regs, mut sregs) = protected_mode();
        regs.rip = 0xfff0;
        sregs.cs.base = 0xffff_0000;
        assert_eq!(select_registers(&regs, &sregs).rip, 0xfff0);
        sregs.cs.l = 0;
        assert_eq!(select_registers(&regs, &sregs).rip, 0xffff_fff0);
    }

    #[test]
    fn priority_level_is_highest_with_interrupts_off() {
        let (mut regs, mut sregs) = protected_mode();
        sregs.cr8 = 9;
        for (rflags, level) in [(0, 15), (RFLAGS_INTERRUPT_ENABLE, 9)] {
            regs.rflags = rflags;
            let registers = select_registers(&regs, &sregs);
            assert_eq!(interrupt_priority_level(&registers), level);
        }
    }
}
