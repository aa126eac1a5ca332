//! Kernel images: detects a file's format, and loads it into guest memory.

use std::io::{Cursor, Read};
use std::ops::Range;
use std::sync::Arc;

use linux_loader::bootparam::setup_header;
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use object::LittleEndian;
use object::elf::{EM_X86_64, FileHeader64, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use vm_memory::{Bytes, GuestAddress};

use super::kernel_notes::KernelNotes;
use super::kernel_part::KernelPart;
use super::other_image::what_else;
use crate::error::{MachineError, write_error};
use crate::layout;
use crate::memory::{GuestMemory, populate};

/// The way in which a kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// A Linux bzImage at its 64-bit entry; the kernel unpacks itself, and places itself by KASLR
    /// (kernel: Documentation/arch/x86/boot.rst, "64-bit boot protocol").
    BzImage,
    /// An ELF file at its `e_entry` by the same protocol: a Linux vmlinux. Or the kernel in a library, at the entry that the library tells.
    ElfLinux,
    /// An ELF file that has the Xen note `PHYS32_ENTRY`, entered there in 32-bit protected mode
    /// (Xen: docs/misc/pvh.pandoc).
    Pvh,
    /// An ELF file that has a `kvmprof` note of type [`TYPE_START_ALL`](kvmprof_abi::note::TYPE_START_ALL): every vCPU starts at
    /// `e_entry` in 64-bit mode with the first 4 GiB mapped one to one, `rdi` = index of the vCPU,
    /// `rsi` = guest-physical address of the Linux boot parameters, `rdx` = number of vCPUs.
    /// All vCPUs have the same initial stack: each has to set up its own.
    StartAll,
}

/// The start of the banner of every Linux (kernel: init/version-timestamp.c).
const LINUX_BANNER: &[u8] = b"Linux version ";

/// A kernel image that was read and parsed, but isn't in guest memory yet.
#[derive(Debug)]
pub struct Image {
    name: String,
    bytes: Arc<[u8]>,
    kind: ImageKind,
    linux: bool,
    /// `e_entry`, or the PVH note's entry; unused for a bzImage.
    entry: u64,
    /// The guest-physical addresses of the file's parts, with their lengths in bytes.
    places: Vec<(u64, u64)>,
    /// The kernel within the file, which is the only part that is loaded.
    bundled: Option<Range<usize>>,
    /// End address of the highest segment, or of the memory that a bzImage needs to unpack itself.
    memory_end: u64,
    /// Maximum length of the command line in bytes, without its NUL.
    command_line_max: usize,
    /// Highest address that the initial RAM disk may have.
    initrd_address_max: u64,
}

/// A kernel within a file of another kind, laid out as in memory. Its variables without a value come after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundledKernel {
    /// The guest-physical address of its first byte.
    pub load: u64,
    /// The guest-physical address of its first instruction, entered by the 64-bit boot protocol.
    pub entry: u64,
    /// Where it is in the file, in bytes.
    pub contents: Range<usize>,
}

/// A kernel in guest memory.
#[derive(Clone, Copy, Debug)]
pub struct LoadedKernel {
    /// Guest-physical (and identity-mapped virtual) address of the first instruction.
    pub entry: u64,
    /// The setup header of a bzImage, which the kernel gets back in its boot parameters.
    pub setup_header: Option<setup_header>,
}

impl Image {
    /// Checks a kernel in the `bytes` of a file with this name.
    ///
    /// # Errors
    /// It isn't a kernel for x86-64, or is damaged.
    pub fn parse(name: String, bytes: Arc<[u8]>) -> Result<Self, MachineError> {
        let is_elf = bytes.starts_with(&object::elf::ELFMAG);
        if !is_elf && let Some(header) = read_setup_header(&bytes) {
            return Self::parse_bzimage(name, bytes, &header);
        }
        match what_else(&bytes) {
            Some(what) => Err(MachineError::OtherImage { name, what }),
            None if is_elf => Self::parse_elf(name, bytes),
            None => Err(MachineError::NotAKernel(name)),
        }
    }

    /// The kernel's name in messages and reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// The way in which the kernel is entered.
    #[must_use]
    pub fn kind(&self) -> ImageKind {
        self.kind
    }

    /// Whether it is a Linux kernel, as far as its file tells.
    #[must_use]
    pub fn is_linux(&self) -> bool {
        self.linux
    }

    /// Maximum length of the command line that the kernel takes, in bytes without its NUL.
    #[must_use]
    pub fn command_line_max(&self) -> usize {
        self.command_line_max
    }

    /// End of the guest-physical memory that the kernel itself needs.
    #[must_use]
    pub fn memory_end(&self) -> u64 {
        self.memory_end
    }

