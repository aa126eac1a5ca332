//! The host's KVM: opens it, and checks its capabilities.

use std::io;

use kvm_ioctls::{Cap, Kvm};

use crate::error::MachineError;
use crate::layout;

/// The only version of the interface (kernel: Documentation/virt/kvm/api.rst, `KVM_GET_API_VERSION`).
const API_VERSION: i32 = 12;

/// The capabilities that the machine needs, with their names in the kernel's documentation.
const REQUIRED: &[(Cap, &str)] = &[
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::Irqchip, "KVM_CAP_IRQCHIP"),
    (Cap::Irqfd, "KVM_CAP_IRQFD"),
    (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
    (Cap::MpState, "KVM_CAP_MP_STATE"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
];

/// Opens `/dev/kvm` and checks its version and capabilities.
///
/// # Errors
/// There is no KVM, this user may not use it, or it lacks a capability.
pub fn open_kvm() -> Result<Kvm, MachineError> {
    let kvm = Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT | libc::ENXIO | libc::ENODEV => MachineError::NoKvm,
        libc::EACCES | libc::EPERM => MachineError::KvmPermission,
        errno => MachineError::OpenKvm(io::Error::from_raw_os_error(errno)),
    })?;
    let version = kvm.get_api_version();
    if version != API_VERSION {
        return Err(MachineError::KvmVersion(version));
    }
    let missing = REQUIRED
        .iter()
        .find(|(capability, _)| !kvm.check_extension(*capability));
    match missing {
        Some((_, name)) => Err(MachineError::MissingCapability(name)),
        None => Ok(kvm),
    }
}

/// Checks the number of vCPUs, and returns it in the type of their APIC ids.
///
/// # Errors
/// The number isn't between 1 and the maximum of kvmprof and of the host's KVM.
pub(super) fn check_cpus(kvm: &Kvm, asked: u16) -> Result<u8, MachineError> {
    let host = u16::try_from(kvm.get_max_vcpus()).unwrap_or(u16::MAX);
    let most = host.min(layout::CPUS_MAX);
    match u8::try_from(asked) {
        Ok(cpus) if asked >= 1 && asked <= most => Ok(cpus),
        _ => Err(MachineError::CpuCount { asked, most }),
    }
}

/// Whether this host's processor runs guests in hardware. A KVM on a host whose processor doesn't interprets guest kernels.
#[must_use]
pub fn has_hardware_virtualization() -> bool {
    // If the file can't be read, a message about the processor could be wrong.
    std::fs::read_to_string("/proc/cpuinfo").map_or(true, |text| mentions_virtualization(&text))
}

fn mentions_virtualization(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .flat_map(str::split_whitespace)
        .any(|flag| matches!(flag, "vmx" | "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_vendors_virtualization_is_recognised() {
        for (text, expected) in [
            ("flags\t\t: fpu svm sse\n", true),
            ("flags\t\t: fpu vmx\n", true),
            ("flags\t\t: fpu svme\n", false),
            ("model name\t: svm\n", false),
        ] {
            assert_eq!(mentions_virtualization(text), expected, "{text}");
        }
    }
}
