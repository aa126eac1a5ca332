//! The initial state of vCPUs: segments, paging, model-specific registers, local APIC.

use kvm_bindings::{
    KVM_MP_STATE_RUNNABLE, Msrs, kvm_dtable, kvm_fpu, kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
    kvm_regs, kvm_segment, kvm_sregs,
};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use super::image::ImageKind;
use crate::error::{MachineError, kvm, write_error};
use crate::layout;
use crate::memory::GuestMemory;

// Control register and EFER bits (Intel SDM volume 3, section 2.5).
const CR0_PE: u64 = 1 << 0;
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
/// The bit of RFLAGS that is always set. With this bit alone, interrupts are off.
const RFLAGS_RESERVED: u64 = 1 << 1;

// Segment selectors. The Linux boot protocols require 0x10 and 0x18.
const SELECTOR_CODE: u16 = 0x10;
const SELECTOR_DATA: u16 = 0x18;
const SELECTOR_TASK: u16 = 0x20;
/// Number of entries of the boot GDT.
const GDT_ENTRIES: usize = 5;

/// The start of one vCPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The way in which the kernel is entered.
    pub kind: ImageKind,
    /// Address of the first instruction.
    pub address: u64,
    /// Index of the vCPU.
    pub vcpu: u8,
    /// Number of vCPUs.
    pub cpus: u8,
}

impl Entry {
    /// Whether the vCPU runs from the start, and doesn't wait for another vCPU to start it.
    fn starts(&self) -> bool {
        self.vcpu == 0 || self.kind == ImageKind::StartAll
    }

    fn is_64_bit(&self) -> bool {
        self.kind != ImageKind::Pvh
    }

    fn general_registers(&self) -> kvm_regs {
        let start = kvm_regs {
            rip: self.address,
            rflags: RFLAGS_RESERVED,
            ..Default::default()
        };
        match self.kind {
            ImageKind::BzImage | ImageKind::ElfLinux => kvm_regs {
                rsp: layout::BOOT_STACK,
                rsi: layout::BOOT_PARAMETERS,
                ..start
            },
            ImageKind::Pvh => kvm_regs {
                rbx: layout::PVH_START_INFO,
                ..start
            },
            ImageKind::StartAll => kvm_regs {
                rsp: layout::BOOT_STACK,
                rdi: u64::from(self.vcpu),
                rsi: layout::BOOT_PARAMETERS,
                rdx: u64::from(self.cpus),
                ..start
            },
        }
    }

    /// Changes the registers after reset to those at the entry point.
    fn special_registers(&self, reset: kvm_sregs) -> kvm_sregs {
        let code = code_segment(self.is_64_bit());
        let data = data_segment();
        let mut sregs = kvm_sregs {
            cs: code,
            ds: data,
            es: data,
            fs: data,
            gs: data,
            ss: data,
            tr: task_segment(),
            gdt: kvm_dtable {
                base: layout::BOOT_GDT,
                limit: 8 * 5 - 1,
                ..Default::default()
            },
            // There is no interrupt table: a fault before the guest has its own table is a triple fault.
            idt: kvm_dtable::default(),
            cr0: CR0_PE | CR0_ET,
            cr4: 0,
            efer: 0,
            ..reset
        };
        if self.is_64_bit() {
            sregs.cr3 = layout::BOOT_PML4;
            sregs.cr4 = CR4_PAE;
            sregs.cr0 |= CR0_PG;
            sregs.efer = EFER_LME | EFER_LMA;
        }
        sregs
    }
}

/// Writes the GDT and the page tables with which every vCPU starts.
///
/// # Errors
/// Guest memory is too small for them. No accepted memory size is that small.
pub(super) fn write_boot_tables(memory: &GuestMemory, kind: ImageKind) -> Result<(), MachineError> {
    let write = |bytes: &[u8], address: u64| {
        memory
            .write_slice(bytes, GuestAddress(address))
            .map_err(write_error("the boot page tables"))
    };
    let gdt = boot_gdt(kind != ImageKind::Pvh);
    write(&table_bytes(&gdt), layout::BOOT_GDT)?;
    for (address, table) in boot_page_tables() {
        write(&table_bytes(&table), address)?;
    }
    Ok(())
}

fn table_bytes(entries: &[u64]) -> Vec<u8> {
    entries
        .iter()
        .flat_map(|entry| entry.to_le_bytes())
        .collect()
}