    /// Highest guest-physical address that any byte of the initial RAM disk may have.
    #[must_use]
    pub fn initrd_address_max(&self) -> u64 {
        self.initrd_address_max
    }

    fn parse_bzimage(
        name: String,
        bytes: Arc<[u8]>,
        header: &setup_header,
    ) -> Result<Self, MachineError> {
        // The version of the boot protocol that introduced `xloadflags`: 2.12.
        const VERSION_XLOADFLAGS: u16 = 0x020c;
        const XLF_KERNEL_64: u16 = 1 << 0;
        const LOADED_HIGH: u8 = 1 << 0;

        // A kernel without these is older than protocol 2.12, a zImage, or 32-bit code.
        if header.version < VERSION_XLOADFLAGS
            || header.loadflags & LOADED_HIGH == 0
            || header.xloadflags & XLF_KERNEL_64 == 0
        {
            return Err(MachineError::NoEntry64(name));
        }
        let setup_sectors = match header.setup_sects {
            0 => 4,
            sectors => u64::from(sectors),
        };
        let expected = (setup_sectors + 1) * 512 + u64::from(header.syssize) * 16;
        let actual = bytes.len() as u64;
        // The size is in units of 16 bytes, and the last unit may be incomplete.
        if actual.next_multiple_of(16) < expected {
            return Err(MachineError::Truncated {
                name,
                expected,
                actual,
            });
        }
        let unpacked_end = header
            .pref_address
            .max(layout::HIGH_MEMORY)
            .saturating_add(u64::from(header.init_size));
        Ok(Self {
            name,
            kind: ImageKind::BzImage,
            // Each Linux in this form has a packed kernel; memtest86+, for one, has none.
            linux: header.payload_length != 0,
            entry: 0,
            places: vec![(layout::HIGH_MEMORY, actual)],
            bundled: None,
            memory_end: unpacked_end.max(layout::HIGH_MEMORY.saturating_add(actual)),
            command_line_max: usize::try_from(header.cmdline_size)
                .map_or(layout::COMMAND_LINE_MAX, |most| {
                    most.min(layout::COMMAND_LINE_MAX)
                }),
            initrd_address_max: u64::from(header.initrd_addr_max),
            bytes,
        })
    }

    /// A kernel within the `bytes` of a file with this name.
    ///
    /// # Errors
    /// It isn't in the file, or has to be where no kernel may be.
    pub fn bundled(
        name: String,
        bytes: Arc<[u8]>,
        kernel: BundledKernel,
    ) -> Result<Self, MachineError> {
        let BundledKernel {
            load,
            entry,
            contents,
        } = kernel;
        let Some(found) = bytes.get(contents.clone()) else {
            return Err(MachineError::Truncated {
                name,
                expected: contents.end as u64,
                actual: bytes.len() as u64,
            });
        };
        if load < layout::HIGH_MEMORY {
            return Err(MachineError::KernelTooLow {
                name,
                address: load,
            });
        }
        let length = found.len() as u64;
        Ok(Self {
            name,
            kind: ImageKind::ElfLinux,
            linux: memchr::memmem::find(found, LINUX_BANNER).is_some(),
            entry,
            places: vec![(load, length)],
            bundled: Some(contents),
            memory_end: load.saturating_add(length),
            command_line_max: layout::COMMAND_LINE_MAX,
            initrd_address_max: layout::GAP_START - 1,
            bytes,
        })
    }

    /// Whether the kernel is a Linux that certainly has no such part. A bzImage is packed: what it lacks isn't known.
    #[must_use]
    pub fn lacks(&self, part: KernelPart) -> bool {
        let kernel = self.bundled.clone().unwrap_or(0..self.bytes.len());
        let kernel = self.bytes.get(kernel).unwrap_or_default();
        self.linux && self.kind != ImageKind::BzImage && !part.may_be_in(kernel)
    }

