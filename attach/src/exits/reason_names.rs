//! The names of reasons, which the host's kernel has.

use std::collections::BTreeMap;

use crate::tracepoint::{ISA_SVM, ISA_VMX, Tracepoint};

/// What introduces the names of reasons in the description of `kvm_exit`, with VT-x and with SVM (`kvm_print_exit_reason`, `arch/x86/kvm/trace.h`).
const VMX_NAMES: &str = "__print_symbolic(REC->exit_reason & 0xffff,";
const SVM_NAMES: &str = "__print_symbolic(REC->exit_reason,";
/// The bits of VT-x's reasons that are flags. The others number them.
const VMX_FLAGS: u32 = 0xffff_0000;

/// The names of reasons.
#[derive(Clone, Debug, Default)]
pub struct ReasonNames {
    /// The bits of reasons that don't number them.
    flags: u32,
    names: BTreeMap<u32, String>,
}

impl ReasonNames {
    /// Those that the description of `kvm_exit` has for the processor's instruction set `isa`.
    pub(super) fn of(exit: &Tracepoint, isa: u64) -> Self {
        let is_vmx = isa == ISA_VMX;
        Self {
            flags: if is_vmx { VMX_FLAGS } else { 0 },
            names: exit.names(if is_vmx { VMX_NAMES } else { SVM_NAMES }),
        }
    }

    /// The name of a reason; the number in hexadecimal if it has none.
    pub fn name(&self, reason: u32) -> String {
        let known = self.names.get(&(reason & !self.flags));
        let name = known
            .cloned()
            .unwrap_or_else(|| format!("{:#x}", reason & !self.flags));
        match reason & self.flags {
            0 => name,
            // VT-x: the entry has failed.
            _ => format!("{name} (failed entry)"),
        }
    }

    /// Whether the vCPU waits for an interrupt in exits of this reason.
    pub fn is_halt(&self, reason: u32) -> bool {
        let name = self.names.get(&(reason & !self.flags));
        name.is_some_and(|name| HALTS.contains(&name.to_ascii_lowercase().as_str()))
    }
}

/// The names of reasons with both instruction sets.
#[derive(Clone, Debug, Default)]
pub struct ExitNames {
    vmx: ReasonNames,
    svm: ReasonNames,
}

impl ExitNames {
    /// Those that the description of `kvm_exit` has.
    pub fn of(exit: &Tracepoint) -> Self {
        Self {
            vmx: ReasonNames::of(exit, ISA_VMX),
            svm: ReasonNames::of(exit, ISA_SVM),
        }
    }

    /// The name of a reason, as [`ReasonNames::name`] has it.
    pub fn name(&self, reason: u32, isa: u32) -> String {
        match u64::from(isa) {
            ISA_VMX => self.vmx.name(reason),
            _ => self.svm.name(reason),
        }
    }
}

/// The names of the reasons for which a vCPU waits.
const HALTS: [&str; 4] = ["hlt", "idle-halt", "mwait_instruction", "mwait"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_names() {
        let names = |flags| ReasonNames {
            flags,
            names: [(12, "HLT".to_owned()), (0x400, "npf".to_owned())].into(),
        };
        let vmx = names(VMX_FLAGS);
        assert_eq!(vmx.name(12), "HLT");
        assert_eq!(vmx.name(1 << 31 | 12), "HLT (failed entry)");
        assert_eq!(vmx.name(99), "0x63");
        assert!(vmx.is_halt(12) && !vmx.is_halt(0x400));
        assert_eq!(names(0).name(0x400), "npf");
        assert_eq!(names(0).name(u32::MAX), "0xffffffff");
    }
}
