//! The unwind information of a program or library: its `.eh_frame` (System V ABI for x86-64, section 6.4; Linux
//! Standard Base, section 10.6.1), and the sizes of frames in a Go program.
//!
//! The section comes from the guest and is evaluated while a vCPU is stopped. So it is checked before: entries that
//! are too long to be evaluated then are never evaluated. Stacks end there, since their functions aren't known to have
//! frame pointers.

use std::collections::BTreeMap;
use std::sync::Arc;

use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CieOrFde,
    CommonInformationEntry, EhFrame, EhFrameOffset, EndianSlice, LittleEndian, UnwindSection,
};
use kvmprof_recording::elf;
use object::elf::{FileHeader64, PF_X, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

use super::go_frames::GoFrames;
use super::row_rules::{Context, Evaluator, KnownRows, RowResult};
use super::user_registers::FrameRegisters;

pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Common<'a> = CommonInformationEntry<Bytes<'a>>;
type Header = FileHeader64<object::LittleEndian>;
type Program = ProgramHeader64<object::LittleEndian>;

/// Maximum length of a section, in bytes.
const MAX_SECTION: usize = 64 << 20;
/// Maximum number of indexed functions.
const MAX_FUNCTIONS: usize = 1 << 20;
/// Maximum number of an entry's instructions, and of those among them that save the registers' state.
const MAX_INSTRUCTIONS: usize = 4096;
const MAX_REMEMBERED: usize = 16;
/// Maximum number of loadable segments, and of program headers.
const MAX_SEGMENTS: usize = 64;
const MAX_HEADERS: usize = 256;
/// Minimum length of a stretch of code that a language's runtime was built with, in bytes. V8's has more than 1 MiB, functions in assembly
/// have some KiB.
const STRETCH: u64 = 256 << 10;
/// Maximum distance of a return address from a program's first instruction.
const START: u64 = 64;

/// The unwind information of one file, by its own virtual addresses.
#[derive(Clone, Debug)]
pub struct UnwindTable {
    section: Arc<[u8]>,
    /// The address of the section.
    address: u64,
    /// Sorted by address.
    functions: Arc<[Function]>,
    /// The file's executable segments: offset in the file, virtual address, length.
    segments: Vec<(u64, u64, u64)>,
    /// The address of the program's first instruction; 0 if there is none.
    entry: u64,
    /// The frames of Go's functions, which have no entries in the section.
    go: Option<GoFrames>,
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

/// A file's header and program headers. It needn't have sections.
fn headers(file: &[u8]) -> Option<(&Header, &[Program])> {
    let header = Header::parse(file).ok()?;
    let programs = header.program_headers(header.endian().ok()?, file).ok()?;
    Some((header, programs))
}

fn loads(programs: &[Program]) -> impl Iterator<Item = Load> {
    let endian = object::LittleEndian;
    (programs.iter().take(MAX_HEADERS))
        .filter(move |header| header.p_type(endian) == PT_LOAD)
        .take(MAX_SEGMENTS)
        .map(move |header| Load {
            offset: header.p_offset(endian),
            address: header.p_vaddr(endian),
            length: header.p_filesz(endian),
            is_executable: header.p_flags(endian).contains(PF_X),
        })
}

/// A function with an entry.
#[derive(Clone, Copy, Debug)]
struct Function {
    begin: u64,
    end: u64,
    /// The entry's offset in the section; `None` if it isn't evaluated.
    entry: Option<u32>,
}

impl UnwindTable {
    /// Reads the ELF file with contents `file`. `None` if it has no usable unwind information.
    pub fn from_elf(file: &[u8]) -> Option<Self> {
        let (header, programs) = headers(file)?;
        Self::of_file(file, header, programs)
    }

    /// Reads the ELF file with contents `file`, which runs at its own addresses. Also returns the places of its
    /// executable segments. `None` if it has no usable unwind information.
    pub fn from_image(file: &[u8]) -> Option<(Self, Vec<Mapped>)> {
        let (header, programs) = headers(file)?;
        // A kernel in the upper half of all addresses has its first instructions in the lower half.
        let largest = loads(programs).max_by_key(|load| load.length)?;
        let near = |load: &Load| load.address >> 32 == largest.address >> 32;
        let table = Self::of_file(file, header, programs)?;
        let code = loads(programs).filter(|load| near(load) && load.is_executable);
        let code = code.map(|load| {
            let end = load.address.saturating_add(load.length);
            (load.address, end, load.offset)
        });
        Some((table, code.collect()))
    }

    fn of_file(file: &[u8], header: &Header, programs: &[Program]) -> Option<Self> {
        let segments: Vec<_> = loads(programs)
            .filter(|load| load.is_executable)
            .map(|load| (load.offset, load.address, load.length))
            .collect();
        let entry = header.e_entry(object::LittleEndian);
        let section = elf::eh_frame(file);
        let table =
            section.and_then(|(address, data)| Self::new(data, address, entry, segments.clone()));
        let Some(go) = GoFrames::find(file) else {
            return table;
        };
        let table = table.unwrap_or_else(|| Self {
            section: [].into(),
            address: 0,
            functions: [].into(),
            segments,
            entry,
            go: None,
        });
        let go = Some(go);
        Some(Self { go, ..table })
    }

    /// The table of section `data` at `address`. The program's first instruction is at `entry`, or at 0 if there is
    /// none, and the file has these executable segments: offset in the file, virtual address, length.
    pub fn new(
        data: &[u8],
        address: u64,
        entry: u64,
        segments: Vec<(u64, u64, u64)>,
    ) -> Option<Self> {
        let data = data.get(..MAX_SECTION).unwrap_or(data);
        let (functions, length) = functions(data, address);
        let data = data.get(..length)?;
        functions
            .iter()
            .any(|function| function.entry.is_some())
            .then_some(())?;
        Some(Self {
            section: data.into(),
            address,
            functions: functions.into(),
            segments,
            entry,
            go: None,
        })
    }

    /// The number of functions with unwind information.
    pub fn functions(&self) -> usize {
        self.functions.len() + self.go.as_ref().map_or(0, GoFrames::functions)
    }

    /// Its memory use, in bytes.
    pub fn bytes(&self) -> usize {
        let go = self.go.as_ref().map_or(0, GoFrames::bytes);
        self.section.len() + self.functions.len() * size_of::<Function>() + go
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

    fn function(&self, address: u64) -> Option<&Function> {
        let after = (self.functions).partition_point(|function| function.begin <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        (address < function.end).then_some(function)
    }

    /// Whether there is unwind information for the code at the file's virtual address `address`.
    pub fn covers(&self, address: u64) -> bool {
        self.function(address).is_some() || (self.go.as_ref()).is_some_and(|go| go.covers(address))
    }

    /// Whether `address` is in a long stretch of code without unwind information, as the code that a language's runtime was built with.
    pub fn is_in_stretch(&self, address: u64) -> bool {
        let mut segments = self.segments.iter();
        let segment = segments.find(|(_, start, length)| address.wrapping_sub(*start) < *length);
        let Some((_, start, length)) = segment else {
            return false;
        };
        let next = (self.functions).partition_point(|function| function.begin <= address);
        let before = (next.checked_sub(1)).and_then(|before| self.functions.get(before));
        let begin = before.map_or(*start, |function| function.end.max(*start));
        let end = start.saturating_add(*length);
        let after = self.functions.get(next);
        let end = after.map_or(end, |function| function.begin.min(end));
        !self.covers(address) && end.saturating_sub(begin) >= STRETCH
    }

    /// Whether the function at `address` is the outermost one of its stack, which need not have called anything.
    pub(super) fn is_outermost(&self, address: u64) -> bool {
        (self.go.as_ref()).is_some_and(|go| go.is_outermost(address))
    }

    /// Whether `address` is that of a function's first instruction.
    pub(super) fn begins_at(&self, address: u64) -> bool {
        (self.function(address)).is_some_and(|function| function.begin == address)
    }

    /// The address of the program's first instruction, if `address`, which has no unwind information, is a return
    /// address close behind it.
    pub(super) fn start_before(&self, address: u64) -> Option<u64> {
        let is_close = address
            .checked_sub(self.entry)
            .is_some_and(|distance| (1..=START).contains(&distance));
        let is_between = |function: &&Function| (self.entry..address).contains(&function.begin);
        let first = (self.functions).partition_point(|function| function.begin < self.entry);
        let other = self.functions.get(first).filter(is_between);
        (is_close && self.entry != 0 && other.is_none()).then_some(self.entry)
    }

    /// The caller of `frame` by the entry for the file's virtual address `address`. Notes the rules for the run-time
    /// address `noted`. `None` if they can't be evaluated.
    pub(super) fn caller(
        &self,
        address: u64,
        noted: u64,
        frame: &FrameRegisters,
        context: &mut Context,
        known: &mut KnownRows,
        read: impl FnMut(u64) -> Option<u64>,
    ) -> Option<RowResult> {
        let Some(function) = self.function(address) else {
            let row = self.go.as_ref()?.row(address)?;
            known.keep(noted, row);
            return row.caller(frame, read);
        };
        let entry = function.entry?;
        let (section, bases) = eh_frame(&self.section, self.address);
        let offset = EhFrameOffset(usize::try_from(entry).ok()?);
        let description = section
            .fde_from_offset(&bases, offset, EhFrame::cie_from_offset)
            .ok()?;
        let row = description
            .unwind_info_for_address(&section, &bases, context, address)
            .ok()?;
        known.note(noted, row);
        let mut evaluator = Evaluator {
            section: &section,
            encoding: description.cie().encoding(),
            frame,
            read,
        };
        evaluator.row(row)
    }
}

/// The section `data`, which is loaded at `address`.
fn eh_frame(data: &[u8], address: u64) -> (EhFrame<Bytes<'_>>, BaseAddresses) {
    let mut section = EhFrame::new(data, LittleEndian);
    section.set_address_size(8);
    (section, BaseAddresses::default().set_eh_frame(address))
}

/// The functions with entries in `data`, which begins with a section that is loaded at `address`, sorted. Also returns
/// the section's length.
fn functions(data: &[u8], address: u64) -> (Vec<Function>, usize) {
    let (section, bases) = eh_frame(data, address);
    let mut commons: BTreeMap<usize, Option<(Common<'_>, bool)>> = BTreeMap::new();
    let mut found = Vec::new();
    let mut length = 0;
    let mut all = section.entries(&bases);
    // A damaged entry ends the section, because the next one can't be found.
    while let Ok(Some(entry)) = all.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let mut is_limited = false;
        let common = |section: &EhFrame<_>, bases: &BaseAddresses, offset: EhFrameOffset| {
            let known = commons.entry(offset.0).or_insert_with(|| {
                let common: Common<'_> = section.cie_from_offset(bases, offset).ok()?;
                let is_limited = is_within_limits(common.instructions(section, bases));
                Some((common, is_limited))
            });
            let (common, limited) = known
                .clone()
                .ok_or(gimli::Error::NotCiePointer(offset.0 as u64))?;
            is_limited = limited;
            Ok(common)
        };
        let Ok(description) = partial.parse(common) else {
            continue;
        };
        let begin = description.initial_address();
        let Some(end) = begin.checked_add(description.len()) else {
            continue;
        };
        let place = description.offset();
        length = length.max(
            place
                .saturating_add(description.entry_len())
                .saturating_add(12),
        );
        let is_limited = is_limited && is_within_limits(description.instructions(&section, &bases));
        if begin < end {
            found.push(Function {
                begin,
                end,
                entry: u32::try_from(place).ok().filter(|_| is_limited),
            });
        }
        if found.len() >= MAX_FUNCTIONS {
            break;
        }
    }
    found.sort_by_key(|function| function.begin);
    found.dedup_by_key(|function| function.begin);
    (found, length.min(data.len()))
}

/// Whether the number of `instructions` and of saved rows among them is within the limits.
fn is_within_limits(mut instructions: CallFrameInstructionIter<'_, Bytes<'_>>) -> bool {
    let mut remembered = 0;
    for _ in 0..=MAX_INSTRUCTIONS {
        match instructions.next() {
            Ok(Some(CallFrameInstruction::RememberState)) => remembered += 1,
            Ok(Some(_)) => {}
            Ok(None) => return remembered <= MAX_REMEMBERED,
            Err(_) => return false,
        }
    }
    false
}