    fn parse_elf(name: String, bytes: Arc<[u8]>) -> Result<Self, MachineError> {
        let damaged = |reason: String| MachineError::DamagedElf {
            name: name.clone(),
            reason,
        };
        let header = FileHeader64::<LittleEndian>::parse(&*bytes)
            .map_err(|_| MachineError::NotAKernel(name.clone()))?;
        let endian = LittleEndian;
        if !header.is_little_endian() || header.e_machine(endian) != EM_X86_64 {
            return Err(MachineError::NotAKernel(name));
        }
        let segments = header
            .program_headers(endian, &*bytes)
            .map_err(|error| damaged(error.to_string()))?;
        let memory_end = check_segments(&name, segments, bytes.len() as u64)?;
        let notes = KernelNotes::read(segments, &bytes).map_err(damaged)?;
        let linux = notes.linux;
        let (kind, entry) = match notes {
            KernelNotes {
                start_all: true, ..
            } => (ImageKind::StartAll, header.e_entry(endian)),
            KernelNotes {
                pvh_entry: Some(entry),
                ..
            } => (ImageKind::Pvh, u64::from(entry)),
            _ => (ImageKind::ElfLinux, header.e_entry(endian)),
        };
        let enterable = segments.iter().any(|segment| {
            let start = segment.p_paddr(endian);
            segment.p_type(endian) == PT_LOAD
                && (start..start.saturating_add(segment.p_memsz(endian))).contains(&entry)
        });
        if !enterable {
            return Err(damaged(format!(
                "its entry point {entry:#x} lies in no segment"
            )));
        }
        let loads = segments
            .iter()
            .filter(|segment| segment.p_type(endian) == PT_LOAD);
        Ok(Self {
            kind,
            linux,
            entry,
            places: loads
                .map(|segment| (segment.p_paddr(endian), segment.p_filesz(endian)))
                .collect(),
            bundled: None,
            memory_end,
            command_line_max: layout::COMMAND_LINE_MAX,
            initrd_address_max: layout::GAP_START - 1,
            bytes,
            name,
        })
    }

    /// Loads the kernel into guest memory. `low_end` is the end of the memory below the 32-bit gap.
    ///
    /// # Errors
    /// The kernel doesn't fit into guest memory.
    pub fn load(&self, memory: &GuestMemory, low_end: u64) -> Result<LoadedKernel, MachineError> {
        /// The offset of a bzImage's 64-bit entry point from its load address.
        const ENTRY_64: u64 = 0x200;

        if self.memory_end > low_end {
            return Err(MachineError::KernelTooLarge {
                name: self.name.clone(),
                needed: self.memory_end,
                end: low_end,
            });
        }
        let failed = |source| MachineError::Load {
            name: self.name.clone(),
            source,
        };
        for (address, length) in &self.places {
            populate::guest_memory(memory, *address, *length);
        }
        let mut file = Cursor::new(&*self.bytes);
        if self.kind == ImageKind::BzImage {
            let address = Some(GuestAddress(layout::HIGH_MEMORY));
            let loaded = BzImage::load(memory, address, &mut file, address).map_err(failed)?;
            return Ok(LoadedKernel {
                entry: loaded.kernel_load.0 + ENTRY_64,
                setup_header: loaded.setup_header,
            });
        }
        if let (Some(bundled), Some((address, _))) = (&self.bundled, self.places.first()) {
            let bundled = self.bytes.get(bundled.clone()).unwrap_or_default();
            memory
                .write_slice(bundled, GuestAddress(*address))
                .map_err(write_error("the kernel"))?;
        } else {
            Elf::load(memory, None, &mut file, None).map_err(failed)?;
        }
        Ok(LoadedKernel {
            entry: self.entry,
            setup_header: None,
        })
    }
}

/// The setup header of a bzImage, at offset 0x1f1; `None` if the file isn't a bzImage.
fn read_setup_header(bytes: &[u8]) -> Option<setup_header> {
    const OFFSET: usize = 0x1f1;
    const MAGIC: u32 = u32::from_le_bytes(*b"HdrS");

    let mut header = setup_header::default();
    let mut source = bytes.get(OFFSET..)?;
    let target = vm_memory::ByteValued::as_mut_slice(&mut header);
    source.read_exact(target).ok()?;
    (header.header == MAGIC).then_some(header)
}

/// Checks that all segments to load are in the file and above the machine's own
/// structures. Returns the end of the memory that they take.
fn check_segments(
    name: &str,
    segments: &[ProgramHeader64<LittleEndian>],
    file_size: u64,
) -> Result<u64, MachineError> {
    let endian = LittleEndian;
    let mut memory_end = 0;
    for segment in segments {
        if segment.p_type(endian) != PT_LOAD || segment.p_memsz(endian) == 0 {
            continue;
        }
        let file_end = segment
            .p_offset(endian)
            .saturating_add(segment.p_filesz(endian));
        if file_end > file_size {
            return Err(MachineError::Truncated {
                name: name.to_owned(),
                expected: file_end,
                actual: file_size,
            });
        }
        let address = segment.p_paddr(endian);
        if address < layout::HIGH_MEMORY {
            return Err(MachineError::KernelTooLow {
                name: name.to_owned(),
                address,
            });
        }
        let bytes = segment.p_memsz(endian).max(segment.p_filesz(endian));
        memory_end = memory_end.max(address.saturating_add(bytes));
    }
    if memory_end == 0 {
        return Err(MachineError::DamagedElf {
            name: name.to_owned(),
            reason: "it has nothing to load".to_owned(),
        });
    }
    Ok(memory_end)
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
