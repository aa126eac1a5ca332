//! ORC, the unwind tables of x86-64 kernels (`Documentation/arch/x86/orc-unwinder.rst`,
//! `arch/x86/include/asm/orc_types.h`).
//!
//! One table has the start addresses of the entries, each relative to its own place, in ascending order. The other has
//! the entries: how to find the caller's stack pointer and frame pointer.

use std::ops::Range;

use crate::bytes::{array_at, i32_at};

const ENTRY: usize = OrcTable::ENTRY;
const ADDRESS: usize = OrcTable::ADDRESS;
/// The index of the byte of an entry with the registers' numbers. The low half is that for the caller's stack pointer.
const REGISTERS: usize = 4;
/// Maximum number of entries: distribution kernels have some 500,000.
const MAX_ENTRIES: usize = 8 << 20;
/// The code is divided into blocks of this many bytes, with an index of each block's first entry (`LOOKUP_BLOCK_SIZE`
/// in `arch/x86/include/asm/orc_lookup.h`).
const BLOCK: u32 = 256;
/// Maximum length of a kernel's code, in bytes (`KERNEL_IMAGE_SIZE`).
const MAX_CODE: u64 = 1 << 30;

/// A layout of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrcFormat {
    /// The meanings of register numbers.
    bases: &'static [Base],
    // Since 6.4, there are kinds for the end of a stack and for code without information.
    has_kinds: bool,
    /// Whether the offset of an indirect stack pointer is added before the indirection, as in kernels up to 5.12.
    pub offset_first: bool,
}

impl OrcFormat {
    /// The format of rules that don't come from a table.
    pub const DERIVED: Self = Self {
        bases: BASES,
        has_kinds: true,
        offset_first: false,
    };

    /// The format of a table with these `entries` in kernel `release`, such as `6.1.0-13-amd64`. `None` before 4.14,
    /// which had no ORC, and for unknown register numbers.
    pub fn from_kernel(release: &str, entries: &[u8]) -> Option<Self> {
        let mut numbers = release
            .split(|letter: char| !letter.is_ascii_digit())
            .map(str::parse::<u32>);
        let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        (version >= (4, 14)).then_some(Self {
            bases: bases_of(entries)?,
            has_kinds: version >= (6, 4),
            offset_first: version < (5, 13),
        })
    }
}

/// The meanings of register numbers in a table with these `entries`. In any kernel nearly all code computes its
/// caller's stack pointer from RSP, so the most frequent number is that of RSP.
fn bases_of(entries: &[u8]) -> Option<&'static [Base]> {
    let mut uses = [0_usize; 16];
    for entry in entries.chunks_exact(ENTRY) {
        uses[usize::from(entry[REGISTERS] & 0xf)] += 1;
    }
    // Number 0 stands for no register.
    uses[0] = 0;
    let (most, _) = uses.iter().enumerate().max_by_key(|(_, uses)| **uses)?;
    let numbers_sp = |bases: &&[Base]| bases.get(most) == Some(&Base::Sp);
    [BASES, BASES_SINCE_7_1].into_iter().find(numbers_sp)
}

/// The kind of frame that an entry describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Unknown.
    Undefined,
    /// The end of the stack.
    End,
    /// A call.
    Call,
    /// All registers of interrupted code (`struct pt_regs`).
    Registers,
    /// The registers of interrupted code that the processor itself saved.
    ProcessorFrame,
}

/// The base of the caller's stack pointer or frame pointer (`ORC_REG_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The value can't be computed.
    Undefined,
    /// The caller's stack pointer.
    CallerSp,
    /// RAX.
    Ax,
    /// RDX.
    Dx,
    /// RDI.
    Di,
    /// RBP.
    Bp,
    /// RSP.
    Sp,
    /// R10.
    R10,
    /// R13.
    R13,
    /// The value at the address in RBP.
    BpIndirect,
    /// The value at the address in RSP.
    SpIndirect,
}

/// Indexed by number (`ORC_REG_*`).
const BASES: &[Base] = &[
    Base::Undefined,
    Base::CallerSp,
    Base::Dx,
    Base::Di,
    Base::Bp,
    Base::Sp,
    Base::R10,
    Base::R13,
    Base::BpIndirect,
    Base::SpIndirect,
    // Added by late updates of old series.
    Base::Ax,
];

/// Indexed by number from 7.1 on.
const BASES_SINCE_7_1: &[Base] = &[
    Base::Undefined,
    Base::Ax,
    Base::Dx,
    Base::Sp,
    Base::Bp,
    Base::Di,
    Base::R10,
    Base::R13,
    Base::CallerSp,
    Base::SpIndirect,
    Base::BpIndirect,
];

/// How to find a frame's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrcEntry {
    /// The kind of the frame.
    pub kind: Kind,
    /// The base of the caller's stack pointer.
    pub sp: Base,
    /// The offset that is added to that base.
    pub sp_offset: i16,
    /// The base of the address of the caller's frame pointer.
    pub bp: Base,
    /// The offset that is added to that base.
    pub bp_offset: i16,
}