/// The page tables, each with its address. They map the first 4 GiB one to one in pages of 2 MiB.
fn boot_page_tables() -> Vec<(u64, Vec<u64>)> {
    const PRESENT_WRITABLE: u64 = 0b11;
    const LARGE_PAGE: u64 = 1 << 7;
    const LARGE_PAGE_SIZE: u64 = 2 << 20;
    const TABLE_SIZE: u64 = 4096;
    const ENTRIES: u64 = 512;

    let directory = |index: u64| layout::BOOT_PAGE_DIRECTORY + index * TABLE_SIZE;
    let mut tables = vec![
        (
            layout::BOOT_PML4,
            vec![layout::BOOT_PDPT | PRESENT_WRITABLE],
        ),
        (
            layout::BOOT_PDPT,
            (0..layout::BOOT_PAGE_DIRECTORIES)
                .map(|index| directory(index) | PRESENT_WRITABLE)
                .collect(),
        ),
    ];
    for index in 0..layout::BOOT_PAGE_DIRECTORIES {
        let first = index * ENTRIES;
        let entries = (first..first + ENTRIES)
            .map(|page| (page * LARGE_PAGE_SIZE) | LARGE_PAGE | PRESENT_WRITABLE)
            .collect();
        tables.push((directory(index), entries));
    }
    tables
}

fn boot_gdt(is_64_bit: bool) -> [u64; GDT_ENTRIES] {
    [
        0,
        0,
        descriptor(&code_segment(is_64_bit)),
        descriptor(&data_segment()),
        descriptor(&task_segment()),
    ]
}

/// The descriptor of a segment (Intel SDM volume 3, section 3.4.5). Bases are all zero.
fn descriptor(segment: &kvm_segment) -> u64 {
    let bit = |value: u8, shift: u32| u64::from(value) << shift;
    let limit = if segment.g == 1 {
        u64::from(segment.limit) >> 12
    } else {
        u64::from(segment.limit)
    };
    limit & 0xffff
        | (limit & 0xf_0000) << 32
        | bit(segment.type_, 40)
        | bit(segment.s, 44)
        | bit(segment.dpl, 45)
        | bit(segment.present, 47)
        | bit(segment.avl, 52)
        | bit(segment.l, 53)
        | bit(segment.db, 54)
        | bit(segment.g, 55)
}

fn code_segment(is_64_bit: bool) -> kvm_segment {
    /// Execute and read, accessed.
    const TYPE_CODE: u8 = 0b1011;
    kvm_segment {
        selector: SELECTOR_CODE,
        type_: TYPE_CODE,
        l: u8::from(is_64_bit),
        db: u8::from(!is_64_bit),
        ..flat_segment()
    }
}

fn data_segment() -> kvm_segment {
    /// Read and write, accessed.
    const TYPE_DATA: u8 = 0b0011;
    kvm_segment {
        selector: SELECTOR_DATA,
        type_: TYPE_DATA,
        db: 1,
        ..flat_segment()
    }
}

/// The task state segment. Nothing uses it, but VT-x requires a busy one.
fn task_segment() -> kvm_segment {
    /// 32-bit (or 64-bit) TSS, busy.
    const TYPE_TASK_BUSY: u8 = 0b1011;
    kvm_segment {
        selector: SELECTOR_TASK,
        type_: TYPE_TASK_BUSY,
        limit: 0x67,
        s: 0,
        g: 0,
        ..flat_segment()
    }
}

fn flat_segment() -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        present: 1,
        s: 1,
        g: 1,
        ..Default::default()
    }
}

/// Sets the state of a new vCPU that its guest expects.
///
/// # Errors
/// KVM refuses a part of the state.
pub(super) fn set_up(vcpu: &VcpuFd, entry: &Entry) -> Result<(), MachineError> {
    set_msrs(vcpu)?;
    set_floating_point(vcpu)?;
    set_local_interrupts(vcpu)?;
    if !entry.starts() {
        // KVM's local APIC makes the vCPU wait for INIT and SIPI.
        return Ok(());
    }
    let reset = vcpu
        .get_sregs()
        .map_err(kvm("to read segment registers (KVM_GET_SREGS)"))?;
    vcpu.set_sregs(&entry.special_registers(reset))
        .map_err(kvm("the initial segment registers (KVM_SET_SREGS)"))?;
    vcpu.set_regs(&entry.general_registers())
        .map_err(kvm("the initial registers (KVM_SET_REGS)"))?;
    if entry.vcpu != 0 {
        vcpu.set_mp_state(kvm_mp_state {
            mp_state: KVM_MP_STATE_RUNNABLE,
        })
        .map_err(kvm("to start all vCPUs (KVM_SET_MP_STATE)"))?;
    }
    Ok(())
}

