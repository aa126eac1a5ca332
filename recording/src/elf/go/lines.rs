//! Source lines and inlined functions, by the same tables as Go's own stack traces (Go's `src/runtime/symtab.go`, `symtabinl.go`), for versions
//! from 1.18 on.

use object::Endianness;
use object::elf::FileHeader64;

use super::super::file::Elf;
use super::{CallForm, GoTable, number, text_at, value_at};

/// The offsets in a function's entry, from that of the changes of its frame's size on: of the changes of its file and its line, of the number of
/// its further changes, and of its unit's first file.
const FILE: usize = 4;
const LINE: usize = 8;
const CHANGES: usize = 12;
const UNIT: usize = 16;
/// The offsets from its flags on: of the number of its further tables, and of the places of its further changes, which those of its tables follow.
const TABLES: usize = 2;
const LISTS: usize = 3;
/// Which of its further changes are those of inlined calls, and which of its tables is that of these calls (`PCDATA_InlTreeIndex`,
/// `FUNCDATA_InlTree`).
const CALL_CHANGES: usize = 2;
const CALL_TABLE: usize = 3;
/// Words of the table's header: where files of units and where names of files are.
const UNITS_PART: usize = 4;
const FILES_PART: usize = 5;
/// What a file or a table that isn't there has for its place.
const NOWHERE: u64 = u32::MAX as u64;
/// Maximum number of functions that have an address: nested inlined ones, and the one that they are in.
pub const MAX_INLINED: usize = 64;
/// Maximum number of changes that are read for an address.
const MAX_CHANGES: usize = 1 << 20;

/// A program's tables of lines and of inlined functions.
#[derive(Clone, Debug)]
pub struct GoLines {
    table: Vec<u8>,
    text: u64,
    /// What offsets of inlined calls count from; empty if that isn't known.
    function_data: Vec<u8>,
}

/// A function that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoFrame<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its source file, as the compiler was given it, and the line from 1.
    pub source: Option<(&'a [u8], u32)>,
}

impl GoLines {
    /// Those of the 64-bit file whose contents are `bytes`, which should be aligned to 8. `None` if it is no program of Go, or one of a version before 1.18.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let elf = Elf::<FileHeader64<Endianness>>::parse(bytes).ok()?;
        let (table, module) = GoTable::with_module(&elf, true)?;
        table.form.calls?;
        let function_data = module.and_then(|module| elf.bytes_at(module.function_data));
        Some(Self {
            table: table.whole.to_vec(),
            text: table.text,
            function_data: function_data.unwrap_or_default().to_vec(),
        })
    }

    /// The functions that have `address` of the file, innermost first: all but the last one are inlined. Empty if that isn't known.
    pub fn frames(&self, address: u64) -> Vec<GoFrame<'_>> {
        let lookup = Lookup::new(self, address);
        lookup.and_then(Lookup::frames).unwrap_or_default()
    }
}

/// A function, and the place in it that is looked at.
struct Lookup<'a> {
    table: GoTable<'a>,
    calls: CallForm,
    function_data: &'a [u8],
    entry: &'a [u8],
    length: u64,
    /// The place: a number of bytes from its begin on.
    place: u64,
    /// How many changes may still be read.
    left: usize,
}

impl<'a> Lookup<'a> {
    fn new(lines: &'a GoLines, address: u64) -> Option<Self> {
        let table = GoTable {
            text: lines.text,
            ..GoTable::parse(&lines.table)?
        };
        let (begin, end, entry) = table.entry(table.index_at(address)?)?;
        // A hostile table needn't be sorted.
        if !(begin..end).contains(&address) {
            return None;
        }
        Some(Self {
            table,
            calls: table.form.calls?,
            function_data: &lines.function_data,
            entry,
            length: end - begin,
            place: address - begin,
            left: MAX_CHANGES,
        })
    }

    fn frames(mut self) -> Option<Vec<GoFrame<'a>>> {
        let mut frames = Vec::new();
        while frames.len() < MAX_INLINED {
            let source = self.source();
            let Some(call) = self.call()? else {
                let name = self.name(self.entry, self.table.form.name)?;
                frames.push(GoFrame { name, source });
                return Some(frames);
            };
            let name = self.name(call, self.calls.name)?;
            frames.push(GoFrame { name, source });
            let caller = number(call, self.calls.place, 4)?;
            self.place = (caller < self.length).then_some(caller)?;
        }
        None
    }

    /// The call of the innermost function that is inlined at the place. The inner `None` if none is.
    fn call(&mut self) -> Option<Option<&'a [u8]>> {
        let changes = self.list(0, self.field(CHANGES)?, CALL_CHANGES);
        let index = match changes.filter(|changes| *changes > 0) {
            Some(changes) => self.value(changes)?,
            None => -1,
        };
        let Ok(index) = usize::try_from(index) else {
            return Some(None);
        };
        let flags = self.table.form.flags?;
        let tables = u64::from(*self.entry.get(flags + TABLES)?);
        let table = self.list(self.field(CHANGES)?, tables, CALL_TABLE);
        let table = usize::try_from(table.filter(|table| *table != NOWHERE)?).ok()?;
        let begin = index.checked_mul(self.calls.length)?.checked_add(table)?;
        let end = begin.checked_add(self.calls.length)?;
        Some(Some(self.function_data.get(begin..end)?))
    }

    /// The file and the line of the place.
    fn source(&mut self) -> Option<(&'a [u8], u32)> {
        let file = u64::try_from(self.value(self.field(FILE)?)?).ok()?;
        let line = u32::try_from(self.value(self.field(LINE)?)?).ok()?;
        let unit = self.field(UNIT)?;
        let index = usize::try_from(unit.checked_add(file)?).ok()?;
        let name = number(self.part(UNITS_PART)?, index.checked_mul(4)?, 4)?;
        let name = usize::try_from(Some(name).filter(|name| *name != NOWHERE)?).ok()?;
        let name = text_at(self.part(FILES_PART)?, name)?;
        (line > 0 && !name.is_empty()).then_some((name, line))
    }

    /// What the changes at offset `changes` say of the place. `None` if there are none.
    fn value(&mut self, changes: u64) -> Option<i32> {
        let changes = usize::try_from(Some(changes).filter(|changes| *changes > 0)?).ok()?;
        value_at(
            self.table.changes.get(changes..)?,
            self.place,
            &mut self.left,
        )
    }

    /// The name that `bytes` have at offset `place` the place of.
    fn name(&self, bytes: &[u8], place: usize) -> Option<&'a [u8]> {
        let name = usize::try_from(number(bytes, place, 4)?).ok()?;
        text_at(self.table.names, name).filter(|name| !name.is_empty())
    }

    /// The number in the function's entry that is `distance` bytes behind the changes of its frame's size.
    fn field(&self, distance: usize) -> Option<u64> {
        number(self.entry, self.table.form.sizes + distance, 4)
    }

    /// Number `index` of the list of `count` numbers that begins behind the first `skipped` ones of the entry's lists.
    fn list(&self, skipped: u64, count: u64, index: usize) -> Option<u64> {
        let place = usize::try_from(skipped).ok()?.checked_add(index)?;
        let place = place
            .checked_mul(4)?
            .checked_add(self.table.form.flags? + LISTS)?;
        (count > index as u64).then(|| number(self.entry, place, 4))?
    }

    /// The part of the table whose offset is word `word` of its header.
    fn part(&self, word: usize) -> Option<&'a [u8]> {
        let begin = usize::try_from(self.table.header(word)?).ok()?;
        self.table.whole.get(begin..)
    }
}
