//! Describes guests that have failed and can't continue, for users.

use std::fmt;

use kvm_bindings::{
    KVM_EXIT_FAIL_ENTRY, KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_SHUTDOWN,
    KVM_INTERNAL_ERROR_DELIVERY_EV, KVM_INTERNAL_ERROR_EMULATION,
    KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES, KVM_INTERNAL_ERROR_SIMUL_EX,
    KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON, kvm_regs, kvm_sregs,
};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use super::host::has_hardware_virtualization;
use crate::memory::GuestMemory;

/// Maximum length of an instruction in bytes.
const INSTRUCTION_MAX: usize = 15;
const PAGE_SIZE: u64 = 4096;

/// The reason why a vCPU can't continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// `KVM_EXIT_INTERNAL_ERROR`: KVM itself can't continue.
    InternalError {
        /// `KVM_INTERNAL_ERROR_*`.
        suberror: u32,
    },
    /// `KVM_EXIT_FAIL_ENTRY`: the processor refused the guest's state.
    FailEntry {
        /// The processor's reason.
        reason: u64,
    },
    /// `KVM_EXIT_SHUTDOWN`: a third fault, during the delivery of a double fault.
    TripleFault,
    /// An exit that kvmprof doesn't handle.
    UnknownExit {
        /// `KVM_EXIT_*`.
        reason: u32,
    },
}

/// The description of a failed vCPU. Its `Display` is for the user, over several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFailure {
    /// Index of the vCPU.
    pub vcpu: usize,
    /// The reason why it can't continue.
    pub cause: FailureCause,
    /// The place where it stopped, if KVM still has its registers.
    pub location: Option<FailureLocation>,
    /// Whether the host runs guests in hardware.
    pub hardware_virtualization: bool,
}

/// The place where a vCPU stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureLocation {
    /// Program counter, a guest-virtual address.
    pub rip: u64,
    /// Privilege level: 0 kernel, 3 user.
    pub cpl: u8,
    /// CR3, which identifies the address space.
    pub cr3: u64,
    /// The bytes at `rip`, as far as they could be read.
    pub instruction: Vec<u8>,
}

impl GuestFailure {
    /// Describes a vCPU that has just returned from `KVM_RUN` with an exit of this `cause`.
    #[must_use]
    pub fn capture(
        vcpu: &mut VcpuFd,
        index: usize,
        memory: &GuestMemory,
        cause: FailureCause,
    ) -> Self {
        let instruction = emulation_bytes(vcpu);
        let location = match (vcpu.get_regs(), vcpu.get_sregs()) {
            // SVM loses the registers in a shutdown, so that KVM resets the vCPU.
            (Ok(regs), Ok(sregs)) if !is_reset(&regs, &sregs) => {
                Some(location(vcpu, memory, &regs, &sregs, instruction))
            }
            _ => None,
        };
        Self {
            vcpu: index,
            cause,
            location,
            hardware_virtualization: has_hardware_virtualization(),
        }
    }
}

impl FailureCause {
    /// Reads the cause from the run page of a vCPU that has just returned from `KVM_RUN`.
    #[must_use]
    pub fn of_last_exit(vcpu: &mut VcpuFd) -> Self {
        let run = vcpu.get_kvm_run();
        match run.exit_reason {
            KVM_EXIT_INTERNAL_ERROR => {
                // SAFETY: All members of the union are plain numbers, so that any bytes are valid;
                // with this exit reason KVM fills in this one.
                let suberror = unsafe { run.__bindgen_anon_1.internal.suberror };
                Self::InternalError { suberror }
            }
            KVM_EXIT_FAIL_ENTRY => {
                // SAFETY: As above.
                let entry = unsafe { run.__bindgen_anon_1.fail_entry };
                Self::FailEntry {
                    reason: entry.hardware_entry_failure_reason,
                }
            }
            KVM_EXIT_SHUTDOWN => Self::TripleFault,
            reason => Self::UnknownExit { reason },
        }
    }
}

/// Whether a vCPU is in the state after a reset.
fn is_reset(regs: &kvm_regs, sregs: &kvm_sregs) -> bool {
    const RESET_BASE: u64 = 0xffff_0000;
    const RESET_RIP: u64 = 0xfff0;
    regs.rip == RESET_RIP && sregs.cs.base == RESET_BASE
}

/// The bytes of the instruction that KVM failed to emulate, if KVM has put them into the run page.
fn emulation_bytes(vcpu: &mut VcpuFd) -> Option<Vec<u8>> {
    /// Number of words from `flags` on that have flags, size and bytes.
    const WORDS_WITH_BYTES: u32 = 3;

    let run = vcpu.get_kvm_run();
    if run.exit_reason != KVM_EXIT_INTERNAL_ERROR {
        return None;
    }
    // SAFETY: All members of the union are plain numbers, so that any bytes are valid; what they
    // mean is checked below.
    let failure = unsafe { run.__bindgen_anon_1.emulation_failure };
    if failure.suberror != KVM_INTERNAL_ERROR_EMULATION
        || failure.ndata < WORDS_WITH_BYTES
        || failure.flags & u64::from(KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES) == 0
    {
        return None;
    }
    // SAFETY: As above, plain numbers; the flag says that they are filled in.
    let instruction = unsafe { failure.__bindgen_anon_1.__bindgen_anon_1 };
    let size = usize::from(instruction.insn_size).min(INSTRUCTION_MAX);
    Some(instruction.insn_bytes[..size].to_vec())
}