fn set_msrs(vcpu: &VcpuFd) -> Result<(), MachineError> {
    const IA32_MISC_ENABLE: u32 = 0x1a0;
    const FAST_STRINGS: u64 = 1 << 0;
    const IA32_PAT: u32 = 0x277;
    /// The value after reset: WB, WT, UC-, UC, twice.
    const PAT_RESET: u64 = 0x0007_0406_0007_0406;
    const IA32_MTRR_DEF_TYPE: u32 = 0x2ff;
    const MTRR_ENABLE: u64 = 1 << 11;
    const MTRR_WRITE_BACK: u64 = 6;

    // On a PC, firmware sets these. Without them, Linux would find its memory uncached.
    let wanted = [
        (IA32_MISC_ENABLE, FAST_STRINGS),
        (IA32_PAT, PAT_RESET),
        (IA32_MTRR_DEF_TYPE, MTRR_ENABLE | MTRR_WRITE_BACK),
    ];
    let entries = wanted.map(|(index, data)| kvm_msr_entry {
        index,
        data,
        ..Default::default()
    });
    let refused = kvm("the initial model-specific registers (KVM_SET_MSRS)");
    let Ok(msrs) = Msrs::from_entries(&entries) else {
        return Err(refused(kvm_ioctls::Error::new(libc::E2BIG)));
    };
    let done = vcpu.set_msrs(&msrs).map_err(refused)?;
    // KVM stops at the first register that it doesn't know.
    match wanted.get(done) {
        Some((index, _)) => Err(MachineError::Msr(*index)),
        None => Ok(()),
    }
}

fn set_floating_point(vcpu: &VcpuFd) -> Result<(), MachineError> {
    /// FCW after FNINIT and MXCSR after reset: all exceptions are masked.
    const FCW_RESET: u16 = 0x37f;
    const MXCSR_RESET: u32 = 0x1f80;
    vcpu.set_fpu(&kvm_fpu {
        fcw: FCW_RESET,
        mxcsr: MXCSR_RESET,
        ..Default::default()
    })
    .map_err(kvm("the initial floating-point state (KVM_SET_FPU)"))
}

/// Sets the local APIC's inputs as firmware does: LINT0 for the PIC, and LINT1 for NMI.
fn set_local_interrupts(vcpu: &VcpuFd) -> Result<(), MachineError> {
    const LVT_LINT0: usize = 0x350;
    const LVT_LINT1: usize = 0x360;
    const DELIVER_EXTINT: u32 = 0b111 << 8;
    const DELIVER_NMI: u32 = 0b100 << 8;

    let mut apic = vcpu
        .get_lapic()
        .map_err(kvm("to read the local APIC (KVM_GET_LAPIC)"))?;
    write_apic(&mut apic, LVT_LINT0, DELIVER_EXTINT);
    write_apic(&mut apic, LVT_LINT1, DELIVER_NMI);
    vcpu.set_lapic(&apic)
        .map_err(kvm("the initial local APIC (KVM_SET_LAPIC)"))
}

#[expect(
    clippy::cast_possible_wrap,
    reason = "The register page is an array of C's signed characters"
)]
fn write_apic(apic: &mut kvm_lapic_state, offset: usize, value: u32) {
    for (target, byte) in apic.regs[offset..].iter_mut().zip(value.to_le_bytes()) {
        *target = byte as _;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_are_the_textbook_ones() {
        let [null, unused, code, data, _] = boot_gdt(true);
        assert_eq!((null, unused), (0, 0));
        assert_eq!(code, 0x00af_9b00_0000_ffff);
        assert_eq!(data, 0x00cf_9300_0000_ffff);
        assert_eq!(boot_gdt(false)[2], 0x00cf_9b00_0000_ffff);
    }

    #[test]
    fn the_page_tables_map_4_gib_one_to_one() {
        let tables = boot_page_tables();
        let (_, last) = tables.last().unwrap();
        assert_eq!(tables.len(), 6);
        assert_eq!(last[511], 0xffe0_0000 | 0x83);
        assert!(tables.iter().all(|(address, _)| address % 4096 == 0));
        assert!(tables.last().unwrap().0 + 4096 <= layout::COMMAND_LINE);
    }

    /// One of four vCPUs.
    fn entry(kind: ImageKind, vcpu: u8) -> Entry {
        Entry {
            kind,
            address: 0x20_0000,
            vcpu,
            cpus: 4,
        }
    }

    #[test]
    fn start_all_passes_each_vcpu_its_index() {
        let entry = entry(ImageKind::StartAll, 3);
        let registers = entry.general_registers();
        assert!(entry.starts());
        assert_eq!(registers.rdi, 3);
        assert_eq!(registers.rdx, 4);
        assert_eq!(registers.rsi, layout::BOOT_PARAMETERS);
    }

    #[test]
    fn pvh_starts_in_protected_mode_without_paging() {
        let entry = entry(ImageKind::Pvh, 0);
        let sregs = entry.special_registers(kvm_sregs::default());
        assert_eq!(sregs.cr0, CR0_PE | CR0_ET);
        assert_eq!((sregs.cr4, sregs.efer), (0, 0));
        assert_eq!((sregs.cs.db, sregs.cs.l), (1, 0));
        assert_eq!(entry.general_registers().rbx, layout::PVH_START_INFO);
    }

    #[test]
    fn other_linux_vcpus_wait_to_be_started() {
        assert!(!entry(ImageKind::BzImage, 1).starts());
    }
}
