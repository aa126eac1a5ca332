//! The unwind information of a program or library: its `.eh_frame` (System V ABI for x86-64, section 6.4; Linux
//! Standard Base, section 10.6.1).
//!
//! The section comes from the guest and is evaluated while a vCPU is stopped. So it is checked before, and the index
//! has only entries that are evaluated in bounded time: entries of limited length, without jumps in expressions, and
//! with sound rules ([`frame_rules`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CieOrFde,
    CommonInformationEntry, EhFrame, EhFrameOffset, Encoding, EndianSlice, LittleEndian, Operation,
    UnwindSection,
};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSection};

use super::frame_rules;

pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Common<'a> = CommonInformationEntry<Bytes<'a>>;
type Elf<'a> = ElfFile64<'a, object::LittleEndian>;

/// Maximum length of a section, in bytes.
const MAX_SECTION: usize = 64 << 20;
/// Maximum number of indexed functions.
const MAX_FUNCTIONS: usize = 1 << 20;
/// Maximum number of an entry's instructions, and of those among them that save the registers' state.
const MAX_INSTRUCTIONS: usize = 4096;
const MAX_REMEMBERED: usize = 16;
/// Maximum number of loadable segments.
const MAX_SEGMENTS: usize = 64;
/// Encodings of pointers in the index: 4 bytes unsigned; 8 bytes; 4 bytes signed, relative to the index (`DW_EH_PE_*`,
/// Linux Standard Base, section 10.5.1).
const UDATA4: u8 = 0x03;
const UDATA8: u8 = 0x04;
const DATAREL_SDATA4: u8 = 0x3b;

/// The unwind information of one file, by its own virtual addresses.
#[derive(Clone, Debug)]
pub struct UnwindTable {
    pub(super) section: Arc<[u8]>,
    /// The address of the section.
    pub(super) address: u64,
    /// The index, in the form of a `.eh_frame_hdr`, and its virtual address.
    pub(super) index: Arc<[u8]>,
    pub(super) index_address: u64,
    /// The start and end of each function, sorted.
    functions: Arc<[(u64, u64)]>,
    /// The file's executable segments: offset in the file, virtual address, length.
    segments: Vec<(u64, u64, u64)>,
    /// The lowest virtual address of the file.
    pub(super) base: u64,
}

/// The place of a file's code: its first address, the first address after it, and its offset in the file.
pub(super) type Mapped = (u64, u64, u64);

/// The part of a loadable segment that is in the file.
struct Load {
    offset: u64,
    address: u64,
    length: u64,
    is_executable: bool,
}

fn loads(elf: &Elf<'_>) -> impl Iterator<Item = Load> {
    let endian = object::LittleEndian;
    (elf.elf_program_headers().iter())
        .filter(move |header| header.p_type(endian) == object::elf::PT_LOAD)
        .take(MAX_SEGMENTS)
        .map(move |header| Load {
            offset: header.p_offset(endian),
            address: header.p_vaddr(endian),
            length: header.p_filesz(endian),
            is_executable: header.p_flags(endian).contains(object::elf::PF_X),
        })
}

/// A function with a usable entry.
struct Entry {
    begin: u64,
    end: u64,
    /// The address of the function's entry.
    address: u64,
}

impl UnwindTable {
    /// Reads the ELF file with contents `file`. `None` if it has no usable unwind information.
    pub fn from_elf(file: &[u8]) -> Option<Self> {
        let elf = ElfFile64::<object::LittleEndian>::parse(file).ok()?;
        let base = loads(&elf).map(|load| load.address).min()?;
        Self::of_file(&elf, base)
    }