fn location(
    vcpu: &VcpuFd,
    memory: &GuestMemory,
    regs: &kvm_regs,
    sregs: &kvm_sregs,
    instruction: Option<Vec<u8>>,
) -> FailureLocation {
    let address = sregs.cs.base.wrapping_add(regs.rip);
    FailureLocation {
        rip: regs.rip,
        cpl: sregs.ss.dpl,
        cr3: sregs.cr3,
        instruction: instruction.unwrap_or_else(|| read_virtual(vcpu, memory, address)),
    }
}

/// Reads the bytes of one instruction at most from a guest-virtual address, page by page.
fn read_virtual(vcpu: &VcpuFd, memory: &GuestMemory, address: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < INSTRUCTION_MAX {
        let next = address.wrapping_add(bytes.len() as u64);
        let in_page = usize::try_from(PAGE_SIZE - next % PAGE_SIZE).unwrap_or(INSTRUCTION_MAX);
        let mut part = vec![0; in_page.min(INSTRUCTION_MAX - bytes.len())];
        // KVM walks the guest's page tables, whatever they look like.
        match vcpu.translate_gva(next) {
            Ok(translation) if translation.valid != 0 => {
                let physical = GuestAddress(translation.physical_address);
                if memory.read_slice(&mut part, physical).is_err() {
                    break;
                }
            }
            _ => break,
        }
        bytes.extend(part);
    }
    bytes
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::InternalError { suberror } => {
                let what = match suberror {
                    KVM_INTERNAL_ERROR_EMULATION => "KVM could not emulate an instruction",
                    KVM_INTERNAL_ERROR_SIMUL_EX => "KVM met too many exceptions at once",
                    KVM_INTERNAL_ERROR_DELIVERY_EV => "KVM could not deliver an event to the guest",
                    KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON => {
                        "The processor left the guest for a reason unknown to KVM"
                    }
                    _ => "KVM reported an internal error",
                };
                write!(f, "{what} (suberror {suberror})")
            }
            Self::FailEntry { reason } => {
                write!(
                    f,
                    "The processor refused to enter the guest (reason {reason:#x})"
                )
            }
            Self::TripleFault => write!(f, "The guest crashed: triple fault"),
            Self::UnknownExit { reason } => write!(f, "Unknown KVM exit (reason {reason})"),
        }
    }
}

impl fmt::Display for GuestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on vCPU {}", self.cause, self.vcpu)?;
        match &self.location {
            Some(location) => write!(f, "\n  {location}")?,
            None => write!(f, "\n  KVM no longer knows where: its registers are lost")?,
        }
        let not_emulated = FailureCause::InternalError {
            suberror: KVM_INTERNAL_ERROR_EMULATION,
        };
        if self.cause == not_emulated && !self.hardware_virtualization {
            write!(
                f,
                "\n  This host has neither VT-x nor SVM: its KVM interprets guest kernel code and lacks this\n  instruction. Use a host with VT-x or SVM, or the lab: cargo lab linux"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for FailureLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rip {:#x}, CPL {}, cr3 {:#x}, instruction bytes",
            self.rip, self.cpl, self.cr3
        )?;
        if self.instruction.is_empty() {
            write!(f, " unreadable")?;
        }
        for byte in &self.instruction {
            write!(f, " {byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emulation_failure(hardware_virtualization: bool) -> GuestFailure {
        GuestFailure {
            vcpu: 1,
            cause: FailureCause::InternalError { suberror: 1 },
            location: Some(FailureLocation {
                rip: 0xffff_ffff_8100_0000,
                cpl: 0,
                cr3: 0x1000,
                instruction: vec![0x0f, 0x01, 0xca],
            }),
            hardware_virtualization,
        }
    }

    #[test]
    fn an_emulation_failure_has_address_instruction_and_reason() {
        let text = emulation_failure(false).to_string();
        for words in [
            "on vCPU 1",
            "rip 0xffffffff81000000, CPL 0",
            "instruction bytes 0f 01 ca",
            "cargo lab linux",
        ] {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn where_it_would_not_help_there_is_no_advice() {
        assert!(!emulation_failure(true).to_string().contains("cargo lab"));
        let fault = GuestFailure {
            cause: FailureCause::TripleFault,
            ..emulation_failure(false)
        };
        let text = fault.to_string();
        let crash = "The guest crashed: triple fault";
        assert!(
            text.starts_with(crash) && !text.contains("cargo lab"),
            "{text}"
        );
    }

    #[test]
    fn lost_registers_have_a_message() {
        let failure = GuestFailure {
            cause: FailureCause::TripleFault,
            location: None,
            ..emulation_failure(true)
        };
        assert!(failure.to_string().contains("registers are lost"));
        let mut sregs = kvm_sregs::default();
        sregs.cs.base = 0xffff_0000;
        let regs = kvm_regs {
            rip: 0xfff0,
            ..Default::default()
        };
        assert!(is_reset(&regs, &sregs));
        assert!(!is_reset(&regs, &kvm_sregs::default()));
    }
}
