//! Where the host's kernel has what a sample needs, in bytes from the start of each structure.

use std::fs;

use kvmprof_introspection::Btf;

use crate::HostKernelError;

/// The index of RIP in `kvm_vcpu_arch.regs` (`VCPU_REGS_RIP`, `arch/x86/include/asm/kvm_host.h`).
pub const RIP: u64 = 16;

/// `struct kvm_vcpu`, and the way to it.
#[derive(Clone, Copy, Debug)]
pub struct VcpuLayout {
    /// `task_struct.preempt_notifiers`: the first is the vCPU that the thread has loaded.
    pub notifiers: u64,
    /// `kvm_vcpu.preempt_notifier.link`.
    pub link: u64,
    /// `kvm_vcpu.kvm`.
    pub kvm: u64,
    /// `kvm_vcpu.arch.regs[VCPU_REGS_RIP]`.
    pub rip: u64,
    /// `kvm_vcpu.arch.regs_avail`: which of them are valid.
    pub available: u64,
    /// `kvm_vcpu.arch.cr3`.
    pub cr3: u64,
    /// `kvm_vcpu.arch.mp_state`.
    pub mp_state: u64,
    /// The privilege level, an `int`, where it is in memory: `vcpu_pvm.cpl`, whose first member is the vCPU.
    pub cpl: Option<u64>,
}

impl VcpuLayout {
    /// Finds it.
    pub fn find(btf: &Btf<'_>) -> Result<Self, HostKernelError> {
        let offset = |structure, member| {
            btf.offset_of(structure, member)
                .ok_or(HostKernelError::MissingMember { structure, member })
        };
        let arch = offset("kvm_vcpu", "arch")?;
        let in_arch = |member| Ok::<_, HostKernelError>(arch + offset("kvm_vcpu_arch", member)?);
        let software = is_software_guest(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        Ok(Self {
            notifiers: offset("task_struct", "preempt_notifiers")?,
            link: offset("kvm_vcpu", "preempt_notifier")? + offset("preempt_notifier", "link")?,
            kvm: offset("kvm_vcpu", "kvm")?,
            rip: in_arch("regs")? + RIP * 8,
            available: in_arch("regs_avail")?,
            cr3: in_arch("cr3")?,
            mp_state: in_arch("mp_state")?,
            cpl: btf.offset_of("vcpu_pvm", "cpl").filter(|_| software),
        })
    }
}

/// Whether the processor has neither VT-x nor SVM, by /proc/cpuinfo.
fn is_software_guest(info: &str) -> bool {
    let flags = info
        .lines()
        .find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_some_and(|(_, flags)| {
        flags
            .split_ascii_whitespace()
            .all(|flag| !["vmx", "svm"].contains(&flag))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processors_flags_tell_what_runs_guests() {
        assert!(is_software_guest(
            "vendor: x\nflags\t\t: fpu vme svm_lock\n"
        ));
        assert!(!is_software_guest("flags\t\t: fpu svm vme\n"));
        assert!(!is_software_guest("flags\t\t: fpu vmx\n"));
        assert!(!is_software_guest(""));
    }
}
