//! The functions of Go programs, by the table that Go's runtime unwinds with. Programs without symbols have it, too (Go's
//! `src/debug/gosym/pclntab.go`, `src/runtime/symtab.go`).

mod lines;
mod module;

use object::Endianness;
use object::elf::FileHeader64;

use super::file::{Elf, Header};
use super::symbols::{MAX_FUNCTIONS, MAX_NAME};
use crate::file::varint::Numbers;
pub use lines::{GoFrame, GoLines, MAX_INLINED};
use module::Module;

/// The names of the section that is the table: in programs that may run at any address the second one. Where C's linker links these, it makes it a
/// part of the third one.
const SECTIONS: [&str; 3] = [".gopclntab", ".data.rel.ro.gopclntab", ".data.rel.ro"];
/// The name of a section that all programs of Go from 1.13 on have.
pub const MARK: &str = ".go.buildinfo";
/// What the table's header has behind its first number: instructions of one byte or more, pointers of 8 bytes.
const KIND: [u8; 4] = [0, 0, 1, 8];
/// Maximum number of places of a section that are looked at.
const MAX_PLACES: usize = 4;
/// Maximum number of places in a function at which the size of its frame changes.
const MAX_CHANGES: usize = 256;
/// `funcFlag_TOPFRAME`, `funcFlag_SPWRITE`.
const IS_OUTERMOST: u8 = 1;
const WRITES_STACK_POINTER: u8 = 2;
/// The outermost functions of stacks, for versions without that flag (`topofstack`).
const OUTERMOST: [&[u8]; 5] = [
    b"runtime.goexit",
    b"runtime.mstart",
    b"runtime.mcall",
    b"runtime.morestack",
    b"runtime.rt0_go",
];

/// The table of a program.
#[derive(Clone, Copy, Debug)]
pub struct GoTable<'a> {
    form: Form,
    whole: &'a [u8],
    /// What offsets of functions' entries count from.
    entries: &'a [u8],
    /// The index: of each function its begin, and where its entry is.
    index: &'a [u8],
    names: &'a [u8],
    changes: &'a [u8],
    /// What functions' addresses count from; 0 in earlier versions, and if the file's table doesn't tell.
    text: u64,
    count: usize,
}

/// What a version of the table looks like.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// The length of a number in the index, in bytes.
    word: usize,
    /// The offsets in a function's entry: of its name, of the changes of its frame's size, and of its flags.
    name: usize,
    sizes: usize,
    flags: Option<usize>,
    /// `None` in versions before 1.18.
    calls: Option<CallForm>,
}

/// What inlined calls look like.
#[derive(Clone, Copy, Debug)]
struct CallForm {
    /// The length of one, and in it the offsets of the function's name and of the place of the call.
    length: usize,
    name: usize,
    place: usize,
    /// The word of the [`Module`] that says what their offsets count from.
    function_data: usize,
}

const CALLS_OF_118: CallForm = CallForm {
    length: 20,
    name: 12,
    place: 16,
    function_data: 38,
};
const CALLS_OF_120: CallForm = CallForm {
    length: 16,
    name: 4,
    place: 8,
    function_data: 40,
};

/// A function of Go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoFunction<'a> {
    /// Its first address, and the first one behind it.
    pub begin: u64,
    /// As above.
    pub end: u64,
    /// Its name.
    pub name: &'a [u8],
    /// How the size of its frame changes, for [`frame_size`].
    pub sizes: &'a [u8],
    /// What the size of its frame tells of its caller.
    pub caller: GoCaller,
}

/// Where a function's caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoCaller {
    /// Above its frame.
    AboveFrame,
    /// It has none.
    Outermost,
    /// On another stack: the function changes the stack pointer to any value.
    Elsewhere,
}

impl<'a> GoTable<'a> {
    /// The table of the 64-bit file whose contents are `bytes`, if it is a Go program.
    pub fn find(bytes: &'a [u8]) -> Option<Self> {
        Self::of_elf(&Elf::<FileHeader64<Endianness>>::parse(bytes).ok()?)
    }