impl OrcEntry {
    fn decode(bytes: [u8; ENTRY], format: OrcFormat) -> Self {
        let [a, b, c, d, registers, flags] = bytes;
        let base = |number: u8| {
            let known = format.bases.get(usize::from(number));
            known.copied().unwrap_or(Base::Undefined)
        };
        let sp = base(registers & 0xf);
        let kind = if format.has_kinds {
            match flags & 7 {
                1 => Kind::End,
                2 => Kind::Call,
                3 => Kind::Registers,
                4 => Kind::ProcessorFrame,
                _ => Kind::Undefined,
            }
        } else {
            match flags & 3 {
                // The bit for the end has moved once. Entries without a stack pointer are the same in both versions.
                _ if sp == Base::Undefined && flags & 0xc != 0 => Kind::End,
                _ if sp == Base::Undefined => Kind::Undefined,
                0 => Kind::Call,
                1 => Kind::Registers,
                2 => Kind::ProcessorFrame,
                _ => Kind::Undefined,
            }
        };
        Self {
            kind,
            sp,
            sp_offset: i16::from_le_bytes([a, b]),
            bp: base(registers >> 4),
            bp_offset: i16::from_le_bytes([c, d]),
        }
    }
}

/// A kernel's table with link-time addresses, or a module's with run-time addresses.
#[derive(Debug)]
pub struct OrcTable {
    format: OrcFormat,
    /// The lowest address that has an entry.
    start: u64,
    /// Each entry's distance from `start`, in ascending order.
    offsets: Vec<u32>,
    entries: Vec<[u8; ENTRY]>,
    /// For each block of code, the index of the first entry in it or after it; one more at the end.
    blocks: Vec<u32>,
}

impl OrcTable {
    /// Bytes of an entry.
    pub const ENTRY: usize = 6;
    /// Bytes of an address.
    pub const ADDRESS: usize = 4;

    /// Reads the table of addresses, which was linked to `address`, and the entries. `None` if they don't match, or the
    /// addresses aren't a kernel's.
    pub fn parse(
        address: u64,
        addresses: &[u8],
        entries: &[u8],
        format: OrcFormat,
    ) -> Option<Self> {
        Self::parse_within(address, addresses, entries, format, &(0..u64::MAX))
    }

    /// Like [`OrcTable::parse`], for the part of the table about the code in `range`.
    pub fn parse_within(
        address: u64,
        addresses: &[u8],
        entries: &[u8],
        format: OrcFormat,
        range: &Range<u64>,
    ) -> Option<Self> {
        let count = addresses.len() / ADDRESS;
        if count == 0 || count > MAX_ENTRIES || entries.len() / ENTRY < count {
            return None;
        }
        let mut rows: Vec<(u64, [u8; ENTRY])> = (0..count)
            .map(|index| {
                let own = address.wrapping_add((index * ADDRESS) as u64);
                let distance = i32_at(addresses, index * ADDRESS)?;
                let entry = array_at(entries, index * ENTRY)?;
                Some((own.wrapping_add_signed(i64::from(distance)), entry))
            })
            .collect::<Option<_>>()?;
        rows.retain(|(address, _)| range.contains(address));
        // Kernels before 5.6 sort the table when they boot. The last of several entries for one address counts.
        if !rows.is_sorted_by_key(|(address, _)| *address) {
            rows.sort_by_key(|(address, _)| *address);
        }
        let start = rows.first()?.0;
        if rows.last()?.0 - start >= MAX_CODE {
            return None;
        }
        let offsets: Vec<u32> = rows
            .iter()
            .map(|(address, _)| u32::try_from(address - start).ok())
            .collect::<Option<_>>()?;
        Some(Self {
            format,
            start,
            blocks: blocks(&offsets)?,
            offsets,
            entries: rows.into_iter().map(|(_, entry)| entry).collect(),
        })
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Its memory use, in bytes.
    pub fn footprint(&self) -> usize {
        self.offsets.len() * size_of::<u32>()
            + self.entries.len() * ENTRY
            + self.blocks.len() * size_of::<u32>()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The layout of its entries.
    pub fn format(&self) -> OrcFormat {
        self.format
    }

    /// Whether the entry for link-time address `address` gives the caller or the end of the stack.
    pub fn unwinds(&self, address: u64) -> bool {
        self.find(address)
            .is_some_and(|entry| entry.kind != Kind::Undefined)
    }

    /// The entry for link-time address `address`. `None` after the last entry.
    pub fn find(&self, address: u64) -> Option<OrcEntry> {
        let offset = u32::try_from(address.checked_sub(self.start)?).ok()?;
        let block = usize::try_from(offset / BLOCK).ok()?;
        let bound = |index: usize| usize::try_from(*self.blocks.get(index)?).ok();
        let (first, end) = (bound(block)?, bound(block + 1)?);
        let within = self.offsets.get(first..end)?;
        let after = first + within.partition_point(|begin| *begin <= offset);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        Some(OrcEntry::decode(*entry, self.format))
    }
}

/// For each block of code, the index of the first entry in it or after it; one more at the end.
fn blocks(offsets: &[u32]) -> Option<Vec<u32>> {
    let last = offsets.last()? / BLOCK;
    let mut blocks = Vec::new();
    let mut entry = 0;
    for block in 0..=last {
        while offsets
            .get(entry)
            .is_some_and(|offset| offset / BLOCK < block)
        {
            entry += 1;
        }
        blocks.push(u32::try_from(entry).ok()?);
    }
    blocks.push(u32::try_from(offsets.len()).ok()?);
    Some(blocks)
}
