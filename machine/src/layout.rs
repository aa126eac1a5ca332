//! Every address of the guest's physical memory and I/O port space that the
//! machine fixes, in one place.
//!
//! The low megabyte follows the habits of a PC, because kernels look there:
//!
//! | Guest-physical address | What lies there |
//! |---|---|
//! | `0x500` | boot GDT ([`BOOT_GDT`]) |
//! | `0x6000` | PVH start info, its modules and memory map |
//! | `0x7000` | Linux boot parameters, the "zero page" |
//! | `0x8ff0` | initial stack pointer |
//! | `0x9000`-`0xefff` | boot page tables, identity map of the first 4 GiB |
//! | `0x20000` | kernel command line |
//! | `0x9fc00`-`0xfffff` | reserved; ACPI tables from `0xe0000`, MP table from `0xf0000`, reset vector at `0xffff0` |
//! | `0x100000` | guest's own memory: kernel upwards, initial RAM disk from the top |
//! | 3 GiB-4 GiB | no memory: virtio-mmio, I/O APIC, local APICs, KVM's own pages |
//! | 4 GiB | the rest of the memory |

/// Boot GDT: null, unused, code, data and task state descriptors.
pub const BOOT_GDT: u64 = 0x500;
/// `struct hvm_start_info` of the PVH boot protocol.
pub const PVH_START_INFO: u64 = 0x6000;
/// `struct hvm_modlist_entry` for the initial RAM disk.
pub const PVH_MODULES: u64 = 0x6100;
/// Array of `struct hvm_memmap_table_entry`.
pub const PVH_MEMORY_MAP: u64 = 0x6200;

/// `struct boot_params`, 4096 bytes (kernel: Documentation/arch/x86/zero-page.rst).
pub const BOOT_PARAMETERS: u64 = 0x7000;

/// Stack pointer at the entry point. It grows down towards [`BOOT_PARAMETERS`]'s end.
pub const BOOT_STACK: u64 = 0x8ff0;

/// Page map level 4 of the boot page tables.
pub const BOOT_PML4: u64 = 0x9000;
/// Page directory pointer table. Its first [`BOOT_PAGE_DIRECTORIES`] entries are used.
pub const BOOT_PDPT: u64 = 0xa000;
/// First of the page directories, which map 2 MiB pages.
pub const BOOT_PAGE_DIRECTORY: u64 = 0xb000;
/// Number of page directories. Each maps 1 GiB.
pub const BOOT_PAGE_DIRECTORIES: u64 = 4;

/// Kernel command line, NUL-terminated.
pub const COMMAND_LINE: u64 = 0x20000;
/// Maximum length of the command line in bytes, without its NUL (kernel: `COMMAND_LINE_SIZE` is 2048 on x86).
pub const COMMAND_LINE_MAX: usize = 2047;

/// End of the memory below 1 MiB that is free for the guest.
pub const LOW_MEMORY_END: u64 = 0x9fc00;
/// ACPI tables, of which the RSDP is the first. They are in the area where operating systems search for the RSDP (ACPI specification,
/// section 5.2.5.1).
pub const ACPI_TABLES: u64 = 0xe0000;
/// The MP table, in the area where kernels without ACPI search for it (MultiProcessor Specification 1.4, section 4). The ACPI tables end below it.
pub const MP_TABLE: u64 = 0xf_0000;
/// The reset vector, `f000:fff0`, where a PC's processor starts after reset, and to which kernels jump to reset a PC by its firmware. The
/// MP table ends below it.
pub const RESET_VECTOR: u64 = 0xf_fff0;
/// Start of the memory that no PC convention uses. Kernels are loaded from here on.
pub const HIGH_MEMORY: u64 = 0x10_0000;

/// Start of the hole below 4 GiB, in which there is no memory.
pub const GAP_START: u64 = 0xc000_0000;
/// End of the hole, where memory continues.
pub const GAP_END: u64 = 0x1_0000_0000;

/// Registers of the first virtio-mmio device, within the hole. Those of the others follow, 4 KiB apart.
pub const VIRTIO_MMIO: u32 = 0xd000_0000;
/// Interrupt (GSI) of the first virtio-mmio device: the first one that isn't a PC's.
pub const VIRTIO_MMIO_GSI: u32 = 5;
/// Maximum number of virtio-mmio devices.
pub const VIRTIO_DEVICES_MAX: usize = 32;

/// Interrupt (GSI) of the power button: the last one of the I/O APIC, far from those of virtio devices.
pub const POWER_BUTTON_GSI: u32 = 23;

/// I/O APIC registers (fixed by KVM's in-kernel I/O APIC).
pub const IO_APIC: u32 = 0xfec0_0000;
/// Local APIC registers (the processor's reset value).
pub const LOCAL_APIC: u32 = 0xfee0_0000;
/// One page that KVM uses for real mode on VT-x (`KVM_SET_IDENTITY_MAP_ADDR`).
pub const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;
/// Three pages that KVM uses for real mode on VT-x (`KVM_SET_TSS_ADDR`).
pub const KVM_TSS: u64 = 0xfffb_d000;

/// First I/O port of COM1.
pub const COM1: u16 = 0x3f8;
/// Number of I/O ports of a 16550.
pub const COM1_PORTS: u16 = 8;
/// Interrupt (GSI) of COM1.
pub const COM1_IRQ: u32 = 4;

/// Minimum size of guest memory in bytes.
pub const MEMORY_MIN: u64 = 32 << 20;
/// Maximum number of vCPUs.
pub const CPUS_MAX: u16 = 64;
