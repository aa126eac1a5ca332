//! Names of what exits are accesses of, and of processes.

use std::collections::BTreeMap;

use kvmprof_abi::text::task_name;
use kvmprof_recording::exits::{AccessKind, Counts, ExitInterval, OfAccess};

/// Model-specific registers that guests often use (Intel SDM volume 4, AMD APM volume 2 appendix A; those of KVM and of Hyper-V: Linux
/// `Documentation/virt/kvm/x86/msr.rst`, `include/hyperv/hvgdk_mini.h`).
const REGISTERS: [(u64, &str); 34] = [
    (0x10, "TSC"),
    (0x1b, "APIC_BASE"),
    (0x3b, "TSC_ADJUST"),
    (0x48, "SPEC_CTRL"),
    (0x49, "PRED_CMD"),
    (0x8b, "UCODE_REV"),
    (0x122, "TSX_CTRL"),
    (0x186, "PERFEVTSEL0"),
    (0x187, "PERFEVTSEL1"),
    (0x1a0, "MISC_ENABLE"),
    (0x277, "PAT"),
    (0x38d, "FIXED_CTR_CTRL"),
    (0x38f, "PERF_GLOBAL_CTRL"),
    (0x390, "PERF_GLOBAL_OVF_CTRL"),
    (0x6e0, "TSC_DEADLINE"),
    (0x80b, "X2APIC_EOI"),
    (0x80f, "X2APIC_SVR"),
    (0x830, "X2APIC_ICR"),
    (0x832, "X2APIC_LVT_TIMER"),
    (0x838, "X2APIC_TIMER_INIT"),
    (0x839, "X2APIC_TIMER_COUNT"),
    (0x83f, "X2APIC_SELF_IPI"),
    (0xda0, "XSS"),
    (0x4000_0020, "HV_TIME_REF_COUNT"),
    (0x4000_0070, "HV_EOI"),
    (0x4000_0071, "HV_ICR"),
    (0x4000_00b1, "HV_STIMER0_COUNT"),
    (0x4b56_4d00, "KVM_WALL_CLOCK"),
    (0x4b56_4d01, "KVM_SYSTEM_TIME"),
    (0x4b56_4d02, "KVM_ASYNC_PF"),
    (0x4b56_4d03, "KVM_STEAL_TIME"),
    (0x4b56_4d04, "KVM_PV_EOI"),
    (0xc000_0080, "EFER"),
    (0xc000_0103, "TSC_AUX"),
];

/// The names of the guest's processes, by their ids: of each that with which it has left the guest most often.
pub fn processes(counts: &Counts) -> BTreeMap<i32, String> {
    let mut most: BTreeMap<i32, (u64, [u8; 16])> = BTreeMap::new();
    for one in &counts.processes {
        if let Some(process) = one.process {
            let known = most.entry(process).or_default();
            *known = (*known).max((one.exits.count, one.name));
        }
    }
    let names = most.into_iter();
    names
        .map(|(process, (_, name))| (process, task_name(&name).collect()))
        .collect()
}

/// The container of a process, as the guest has named it: empty for one in none; `None` if it isn't known.
pub fn container(interval: &ExitInterval, process: Option<i32>) -> Option<&str> {
    interval.containers.get(&process?).map(String::as_str)
}

/// What an access is called in documents.
pub fn kind(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::PortRead => "port-read",
        AccessKind::PortWrite => "port-write",
        AccessKind::MmioRead => "mmio-read",
        AccessKind::MmioWrite => "mmio-write",
        AccessKind::MsrRead => "msr-read",
        AccessKind::MsrWrite => "msr-write",
        AccessKind::Hypercall => "hypercall",
    }
}

/// The name of a model-specific register, if the access is one of those that have one here.
pub fn register(access: &OfAccess) -> Option<&'static str> {
    let is_register = matches!(access.kind, AccessKind::MsrRead | AccessKind::MsrWrite);
    let place = access.place;
    let known = REGISTERS.iter().find(|(number, _)| *number == place);
    known.filter(|_| is_register).map(|(_, name)| *name)
}

/// An access, in words.
pub fn access(access: &OfAccess) -> String {
    let place = access.place;
    match access.kind {
        AccessKind::PortRead => format!("read port {place:#x}"),
        AccessKind::PortWrite => format!("write port {place:#x}"),
        AccessKind::MmioRead => format!("read {place:#x}"),
        AccessKind::MmioWrite => format!("write {place:#x}"),
        AccessKind::Hypercall => format!("hypercall {place}"),
        AccessKind::MsrRead | AccessKind::MsrWrite => {
            let verb = match access.kind {
                AccessKind::MsrRead => "read",
                _ => "write",
            };
            let name = register(access);
            let name = name.map_or_else(|| format!("{place:#x}"), str::to_owned);
            format!("{verb} MSR {name}")
        }
    }
}