    pub(super) fn of_elf<H: Header>(elf: &Elf<'a, H>) -> Option<Self> {
        Some(Self::with_module(elf, false)?.0)
    }

    /// The table, and what the program itself says of it, if that is needed or `is_wanted`.
    fn with_module<H: Header>(elf: &Elf<'a, H>, is_wanted: bool) -> Option<(Self, Option<Module>)> {
        let [alone @ .., among_others] = SECTIONS;
        if let Some((address, table)) = alone.iter().find_map(|name| elf.section(name)) {
            return Self::parse(table)?.completed(elf, address, is_wanted);
        }
        let (begin, section) = elf.section(among_others)?;
        let words = section.chunks_exact(8).enumerate();
        let places = words.filter(|(_, word)| word.ends_with(&KIND));
        places.take(MAX_PLACES).find_map(|(index, _)| {
            let table = Self::parse(section.get(8 * index..)?)?;
            let address = begin.checked_add(8 * index as u64)?;
            let found = table.completed(elf, address, true)?;
            found.1.is_some().then_some(found)
        })
    }

    /// The table, which the file has at `address`, with the code's address.
    fn completed<H: Header>(
        self,
        elf: &Elf<'a, H>,
        address: u64,
        is_wanted: bool,
    ) -> Option<(Self, Option<Module>)> {
        // From 1.26 on the table never tells it, before that not if the dynamic linker is to write it there.
        let is_needed = self.text == 0 && self.form.calls.is_some();
        if !is_needed && !is_wanted {
            return Some((self, None));
        }
        let module = Module::find(elf, address, &self);
        let text = match module {
            Some(module) => module.text,
            None if is_needed => return None,
            None => self.text,
        };
        Some((Self { text, ..self }, module))
    }

    /// Reads the section's header.
    fn parse(table: &'a [u8]) -> Option<Self> {
        if table.get(4..8)? != KIND {
            return None;
        }
        let word = |index: usize| number(table, 8 + 8 * index, 8);
        let part = |index: usize| table.get(usize::try_from(word(index)?).ok()?..);
        let earlier = |flags| Form {
            word: 8,
            name: 8,
            sizes: 20,
            flags,
            calls: None,
        };
        let later = |flags, calls| Form {
            word: 4,
            name: 4,
            sizes: 16,
            flags: Some(flags),
            calls: Some(calls),
        };
        let (form, parts, text) = match number(table, 0, 4)? {
            // Go 1.2, 1.16, 1.18 and 1.20.
            0xffff_fffb => (earlier(None), None, 0),
            0xffff_fffa => (earlier(Some(41)), Some([2, 5, 6]), 0),
            0xffff_fff0 => (later(37, CALLS_OF_118), Some([3, 6, 7]), word(2)?),
            0xffff_fff1 => (later(41, CALLS_OF_120), Some([3, 6, 7]), word(2)?),
            _ => return None,
        };
        let [names, changes, entries, index] = match parts {
            Some([names, changes, entries]) => {
                [part(names)?, part(changes)?, part(entries)?, part(entries)?]
            }
            None => [table, table, table, table.get(16..)?],
        };
        let count = usize::try_from(word(0)?).ok()?;
        let fits = count <= (index.len() / form.word).saturating_sub(1) / 2;
        (fits && count <= MAX_FUNCTIONS).then_some(Self {
            form,
            whole: table,
            entries,
            index,
            names,
            changes,
            text,
            count,
        })
    }

    /// Word number `index` of the table's header.
    fn header(&self, index: usize) -> Option<u64> {
        number(self.whole, 8 + 8 * index, 8)
    }

    /// The functions in the order of their addresses. One that can't be read is left out.
    pub fn functions(&self) -> impl Iterator<Item = GoFunction<'a>> + use<'a> {
        let table = *self;
        (0..self.count).filter_map(move |index| table.function(index))
    }

