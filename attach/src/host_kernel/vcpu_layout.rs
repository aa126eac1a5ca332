//! Offsets, in structures of the host's kernel, of the members that a sample needs, in bytes from the start of each structure.

use std::fs;

use kvmprof_introspection::{Btf, Types};

use super::{HostKernelError, svm_types};

/// The index of RIP in `kvm_vcpu_arch.regs` (`VCPU_REGS_RIP`, `arch/x86/include/asm/kvm_host.h`).
pub const RIP: u64 = 16;

/// Offsets in `struct kvm_vcpu`.
#[derive(Clone, Copy, Debug)]
pub struct VcpuLayout {
    /// `kvm_vcpu.kvm`.
    pub kvm: u64,
    /// `kvm_vcpu.arch.regs`.
    pub registers: u64,
    /// `kvm_vcpu.arch.regs_avail`: which of these registers are valid.
    pub available: u64,
    /// `kvm_vcpu.arch.cr3` and `cr4`.
    pub cr3: u64,
    pub cr4: u64,
    /// `kvm_vcpu.arch.mp_state`.
    pub mp_state: u64,
    /// The members that show whether the vCPU runs a nested guest; `None` if the kernel has none.
    pub nested: Option<Nested>,
    /// The location of the other registers.
    pub state: State,
}

/// `kvm_vcpu.arch.walk_mmu` and `nested_mmu`. The first is a pointer. It points to the second while the vCPU runs a nested guest with nested paging
/// (`nested_ept_init_mmu_context`, `arch/x86/kvm/vmx/nested.c`; `nested_svm_init_mmu_context`, `arch/x86/kvm/svm/nested.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nested {
    pub walk_mmu: u64,
    pub nested_mmu: u64,
}

/// The location of the registers that KVM keeps in a structure of its own for each kind of processor. `struct kvm_vcpu` is the first member
/// of that structure; offsets are in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Without VT-x and SVM: `vcpu_pvm.cpl`, an `int`, and `l` and `base` of `vcpu_pvm.seg[VCPU_SREG_CS]`. CR3 is current.
    Software { cpl: u64, code: u64, base: u64 },
    /// SVM: `vcpu_svm.vmcb`, a pointer to what the processor has written.
    Svm { vmcb: u64 },
    /// VT-x: the processor keeps them, and memory has no copy.
    Unknown,
}

/// Offsets in a VMCB, in bytes (AMD APM volume 2, appendix B).
pub mod vmcb {
    /// Bit 0: nested paging.
    pub const NESTED_CONTROL: u64 = 0x90;
    const SAVED: i32 = 0x400;
    /// The upper byte of CS's attributes.
    pub const CODE_ATTRIBUTES: i32 = SAVED + 0x13;
    /// CS's base.
    pub const CODE_BASE: i32 = SAVED + 0x18;
    pub const CPL: i32 = SAVED + 0xcb;
    pub const CR3: i32 = SAVED + 0x150;
}

/// The number of CS in `vcpu_pvm.seg` (`VCPU_SREG_CS`).
const CS: u64 = 1;
/// The bit of a code segment's 64-bit code, in the upper byte of its attributes in a VMCB, and in `kvm_segment.l`.
const LONG_VMCB: u8 = 1 << 1;
const LONG_SEGMENT: u8 = 1;

impl State {
    /// The location of these registers on this host, if `types` are the types of its kernel.
    fn of_host(types: &Types<'_>) -> Option<Self> {
        let processor = processor(&fs::read_to_string("/proc/cpuinfo").ok()?)?;
        if processor != Processor::Svm {
            return Self::find(types, processor);
        }
        let types = svm_types().ok()?;
        Self::find(&Types::Btf(Btf::parse(&types).ok()?), processor)
    }

    fn find(types: &Types<'_>, processor: Processor) -> Option<Self> {
        match processor {
            Processor::Software => {
                let segment = types.structures("kvm_segment");
                let code =
                    types.offset_of("vcpu_pvm", "seg")? + CS * types.size_of("kvm_segment").ok()?;
                Some(Self::Software {
                    cpl: types.offset_of("vcpu_pvm", "cpl")?,
                    code: code + segment.offset_of("l")?,
                    base: code + segment.offset_of("base")?,
                })
            }
            Processor::Svm => Some(Self::Svm {
                vmcb: types.offset_of("vcpu_svm", "vmcb")?,
            }),
            Processor::Vmx => None,
        }
    }

    /// The bit of 64-bit code in a record's [`crate::sampling::record::CODE`].
    pub fn long_mask(self) -> u8 {
        match self {
            Self::Svm { .. } => LONG_VMCB,
            Self::Software { .. } => LONG_SEGMENT,
            Self::Unknown => 0,
        }
    }
}

impl VcpuLayout {
    /// Finds the offsets in the kernel's BTF.
    pub fn find(types: &Types<'_>) -> Result<Self, HostKernelError> {
        let arch = types.need("kvm_vcpu", "arch")?;
        let within = types.structures("kvm_vcpu_arch");
        let in_arch = |member| within.need(member).map(|offset| arch + offset);
        Ok(Self {
            kvm: types.need("kvm_vcpu", "kvm")?,
            registers: in_arch("regs")?,
            available: in_arch("regs_avail")?,
            cr3: in_arch("cr3")?,
            cr4: in_arch("cr4")?,
            mp_state: in_arch("mp_state")?,
            nested: match (in_arch("walk_mmu"), in_arch("nested_mmu")) {
                (Ok(walk_mmu), Ok(nested_mmu)) => Some(Nested {
                    walk_mmu,
                    nested_mmu,
                }),
                _ => None,
            },
            state: State::of_host(types).unwrap_or(State::Unknown),
        })
    }

    /// `kvm_vcpu.arch.regs[VCPU_REGS_RIP]`.
    pub fn rip(&self) -> u64 {
        self.registers + RIP * 8
    }
}

/// The kind of a processor's hardware virtualization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processor {
    Software,
    Svm,
    Vmx,
}

/// The host's processor, by /proc/cpuinfo.
fn processor(info: &str) -> Option<Processor> {
    let flags = info
        .lines()
        .find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    let (_, flags) = flags?;
    let has = |name| flags.split_ascii_whitespace().any(|flag| flag == name);
    Some(match (has("vmx"), has("svm")) {
        (true, _) => Processor::Vmx,
        (_, true) => Processor::Svm,
        _ => Processor::Software,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtualization_is_known_by_the_processors_flags() {
        let software = "vendor: x\nflags\t\t: fpu vme svm_lock\n";
        assert_eq!(processor(software), Some(Processor::Software));
        assert_eq!(processor("flags\t\t: fpu svm vme\n"), Some(Processor::Svm));
        assert_eq!(processor("flags\t\t: fpu vmx\n"), Some(Processor::Vmx));
        assert_eq!(processor(""), None);
    }
}