    /// Reads the ELF file with contents `file`, which runs at its own addresses. Also returns the places of its
    /// executable segments. `None` if it has no usable unwind information.
    pub fn from_image(file: &[u8]) -> Option<(Self, Vec<Mapped>)> {
        let elf = ElfFile64::<object::LittleEndian>::parse(file).ok()?;
        // A kernel in the upper half of all addresses has its first instructions in the lower half.
        let largest = loads(&elf).max_by_key(|load| load.length)?;
        let near = |load: &Load| load.address >> 32 == largest.address >> 32;
        let base = loads(&elf).filter(near).map(|load| load.address).min()?;
        let table = Self::of_file(&elf, base)?;
        let code = loads(&elf).filter(|load| near(load) && load.is_executable);
        let code = code.map(|load| {
            let end = load.address.saturating_add(load.length);
            (load.address, end, load.offset)
        });
        Some((table, code.collect()))
    }

    fn of_file(elf: &Elf<'_>, base: u64) -> Option<Self> {
        let section = elf.section_by_name(".eh_frame")?;
        let (data, address) = (section.data().ok()?, section.address());
        let segments = loads(elf)
            .filter(|load| load.is_executable)
            .map(|load| (load.offset, load.address, load.length))
            .collect();
        Self::new(data, address, base & !0xfff, segments)
    }

    /// The table of section `data` at `address`. The file begins at `base` and has these executable segments: offset in
    /// the file, virtual address, length.
    pub(crate) fn new(
        data: &[u8],
        address: u64,
        base: u64,
        segments: Vec<(u64, u64, u64)>,
    ) -> Option<Self> {
        if data.len() > MAX_SECTION {
            return None;
        }
        let mut entries = entries(data, address);
        // framehop uses 32-bit offsets from the file's start.
        entries.retain(|entry| {
            let length = entry.end.checked_sub(base);
            entry.begin >= base && length.is_some_and(|length| u32::try_from(length).is_ok())
        });
        let index_address = address.checked_add(data.len() as u64)?;
        let index = index(&entries, address, index_address)?;
        Some(Self {
            section: data.into(),
            address,
            index: index.into(),
            index_address,
            functions: entries
                .iter()
                .map(|entry| (entry.begin, entry.end))
                .collect(),
            segments,
            base,
        })
    }

    /// The number of functions with unwind information.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Its memory use, in bytes.
    pub fn bytes(&self) -> usize {
        self.section.len() + self.index.len() + self.functions.len() * 16
    }

    /// The distance of the file's run-time addresses from its own virtual addresses, wrapping, if its byte `offset` is
    /// mapped at `begin`.
    pub fn bias(&self, begin: u64, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|(start, address, length)| {
            // Segments are mapped in whole pages.
            let first = start & !0xfff;
            let inside = (first..start.checked_add(*length)?).contains(&offset);
            let own = address
                .wrapping_sub(start - first)
                .wrapping_add(offset.wrapping_sub(first));
            inside.then(|| begin.wrapping_sub(own))
        })
    }

    /// Whether there is unwind information for the code at the file's virtual address `address`.
    pub fn covers(&self, address: u64) -> bool {
        let after = self
            .functions
            .partition_point(|(begin, _)| *begin <= address);
        after
            .checked_sub(1)
            .and_then(|index| self.functions.get(index))
            .is_some_and(|(_, end)| address < *end)
    }
}

/// The usable entries of a section, sorted by the addresses of their functions.
fn entries(data: &[u8], address: u64) -> Vec<Entry> {
    let mut section = EhFrame::new(data, LittleEndian);
    section.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut commons: BTreeMap<usize, Option<Common<'_>>> = BTreeMap::new();
    let mut found = Vec::new();
    let mut all = section.entries(&bases);
    // A damaged entry ends the section, because the next one can't be found.
    while let Ok(Some(entry)) = all.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let common = |section: &EhFrame<_>, bases: &BaseAddresses, offset: EhFrameOffset| {
            let known = commons.entry(offset.0).or_insert_with(|| {
                let common: Common<'_> = section.cie_from_offset(bases, offset).ok()?;
                let instructions = common.instructions(section, bases);
                is_within_limits(&common, instructions, section).then_some(common)
            });
            known
                .clone()
                .ok_or(gimli::Error::NotCiePointer(offset.0 as u64))
        };
        let Ok(description) = partial.parse(common) else {
            continue;
        };
        let begin = description.initial_address();
        let Some(end) = begin.checked_add(description.len()) else {
            continue;
        };
        let instructions = description.instructions(&section, &bases);
        if begin < end && is_within_limits(description.cie(), instructions, &section) {
            found.push(Entry {
                begin,
                end,
                address: address.wrapping_add(description.offset() as u64),
            });
        }
        if found.len() >= MAX_FUNCTIONS {
            break;
        }
    }
    found.sort_by_key(|entry| entry.begin);
    found.dedup_by_key(|entry| entry.begin);
    found
}