    fn function(&self, index: usize) -> Option<GoFunction<'a>> {
        let (begin, end, entry) = self.entry(index)?;
        let Form {
            name, sizes, flags, ..
        } = self.form;
        let offset = |place: usize| usize::try_from(number(entry, place, 4)?).ok();
        let name = text_at(self.names, offset(name)?)?;
        let flags = flags.map_or(Some(0), |place| entry.get(place).copied())?;
        let caller = if flags & IS_OUTERMOST != 0 || OUTERMOST.contains(&name) {
            GoCaller::Outermost
        } else if flags & WRITES_STACK_POINTER != 0 {
            GoCaller::Elsewhere
        } else {
            GoCaller::AboveFrame
        };
        let function = GoFunction {
            begin,
            end,
            name,
            sizes: self.changes.get(offset(sizes)?..)?,
            caller,
        };
        (begin < end && !name.is_empty()).then_some(function)
    }

    /// The number of the last function that begins at `address` or before it. Only for versions from 1.18 on.
    fn index_at(&self, address: u64) -> Option<usize> {
        let distance = address.checked_sub(self.text)?;
        let (functions, _) = self.index.as_chunks::<8>();
        let functions = functions.get(..self.count)?;
        let begins_before =
            |[begin @ .., _, _, _, _]: &[u8; 8]| u64::from(u32::from_le_bytes(*begin)) <= distance;
        functions.partition_point(begins_before).checked_sub(1)
    }

    /// The first address of function number `index`, the first one behind it, and its entry.
    fn entry(&self, index: usize) -> Option<(u64, u64, &'a [u8])> {
        let word = self.form.word;
        let at = |place: usize| number(self.index, place * word, word);
        let begin = self.text.checked_add(at(2 * index)?)?;
        let end = self.text.checked_add(at(2 * index + 2)?)?;
        let entry = usize::try_from(at(2 * index + 1)?).ok()?;
        Some((begin, end, self.entries.get(entry..)?))
    }
}

/// The size in bytes of the frame, without the return address above it, of a function that begins at `begin`, at its
/// instruction at `address`. `sizes` are its changes, which this is to read: pairs of a difference of sizes and one of addresses.
pub fn frame_size(sizes: &[u8], begin: u64, address: u64) -> Option<u32> {
    let distance = address.checked_sub(begin)?;
    u32::try_from(value_at(sizes, distance, &mut { MAX_CHANGES })?).ok()
}

/// The value that `changes` of a function tell of its byte number `distance`. Each one that is read takes one of `left`.
fn value_at(changes: &[u8], distance: u64, left: &mut usize) -> Option<i32> {
    let mut rest = Numbers(changes);
    let (mut value, mut end) = (-1_i32, 0_u64);
    let mut is_first = true;
    loop {
        *left = left.checked_sub(1)?;
        let (difference, length) = next_change(&mut rest, is_first)??;
        is_first = false;
        value = value.checked_add(difference)?;
        end = end.checked_add(length.into())?;
        if distance < end {
            return Some(value);
        }
    }
}

/// The number of bytes that a function's changes take, if they have an end.
pub fn length_of_sizes(sizes: &[u8]) -> Option<usize> {
    let mut rest = Numbers(sizes);
    for index in 0..=MAX_CHANGES {
        if next_change(&mut rest, index == 0)?.is_none() {
            return Some(sizes.len() - rest.0.len());
        }
    }
    None
}

/// The next difference of values, which is signed, and of addresses. The inner `None` is the end of all.
fn next_change(rest: &mut Numbers<'_>, is_first: bool) -> Option<Option<(i32, u32)>> {
    let difference = i32::try_from(rest.next_signed()?).ok()?;
    if difference == 0 && !is_first {
        return Some(None);
    }
    Some(Some((difference, rest.next_as()?)))
}

/// The text at `place`, which a NUL ends, cut off at the maximum length of a name.
fn text_at(texts: &[u8], place: usize) -> Option<&[u8]> {
    let text = texts.get(place..)?;
    let text = text.get(..MAX_NAME).unwrap_or(text);
    text.split(|byte| *byte == 0).next()
}

/// The number of `length` bytes at `place`.
fn number(bytes: &[u8], place: usize, length: usize) -> Option<u64> {
    let mut number = [0; 8];
    number
        .get_mut(..length)?
        .copy_from_slice(bytes.get(place..place.checked_add(length)?)?);
    Some(u64::from_le_bytes(number))
}

#[cfg(test)]
mod tests;
