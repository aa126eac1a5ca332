//! The boot parameters of a kernel in memory: memory map, command line, initial RAM disk and the pointers to
//! them, by the Linux boot protocol (kernel: Documentation/arch/x86/boot.rst and zero-page.rst) or the PVH
//! protocol (Xen: docs/misc/pvh.pandoc).

use std::fs::File;
use std::io::Seek;
use std::path::Path;

use linux_loader::bootparam::{boot_e820_entry, boot_params};
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::start_info::{
    XEN_HVM_MEMMAP_TYPE_RAM, XEN_HVM_MEMMAP_TYPE_RESERVED, XEN_HVM_START_MAGIC_VALUE,
    hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use vm_memory::{Bytes, GuestAddress};

use super::image::{Image, ImageKind, LoadedKernel};
use crate::error::{MachineError, write_error};
use crate::layout;
use crate::memory::{GuestMemory, memory_ranges};

/// An initial RAM disk in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Initrd {
    /// Guest-physical address, page-aligned.
    pub address: u64,
    /// Size in bytes.
    pub size: u32,
}

/// A part of guest-physical memory, and whether it is free for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MapEntry {
    address: u64,
    size: u64,
    usable: bool,
}

/// The memory map, as firmware would provide it.
fn memory_map(memory_bytes: u64) -> Vec<MapEntry> {
    let mut map = vec![
        MapEntry {
            address: 0,
            size: layout::LOW_MEMORY_END,
            usable: true,
        },
        MapEntry {
            address: layout::LOW_MEMORY_END,
            size: layout::HIGH_MEMORY - layout::LOW_MEMORY_END,
            usable: false,
        },
    ];
    for (address, size) in memory_ranges(memory_bytes) {
        let start = address.max(layout::HIGH_MEMORY);
        map.push(MapEntry {
            address: start,
            size: address + size - start,
            usable: true,
        });
    }
    map
}

/// Checks a command line and puts it into guest memory.
///
/// # Errors
/// The command line is too long for the kernel, or has other characters than printable ASCII.
pub(super) fn load_command_line(
    memory: &GuestMemory,
    image: &Image,
    command_line: &str,
) -> Result<(), MachineError> {
    let line = command_line.trim();
    if line.len() > image.command_line_max() {
        return Err(MachineError::CommandLineTooLong {
            length: line.len(),
            most: image.command_line_max(),
        });
    }
    if !line.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(MachineError::CommandLineCharacters);
    }
    let mut bytes = line.as_bytes().to_vec();
    bytes.push(0);
    memory
        .write_slice(&bytes, GuestAddress(layout::COMMAND_LINE))
        .map_err(write_error("the command line"))
}

/// Puts an initial RAM disk as high as the kernel allows, but below `low_end`, the end of the
/// memory below the 32-bit gap.
///
/// # Errors
/// The initial RAM disk can't be read, or doesn't fit.
pub(super) fn load_initrd(
    memory: &GuestMemory,
    image: &Image,
    path: &Path,
    mut file: &File,
    low_end: u64,
) -> Result<Initrd, MachineError> {
    let failed = |source| MachineError::ReadFile {
        what: "initrd",
        path: path.to_owned(),
        source,
    };
    let length = file.metadata().map_err(failed)?.len();
    file.rewind().map_err(failed)?;
    if length == 0 {
        return Err(MachineError::EmptyInitrd(path.to_owned()));
    }
    let end = low_end.min(image.initrd_address_max().saturating_add(1));
    let address = place_initrd(length, image.memory_end(), end);
    // What fits below the 32-bit gap has a 32-bit size.
    let (Some(address), Ok(size)) = (address, u32::try_from(length)) else {
        return Err(MachineError::InitrdTooLarge {
            path: path.to_owned(),
            size: length,
            free: end.saturating_sub(image.memory_end()),
        });
    };
    let bytes = usize::try_from(size).unwrap_or(usize::MAX);
    memory
        .read_exact_volatile_from(GuestAddress(address), &mut file, bytes)
        .map_err(write_error("the initrd"))?;
    Ok(Initrd { address, size })
}

