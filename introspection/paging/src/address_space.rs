//! Translates guest-virtual addresses by long mode's page walk (Intel SDM volume 3, section 4.5; AMD APM volume 2,
//! section 5.3).

use vm_memory::GuestAddress;

use super::PhysicalMemory;
use crate::Registers;

/// CR0.PG: paging.
pub const CR0_PG: u64 = 1 << 31;
/// CR4.LA57: 5-level paging.
pub const CR4_LA57: u64 = 1 << 12;
/// EFER.LMA: long mode.
pub const EFER_LMA: u64 = 1 << 10;
/// A page-table entry's present bit.
pub const PRESENT: u64 = 1;
/// A page-table entry's page-size bit, in levels 2 and 3.
pub const LARGE: u64 = 1 << 7;
/// The physical address in CR3 and in page-table entries.
pub const FRAME: u64 = 0x000f_ffff_ffff_f000;
/// Bytes of the smallest page.
pub const PAGE: u64 = 4096;
/// The bit of CR3 that selects the user half of a pair of page tables under KPTI
/// (`PTI_USER_PGTABLE_MASK`, `arch/x86/include/asm/tlbflush.h`).
pub const PTI_USER: u64 = 1 << 12;

/// A vCPU's translation of virtual addresses, as of the moment when its registers were read.
#[derive(Debug)]
pub struct AddressSpace<'a, M> {
    pub(super) memory: &'a M,
    pub(super) paging: Paging,
}

impl<M> Clone for AddressSpace<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for AddressSpace<'_, M> {}

#[derive(Clone, Copy, Debug)]
pub(super) enum Paging {
    /// Without paging, virtual addresses are physical ones.
    Off,
    /// The 32-bit modes. Guests of interest use them only while they boot.
    Unsupported,
    Long {
        root: u64,
        levels: u32,
    },
}

impl<'a, M: PhysicalMemory> AddressSpace<'a, M> {
    /// The address space that `registers` select.
    pub fn new(memory: &'a M, registers: &Registers) -> Self {
        let paging = if registers.cr0 & CR0_PG == 0 {
            Paging::Off
        } else if registers.efer & EFER_LMA == 0 {
            Paging::Unsupported
        } else {
            let levels = if registers.cr4 & CR4_LA57 == 0 { 4 } else { 5 };
            // The low 12 bits are cache control bits, or a PCID.
            Paging::Long {
                root: registers.cr3 & FRAME,
                levels,
            }
        };
        Self { memory, paging }
    }

    /// Whether the vCPU uses long mode's page tables.
    pub fn is_long_mode(&self) -> bool {
        matches!(self.paging, Paging::Long { .. })
    }

    /// The kernel half of a pair of page tables under KPTI, if this can be the user half.
    pub fn kernel_half(&self) -> Option<Self> {
        match self.paging {
            Paging::Long { root, levels } if root & PTI_USER != 0 => Some(Self {
                memory: self.memory,
                paging: Paging::Long {
                    root: root & !PTI_USER,
                    levels,
                },
            }),
            _ => None,
        }
    }

    /// The physical address of virtual address `address`, if it is mapped. Makes at most five reads. The result may be
    /// outside guest memory.
    pub fn translate(&self, address: u64) -> Option<GuestAddress> {
        let (root, levels) = match self.paging {
            Paging::Off => return Some(GuestAddress(address)),
            Paging::Unsupported => return None,
            Paging::Long { root, levels } => (root, levels),
        };
        if !is_canonical(address, levels) {
            return None;
        }
        let mut table = root;
        for level in (1..=levels).rev() {
            let shift = 12 + 9 * (level - 1);
            let index = address >> shift & 0x1ff;
            let entry = read_u64(self.memory, GuestAddress(table + index * 8))?;
            if entry & PRESENT == 0 {
                return None;
            }
            let large = matches!(level, 2 | 3) && entry & LARGE != 0;
            if large || level == 1 {
                let within = (1 << shift) - 1;
                return Some(GuestAddress(entry & FRAME & !within | address & within));
            }
            table = entry & FRAME;
        }
        None
    }

    /// Fills `buffer` from virtual address `address`. `None` if a part isn't mapped or isn't guest memory; the buffer's
    /// contents are unspecified then.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        read_paged(self.memory, address, buffer, |address| {
            self.translate(address)
        })
    }

    /// The `N` bytes at virtual address `address`. `None` if a part isn't mapped or isn't guest memory.
    pub fn read_array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Some(bytes)
    }
}

/// True if the bits above those that `levels` levels of page tables translate equal the highest translated bit.
pub(super) fn is_canonical(address: u64, levels: u32) -> bool {
    let unused = 64 - (12 + 9 * levels);
    let extended = (address << unused).cast_signed() >> unused;
    extended.cast_unsigned() == address
}

/// Fills `buffer` from virtual address `address`, page by page.
pub fn read_paged<M: PhysicalMemory>(
    memory: &M,
    mut address: u64,
    mut buffer: &mut [u8],
    translate: impl Fn(u64) -> Option<GuestAddress>,
) -> Option<()> {
    while !buffer.is_empty() {
        let room = usize::try_from(PAGE - address % PAGE).ok()?;
        let (part, rest) = buffer.split_at_mut(room.min(buffer.len()));
        memory.read_physical(translate(address)?, part)?;
        address = address.wrapping_add(part.len() as u64);
        buffer = rest;
    }
    Some(())
}

/// The 64-bit number at guest-physical address `address`.
pub fn read_u64<M: PhysicalMemory>(memory: &M, address: GuestAddress) -> Option<u64> {
    memory.read_array(address).map(u64::from_le_bytes)
}
