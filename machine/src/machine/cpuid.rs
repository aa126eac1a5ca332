//! A vCPU's CPUID (Intel SDM volume 2, "CPUID"; AMD APM volume 3, appendix E), made from the features that
//! KVM supports.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};
use kvm_ioctls::{Cap, Kvm};

use crate::error::{MachineError, kvm};

const LEAF_FEATURES: u32 = 0x1;
const LEAF_CACHES: u32 = 0x4;
const LEAF_MONITOR: u32 = 0x5;
const LEAF_EXTENDED_FEATURES: u32 = 0x7;
const LEAF_TOPOLOGY: u32 = 0xb;
const LEAF_SGX: u32 = 0x12;
const LEAF_TOPOLOGY_V2: u32 = 0x1f;
const LEAF_KVM_FEATURES: u32 = 0x4000_0001;
const LEAF_AMD_FEATURES: u32 = 0x8000_0001;
const LEAF_AMD_SIZES: u32 = 0x8000_0008;
const LEAF_SVM: u32 = 0x8000_000a;
const LEAF_AMD_CACHES: u32 = 0x8000_001d;
const LEAF_AMD_TOPOLOGY: u32 = 0x8000_001e;
const LEAF_AMD_ENCRYPTION: u32 = 0x8000_001f;
const LEAF_AMD_TOPOLOGY_V2: u32 = 0x8000_0026;

/// Maximum number of entries that are requested of KVM.
const ENTRIES_MAX: usize = kvm_bindings::KVM_MAX_CPUID_ENTRIES;

/// The CPUID table that all vCPUs of a machine have in common.
pub(super) struct CpuidTemplate {
    entries: Vec<kvm_cpuid_entry2>,
    cpus: u32,
}

/// A thread that reads the table. Where this host is a guest itself, each leaf is an exit to its own hypervisor: together they take longer than the machine's
/// other calls of KVM, which go on meanwhile.
pub(super) struct CpuidReader(JoinHandle<Result<CpuidTemplate, MachineError>>);

impl CpuidReader {
    /// Starts to read the table for a machine with this many vCPUs.
    ///
    /// # Errors
    /// The host has no more threads.
    pub fn start(kvm: &Arc<Kvm>, cpus: u8) -> Result<Self, MachineError> {
        let kvm = Arc::clone(kvm);
        let thread = Builder::new().name("cpuid".into());
        let reader = thread.spawn(move || CpuidTemplate::new(&kvm, u16::from(cpus)));
        reader.map(Self).map_err(MachineError::Thread)
    }