/// The highest page-aligned place for `size` bytes between `start` and `end`.
fn place_initrd(size: u64, start: u64, end: u64) -> Option<u64> {
    const PAGE_MASK: u64 = 4096 - 1;
    let address = end.checked_sub(size)? & !PAGE_MASK;
    (address >= start).then_some(address)
}

/// Writes the boot parameters for `kernel`. `rsdp` is the address of the ACPI root pointer.
///
/// # Errors
/// Guest memory is too small for them. No accepted memory size is that small.
pub(super) fn write(
    memory: &GuestMemory,
    memory_bytes: u64,
    kind: ImageKind,
    kernel: &LoadedKernel,
    initrd: Option<Initrd>,
    rsdp: u64,
) -> Result<(), MachineError> {
    let map = memory_map(memory_bytes);
    match kind {
        ImageKind::Pvh => write_pvh(memory, &map, initrd, rsdp),
        ImageKind::BzImage | ImageKind::ElfLinux | ImageKind::StartAll => {
            write_linux(memory, &map, kernel, initrd, rsdp)
        }
    }
}

fn write_linux(
    memory: &GuestMemory,
    map: &[MapEntry],
    kernel: &LoadedKernel,
    initrd: Option<Initrd>,
    rsdp: u64,
) -> Result<(), MachineError> {
    /// "No assigned number": a boot loader without a number of its own.
    const LOADER_TYPE_UNDEFINED: u8 = 0xff;
    const BOOT_FLAG: u16 = 0xaa55;
    const MAGIC: u32 = u32::from_le_bytes(*b"HdrS");
    const E820_RAM: u32 = 1;
    const E820_RESERVED: u32 = 2;

    let mut parameters = boot_params::default();
    if let Some(header) = kernel.setup_header {
        parameters.hdr = header;
    } else {
        parameters.hdr.boot_flag = BOOT_FLAG;
        parameters.hdr.header = MAGIC;
        parameters.hdr.kernel_alignment = 0x20_0000;
    }
    parameters.hdr.type_of_loader = LOADER_TYPE_UNDEFINED;
    parameters.hdr.cmd_line_ptr = address_32(layout::COMMAND_LINE);
    if let Some(initrd) = initrd {
        parameters.hdr.ramdisk_image = address_32(initrd.address);
        parameters.hdr.ramdisk_size = initrd.size;
    }
    parameters.acpi_rsdp_addr = rsdp;
    for (target, entry) in parameters.e820_table.iter_mut().zip(map) {
        *target = boot_e820_entry {
            addr: entry.address,
            size: entry.size,
            r#type: if entry.usable {
                E820_RAM
            } else {
                E820_RESERVED
            },
        };
        parameters.e820_entries += 1;
    }
    LinuxBootConfigurator::write_bootparams(
        &BootParams::new(&parameters, GuestAddress(layout::BOOT_PARAMETERS)),
        memory,
    )
    .map_err(MachineError::BootParameters)
}

fn write_pvh(
    memory: &GuestMemory,
    map: &[MapEntry],
    initrd: Option<Initrd>,
    rsdp: u64,
) -> Result<(), MachineError> {
    let entries: Vec<_> = map
        .iter()
        .map(|entry| hvm_memmap_table_entry {
            addr: entry.address,
            size: entry.size,
            type_: if entry.usable {
                XEN_HVM_MEMMAP_TYPE_RAM
            } else {
                XEN_HVM_MEMMAP_TYPE_RESERVED
            },
            reserved: 0,
        })
        .collect();
    let modules: Vec<_> = initrd
        .iter()
        .map(|initrd| hvm_modlist_entry {
            paddr: initrd.address,
            size: u64::from(initrd.size),
            ..Default::default()
        })
        .collect();
    let start_info = hvm_start_info {
        magic: XEN_HVM_START_MAGIC_VALUE,
        // Version 1 has the memory map.
        version: 1,
        nr_modules: count_32(modules.len()),
        modlist_paddr: if modules.is_empty() {
            0
        } else {
            layout::PVH_MODULES
        },
        cmdline_paddr: layout::COMMAND_LINE,
        rsdp_paddr: rsdp,
        memmap_paddr: layout::PVH_MEMORY_MAP,
        memmap_entries: count_32(entries.len()),
        ..Default::default()
    };
    let mut parameters = BootParams::new(&start_info, GuestAddress(layout::PVH_START_INFO));
    parameters.set_sections(&entries, GuestAddress(layout::PVH_MEMORY_MAP));
    if !modules.is_empty() {
        parameters.set_modules(&modules, GuestAddress(layout::PVH_MODULES));
    }
    PvhBootConfigurator::write_bootparams(&parameters, memory).map_err(MachineError::BootParameters)
}