/// The index of `entries`, located at `own`, of the section at `section`.
fn index(entries: &[Entry], section: u64, own: u64) -> Option<Vec<u8>> {
    let mut index = vec![1, UDATA8, UDATA4, DATAREL_SDATA4];
    index.extend(section.to_le_bytes());
    index.extend(u32::try_from(entries.len()).ok()?.to_le_bytes());
    let mut relative = |address: u64| {
        let distance = i32::try_from(address.wrapping_sub(own).cast_signed()).ok()?;
        index.extend(distance.to_le_bytes());
        Some(())
    };
    for entry in entries {
        relative(entry.begin)?;
        relative(entry.address)?;
    }
    (!entries.is_empty()).then_some(index)
}

/// Whether all `instructions`, of `common` or of an entry that refers to it, are within the limits.
fn is_within_limits<'a>(
    common: &Common<'a>,
    mut instructions: CallFrameInstructionIter<'_, Bytes<'a>>,
    section: &EhFrame<Bytes<'a>>,
) -> bool {
    let mut budget = Budget::new(common);
    while let Ok(Some(instruction)) = instructions.next() {
        if !budget.allows(&instruction, section) {
            return false;
        }
    }
    true
}

/// The remaining limits of an entry.
struct Budget {
    encoding: Encoding,
    /// The factor of offsets.
    factor: i64,
    instructions: usize,
    remembered: usize,
}

impl Budget {
    fn new(common: &Common<'_>) -> Self {
        Self {
            encoding: common.encoding(),
            factor: common.data_alignment_factor(),
            instructions: MAX_INSTRUCTIONS,
            remembered: MAX_REMEMBERED,
        }
    }

    /// Whether `instruction` is also within the limits.
    fn allows(
        &mut self,
        instruction: &CallFrameInstruction<usize>,
        section: &EhFrame<Bytes<'_>>,
    ) -> bool {
        let expression = match instruction {
            CallFrameInstruction::DefCfaExpression { expression }
            | CallFrameInstruction::Expression { expression, .. }
            | CallFrameInstruction::ValExpression { expression, .. } => Some(expression),
            CallFrameInstruction::RememberState => {
                let left = self.remembered.checked_sub(1);
                self.remembered = left.unwrap_or(0);
                if left.is_none() {
                    return false;
                }
                None
            }
            _ => None,
        };
        let left = self.instructions.checked_sub(1);
        self.instructions = left.unwrap_or(0);
        left.is_some()
            && expression.is_none_or(|expression| {
                expression
                    .get(section)
                    .is_ok_and(|expression| self.has_no_jumps(expression))
            })
            && frame_rules::are_sound(instruction, self.factor, self.encoding, section)
    }

    fn has_no_jumps(&self, expression: gimli::Expression<Bytes<'_>>) -> bool {
        let mut operations = expression.operations(self.encoding);
        for _ in 0..MAX_INSTRUCTIONS {
            match operations.next() {
                Ok(Some(Operation::Bra { .. } | Operation::Skip { .. })) | Err(_) => return false,
                Ok(Some(_)) => {}
                Ok(None) => return true,
            }
        }
        false
    }
}
