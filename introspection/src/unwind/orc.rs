//! ORC, the unwind tables that x86-64 kernels carry for themselves (`Documentation/arch/x86/orc-unwinder.rst`,
//! `arch/x86/include/asm/orc_types.h`).
//!
//! One table has the addresses from which on its entries hold, relative to themselves and in order; the other
//! has an entry for each: how to find the caller's stack pointer and frame pointer.

use std::ops::Range;

use crate::bytes::{array_at, i32_at};

const ENTRY: usize = OrcTable::ENTRY;
const ADDRESS: usize = OrcTable::ADDRESS;
/// Which of an entry's bytes has the registers' numbers: the caller's stack pointer's in the low half.
const REGISTERS: usize = 4;
/// Most entries that are taken: distribution kernels have some 500,000.
const MAX_ENTRIES: usize = 8 << 20;
/// The code is parted into blocks of so many bytes, for each of which the first entry is known
/// (`LOOKUP_BLOCK_SIZE` in `arch/x86/include/asm/orc_lookup.h`).
const BLOCK: u32 = 256;
/// The code of a kernel is at most so long, in bytes (`KERNEL_IMAGE_SIZE`).
const MAX_CODE: u64 = 1 << 30;

/// A layout of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrcFormat {
    /// What numbers of registers stand for.
    bases: &'static [Base],
    // From 6.4 on there are kinds for the end of a stack and for code that says nothing.
    has_kinds: bool,
    /// Whether an indirect stack pointer's offset is added before it is followed, as up to 5.12.
    pub offset_first: bool,
}

impl OrcFormat {
    /// That of kernel `release`, such as `6.1.0-13-amd64`, whose table has these `entries`. `None` before 4.14, when there
    /// was none, and for numbers of registers that aren't known.
    pub fn of_kernel(release: &str, entries: &[u8]) -> Option<Self> {
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

/// What numbers of registers stand for in a table with these `entries`. Nearly all code finds its caller's stack pointer
/// by its own, in any kernel: that number tells.
fn bases_of(entries: &[u8]) -> Option<&'static [Base]> {
    let mut uses = [0_usize; 16];
    for entry in entries.chunks_exact(ENTRY) {
        uses[usize::from(entry[REGISTERS] & 0xf)] += 1;
    }
    // The first says that there is none.
    uses[0] = 0;
    let (most, _) = uses.iter().enumerate().max_by_key(|(_, uses)| **uses)?;
    let numbers_sp = |bases: &&[Base]| bases.get(most) == Some(&Base::Sp);
    [BASES, BASES_SINCE_7_1].into_iter().find(numbers_sp)
}

/// What an entry finds on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing is known.
    Undefined,
    /// The end of the stack.
    End,
    /// The frame of a call.
    Call,
    /// All registers of what was interrupted (`struct pt_regs`).
    Registers,
    /// Only what the processor itself saved of them.
    ProcessorFrame,
}

/// What the caller's stack pointer or frame pointer is computed from (`ORC_REG_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// It can't be.
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
    /// What is stored where RBP points to.
    BpIndirect,
    /// What is stored where RSP points to.
    SpIndirect,
}

/// By their numbers (`ORC_REG_*`).
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
    // In late updates of old series.
    Base::Ax,
];

/// The same from 7.1 on.
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

/// How to go from one frame to the one it was called from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrcEntry {
    /// What is there.
    pub kind: Kind,
    /// What the caller's stack pointer is computed from.
    pub sp: Base,
    /// What is added to that.
    pub sp_offset: i16,
    /// What the place of the caller's frame pointer is computed from.
    pub bp: Base,
    /// What is added to that.
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
                // The bit for the end was moved once; what it says without a stack pointer is the same.
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

/// A kernel's table, by link-time addresses, or a module's, by the addresses where it is.
#[derive(Debug)]
pub struct OrcTable {
    format: OrcFormat,
    /// The lowest address that has an entry.
    start: u64,
    /// For each entry how far above that it begins, in ascending order.
    offsets: Vec<u32>,
    entries: Vec<[u8; ENTRY]>,
    /// The first entry that begins in each block of code or after it, and one more.
    blocks: Vec<u32>,
}

impl OrcTable {
    /// Bytes of an entry.
    pub const ENTRY: usize = 6;
    /// Bytes of an address.
    pub const ADDRESS: usize = 4;

    /// Reads the table of addresses that was linked to `address`, and the entries. `None` when they don't fit
    /// each other, or the addresses are no kernel's.
    pub fn parse(
        address: u64,
        addresses: &[u8],
        entries: &[u8],
        format: OrcFormat,
    ) -> Option<Self> {
        Self::parse_within(address, addresses, entries, format, &(0..u64::MAX))
    }

    /// As [`OrcTable::parse`], of the part of the table that is for the code in `range`.
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
                let place = address.wrapping_add((index * ADDRESS) as u64);
                let distance = i32_at(addresses, index * ADDRESS)?;
                let entry = array_at(entries, index * ENTRY)?;
                Some((place.wrapping_add_signed(i64::from(distance)), entry))
            })
            .collect::<Option<_>>()?;
        rows.retain(|(address, _)| range.contains(address));
        // Kernels before 5.6 sort it when they boot. Of several for one address the last counts.
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

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How much memory it takes, in bytes.
    pub fn footprint(&self) -> usize {
        self.offsets.len() * size_of::<u32>()
            + self.entries.len() * ENTRY
            + self.blocks.len() * size_of::<u32>()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The layout of its entries.
    pub fn format(&self) -> OrcFormat {
        self.format
    }

    /// Whether an entry says how to go on from link-time address `address`, or that the stack ends there.
    pub fn unwinds(&self, address: u64) -> bool {
        self.find(address)
            .is_some_and(|entry| entry.kind != Kind::Undefined)
    }

    /// The entry that holds at link-time address `address`. Behind the last one nothing is known.
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

/// For each block of code the first entry that begins in it or after it, and one more at the end.
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