/// An address below the 32-bit gap as a 32-bit field.
#[expect(
    clippy::cast_possible_truncation,
    reason = "Everything the boot protocols point to lies below layout::GAP_START"
)]
fn address_32(address: u64) -> u32 {
    debug_assert!(address < layout::GAP_START);
    address as u32
}

/// The length of one of the short lists above.
#[expect(
    clippy::cast_possible_truncation,
    reason = "The lists have at most four entries"
)]
fn count_32(count: usize) -> u32 {
    count as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_usable_except_for_the_reserved_area_and_the_gap() {
        let usable = |bytes| {
            let mut map = memory_map(bytes);
            map.retain(|entry| entry.usable);
            let ranges = map.iter().map(|it| (it.address, it.address + it.size));
            ranges.collect::<Vec<_>>()
        };
        let low = (0, 0x9fc00);
        assert_eq!(usable(512 << 20), [low, (0x10_0000, 512 << 20)]);
        let large = [low, (0x10_0000, 0xc000_0000), (1 << 32, 0x1_c000_0000)];
        assert_eq!(usable(6 << 30), large);
    }

    #[test]
    fn the_map_is_sorted_and_does_not_overlap() {
        let map = memory_map(8 << 30);
        for pair in map.windows(2) {
            assert!(pair[0].address + pair[0].size <= pair[1].address);
        }
    }

    #[test]
    fn the_initrd_lies_page_aligned_at_the_top_and_never_in_the_kernel() {
        for (bytes, end, expected) in [
            (5000, 0x800_0000, Some(0x7ff_e000)),
            (0x1001, 0x100_2000, Some(0x100_0000)),
            (0x2001, 0x100_2000, None),
            (u64::MAX, 0x100_2000, None),
        ] {
            assert_eq!(place_initrd(bytes, 0x100_0000, end), expected, "{bytes}");
        }
    }

    #[test]
    fn linux_parameters_carry_the_map_and_the_rsdp() {
        let options = crate::memory::MemoryOptions::private(64 << 20);
        let memory = crate::memory::allocate(&options).unwrap();
        let kernel = LoadedKernel {
            entry: 0x10_0000,
            setup_header: None,
        };
        let initrd = Initrd {
            address: 0x300_0000,
            size: 77,
        };

        let (kind, initrd) = (ImageKind::ElfLinux, Some(initrd));
        write(&memory, 64 << 20, kind, &kernel, initrd, 0xe0000).unwrap();
        let place = GuestAddress(layout::BOOT_PARAMETERS);
        let written: boot_params = memory.read_obj(place).unwrap();
        assert_eq!({ written.acpi_rsdp_addr }, 0xe0000);
        assert_eq!(written.e820_entries, 3);
        assert_eq!({ written.hdr.ramdisk_image }, 0x300_0000);
        assert_eq!({ written.hdr.ramdisk_size }, 77);
        assert_eq!({ written.hdr.cmd_line_ptr }, 0x20000);
    }

    #[test]
    fn pvh_structures_do_not_overlap() {
        let start_info = layout::PVH_START_INFO + size_of::<hvm_start_info>() as u64;
        let modules = layout::PVH_MODULES + size_of::<hvm_modlist_entry>() as u64;
        let map = layout::PVH_MEMORY_MAP
            + (memory_map(8 << 30).len() * size_of::<hvm_memmap_table_entry>()) as u64;
        assert!(start_info <= layout::PVH_MODULES);
        assert!(modules <= layout::PVH_MEMORY_MAP);
        assert!(map <= layout::BOOT_PARAMETERS);
    }
}