    /// Waits for the table.
    ///
    /// # Errors
    /// KVM refuses to list the features.
    pub fn table(self) -> Result<CpuidTemplate, MachineError> {
        self.0.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl CpuidTemplate {
    /// Reads the features that KVM supports, and removes those that a profiled guest shouldn't have.
    ///
    /// # Errors
    /// KVM refuses to list the features.
    pub fn new(kvm_fd: &Kvm, cpus: u16) -> Result<Self, MachineError> {
        let supported = kvm_fd
            .get_supported_cpuid(ENTRIES_MAX)
            .map_err(kvm("to list CPUID leaves (KVM_GET_SUPPORTED_CPUID)"))?;
        let mut template = Self {
            entries: supported.as_slice().to_vec(),
            cpus: u32::from(cpus),
        };
        let deadline_timer = kvm_fd.check_extension(Cap::TscDeadlineTimer);
        template.remove_unwanted(deadline_timer);
        template.describe_topology();
        Ok(template)
    }

    /// The table of one vCPU, whose APIC id is its index.
    ///
    /// # Errors
    /// The table has more entries than KVM takes.
    pub fn for_vcpu(&self, index: u8) -> Result<CpuId, MachineError> {
        let apic_id = u32::from(index);
        let mut entries = self.entries.clone();
        for entry in &mut entries {
            match entry.function {
                LEAF_FEATURES => entry.ebx = entry.ebx & 0x00ff_ffff | apic_id << 24,
                LEAF_TOPOLOGY | LEAF_TOPOLOGY_V2 => entry.edx = apic_id,
                LEAF_AMD_TOPOLOGY => {
                    entry.eax = apic_id;
                    // One thread for each core, the core's id, and node 0 of one node.
                    entry.ebx = apic_id;
                    entry.ecx = 0;
                }
                _ => {}
            }
        }
        CpuId::from_entries(&entries).map_err(|_| MachineError::Kvm {
            operation: "a CPUID table of this size",
            source: kvm_ioctls::Error::new(libc::E2BIG),
        })
    }

    /// The first entry of a leaf.
    fn leaf(&mut self, function: u32) -> Option<&mut kvm_cpuid_entry2> {
        self.entries
            .iter_mut()
            .find(|entry| entry.function == function)
    }

    fn remove_unwanted(&mut self, deadline_timer: bool) {
        const MONITOR: u32 = 1 << 3;
        const VMX: u32 = 1 << 5;
        const TSC_DEADLINE: u32 = 1 << 24;
        const HYPERVISOR: u32 = 1 << 31;
        const SGX: u32 = 1 << 2;
        const SGX_LAUNCH_CONTROL: u32 = 1 << 30;
        const FRED: u32 = 1 << 17;
        const SVM: u32 = 1 << 2;
        // KVM_FEATURE_HC_MAP_GPA_RANGE and KVM_FEATURE_MIGRATION_CONTROL: for guests that are
        // encrypted or moved.
        const KVM_MOVING: u32 = 1 << 16 | 1 << 17;
        // KVM_FEATURE_PV_TLB_FLUSH: a kernel with it reuses a page that a process has freed without waiting for a stopped vCPU of this
        // process. A store of profil at that moment would go into the page.
        const KVM_TLB_FLUSH: u32 = 1 << 9;

        // VMX and SVM are hidden, because samples of a guest that runs nested guests would have the registers of these. With MONITOR, the
        // guest could idle without being halted.
        if let Some(leaf) = self.leaf(LEAF_FEATURES) {
            leaf.ecx &= !(VMX | MONITOR);
            leaf.ecx |= HYPERVISOR;
            if deadline_timer {
                // KVM leaves this feature out of its list, because it needs the in-kernel APIC.
                leaf.ecx |= TSC_DEADLINE;
            }
        }
        if let Some(leaf) = self.leaf(LEAF_AMD_FEATURES) {
            leaf.ecx &= !SVM;
        }
        if let Some(leaf) = self.leaf(LEAF_KVM_FEATURES) {
            leaf.eax &= !(KVM_MOVING | KVM_TLB_FLUSH);
        }
        for entry in &mut self.entries {
            if entry.function == LEAF_EXTENDED_FEATURES && entry.index == 0 {
                entry.ebx &= !SGX;
                entry.ecx &= !SGX_LAUNCH_CONTROL;
            }
            // With FRED, a kernel has neither LSTAR nor an IDT, by which kvmprof finds its address.
            if entry.function == LEAF_EXTENDED_FEATURES && entry.index == 1 {
                entry.eax &= !FRED;
            }
            if matches!(entry.function, LEAF_MONITOR | LEAF_SVM | LEAF_SGX)
                || entry.function == LEAF_AMD_ENCRYPTION
            {
                (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
            }
        }
    }

    /// Describes one package with `cpus` cores of one thread each, for any host.
    fn describe_topology(&mut self) {
        const HTT: u32 = 1 << 28;
        const CMP_LEGACY: u32 = 1 << 1;

        let cpus = self.cpus;
        let id_bits = cpus.next_power_of_two().trailing_zeros();
        if let Some(leaf) = self.leaf(LEAF_FEATURES) {
            leaf.ebx = leaf.ebx & 0xff00_ffff | (1 << id_bits) << 16;
            set_bits(&mut leaf.edx, HTT, cpus > 1);
        }
        if let Some(leaf) = self.leaf(LEAF_AMD_FEATURES) {
            set_bits(&mut leaf.ecx, CMP_LEGACY, cpus > 1);
        }
        if let Some(leaf) = self.leaf(LEAF_AMD_SIZES) {
            // Number of cores less one, and the APIC id's bits that number them.
            leaf.ecx = leaf.ecx & 0xffff_0f00 | (cpus - 1) | id_bits << 12;
        }
        for entry in &mut self.entries {
            match entry.function {
                LEAF_CACHES if entry.eax & 0x1f != 0 => {
                    let sharing = cache_sharing(entry.eax, cpus);
                    entry.eax = entry.eax & 0x3fff | sharing << 14 | (cpus - 1).min(63) << 26;
                }
                LEAF_AMD_CACHES if entry.eax & 0x1f != 0 => {
                    let sharing = cache_sharing(entry.eax, cpus);
                    entry.eax = entry.eax & 0xfc00_3fff | sharing << 14;
                }
                _ => {}
            }
        }
        self.replace_topology_leaves(id_bits);
    }

    fn replace_topology_leaves(&mut self, id_bits: u32) {
        const LEVEL_THREAD: u32 = 1 << 8;
        const LEVEL_CORE: u32 = 2 << 8;

        let highest = self.leaf(0).map_or(0, |leaf| leaf.eax);
        self.entries.retain(|entry| {
            !matches!(
                entry.function,
                LEAF_TOPOLOGY | LEAF_TOPOLOGY_V2 | LEAF_AMD_TOPOLOGY_V2
            )
        });
        for function in [LEAF_TOPOLOGY, LEAF_TOPOLOGY_V2] {
            if function > highest {
                continue;
            }
            // (bits to shift the APIC id by to get to the next level, processors, level)
            let levels = [
                (0, 1, LEVEL_THREAD),
                (id_bits, self.cpus, LEVEL_CORE),
                (0, 0, 0),
            ];
            for (index, (shift, processors, level)) in (0u32..).zip(levels) {
                self.entries.push(kvm_cpuid_entry2 {
                    function,
                    index,
                    flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
                    eax: shift,
                    ebx: processors,
                    ecx: level | index,
                    ..Default::default()
                });
            }
        }
    }
}

fn set_bits(register: &mut u32, bits: u32, on: bool) {
    if on {
        *register |= bits;
    } else {
        *register &= !bits;
    }
}

/// "Logical processors sharing this cache", less one. All vCPUs share the last level.
fn cache_sharing(eax: u32, cpus: u32) -> u32 {
    let level = eax >> 5 & 0b111;
    if level >= 3 {
        cpus.next_power_of_two() - 1
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32, index: u32, [eax, ebx, ecx, edx]: [u32; 4]) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 {
            function,
            index,
            eax,
            ebx,
            ecx,
            edx,
            ..Default::default()
        }
    }

    /// A processor that has every feature.
    fn template(cpus: u32) -> CpuidTemplate {
        let all = [u32::MAX; 4];
        let mut template = CpuidTemplate {
            entries: vec![
                entry(0, 0, [0x1f, 0, 0, 0]),
                entry(LEAF_FEATURES, 0, all),
                // Level 1 and level 3 caches.
                entry(LEAF_CACHES, 0, [1 | 1 << 5, 0, 0, 0]),
                entry(LEAF_CACHES, 3, [3 | 3 << 5, 0, 0, 0]),
                entry(LEAF_MONITOR, 0, all),
                entry(LEAF_EXTENDED_FEATURES, 0, all),
                entry(LEAF_EXTENDED_FEATURES, 1, all),
                entry(LEAF_TOPOLOGY, 0, all),
                entry(LEAF_KVM_FEATURES, 0, all),
                entry(LEAF_AMD_FEATURES, 0, all),
                entry(LEAF_SVM, 0, all),
                entry(LEAF_AMD_TOPOLOGY, 0, all),
                entry(LEAF_AMD_TOPOLOGY_V2, 0, all),
            ],
            cpus,
        };
        template.remove_unwanted(true);
        template.describe_topology();
        template
    }

    fn find(table: &CpuId, function: u32, index: u32) -> Option<kvm_cpuid_entry2> {
        let mut entries = table.as_slice().iter();
        let is_it = |it: &&kvm_cpuid_entry2| (it.function, it.index) == (function, index);
        entries.find(is_it).copied()
    }

    #[test]
    fn features_are_hidden_or_shown() {
        // Of a processor that has all: vCPUs, leaf, index, register, bits, and what remains of them.
        for (what, cpus, [leaf, index, register], bits, expected) in [
            ("FRED", 2, [7, 1, 0], 1 << 17, 0),
            ("VMX", 2, [1, 0, 2], 1 << 5, 0),
            ("SVM", 2, [LEAF_AMD_FEATURES, 0, 2], 1 << 2, 0),
            ("SVM's leaf", 2, [LEAF_SVM, 0, 0], u32::MAX, 0),
            ("MONITOR", 2, [1, 0, 2], 1 << 3, 0),
            ("threads", 1, [1, 0, 3], 1 << 28, 0),
            ("AMD's threads", 1, [LEAF_AMD_FEATURES, 0, 2], 1 << 1, 0),
            // They break profil and samples.
            ("KVM", 1, [LEAF_KVM_FEATURES, 0, 0], 0x3_0200, 0),
            ("deadline timer", 1, [1, 0, 2], 1 << 24, 1 << 24),
            ("hypervisor", 1, [1, 0, 2], 1 << 31, 1 << 31),
        ] {
            let table = template(cpus).for_vcpu(0).unwrap();
            let found = find(&table, leaf, index).unwrap();
            let registers = [found.eax, found.ebx, found.ecx, found.edx];
            assert_eq!(registers[register as usize] & bits, expected, "{what}");
        }
    }

    #[test]
    fn every_vcpu_has_its_own_apic_id_everywhere() {
        let table = template(4).for_vcpu(3).unwrap();
        let of = |leaf, index| find(&table, leaf, index).unwrap();
        assert_eq!(of(1, 0).ebx >> 24, 3);
        assert_eq!(of(LEAF_TOPOLOGY, 0).edx, 3);
        assert_eq!(of(LEAF_TOPOLOGY_V2, 1).edx, 3);
        let amd = of(LEAF_AMD_TOPOLOGY, 0);
        assert_eq!((amd.eax, amd.ebx), (3, 3));
    }

    #[test]
    fn the_topology_is_one_package_of_cores() {
        let table = template(6).for_vcpu(0).unwrap();
        let threads = find(&table, LEAF_TOPOLOGY, 0).unwrap();
        let cores = find(&table, LEAF_TOPOLOGY, 1).unwrap();
        assert_eq!((threads.eax, threads.ebx, threads.ecx), (0, 1, 0x100));
        assert_eq!((cores.eax, cores.ebx, cores.ecx), (3, 6, 0x201));
        assert_eq!(find(&table, 1, 0).unwrap().ebx >> 16 & 0xff, 8);
        assert!(find(&table, LEAF_AMD_TOPOLOGY_V2, 0).is_none());
    }

    #[test]
    fn only_the_last_level_cache_is_shared() {
        let table = template(4).for_vcpu(0).unwrap();
        assert_eq!(find(&table, LEAF_CACHES, 0).unwrap().eax >> 14 & 0xfff, 0);
        assert_eq!(find(&table, LEAF_CACHES, 3).unwrap().eax >> 14 & 0xfff, 3);
        assert_eq!(find(&table, LEAF_CACHES, 3).unwrap().eax >> 26, 3);
    }
}
