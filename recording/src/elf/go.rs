//! The functions of Go programs, by the table that Go's runtime unwinds with. Programs without symbols have it, too (Go's
//! `src/debug/gosym/pclntab.go`, `src/runtime/symtab.go`).

use object::Endianness;
use object::elf::FileHeader64;

use super::file::{Elf, Header};
use super::symbols::{MAX_FUNCTIONS, MAX_NAME};
use crate::file::varint::Numbers;

/// The section's names: in programs that may run at any address the second one.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
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
    /// What offsets of functions' entries count from.
    entries: &'a [u8],
    /// The index: of each function its begin, and where its entry is.
    index: &'a [u8],
    names: &'a [u8],
    changes: &'a [u8],
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
}

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
        let mut sections = SECTIONS.iter().filter_map(|name| elf.section(name));
        Self::parse(sections.next()?.1)
    }

    /// Reads the section's header.
    fn parse(table: &'a [u8]) -> Option<Self> {
        // Instructions of one byte or more, pointers of 8 bytes.
        if table.get(4..8)? != [0, 0, 1, 8] {
            return None;
        }
        let word = |index: usize| number(table, 8 + 8 * index, 8);
        let part = |index: usize| table.get(usize::try_from(word(index)?).ok()?..);
        let earlier = |flags| Form {
            word: 8,
            name: 8,
            sizes: 20,
            flags,
        };
        let later = |flags| Form {
            word: 4,
            name: 4,
            sizes: 16,
            flags: Some(flags),
        };
        let (form, parts, text) = match number(table, 0, 4)? {
            // Go 1.2, 1.16, 1.18 and 1.20.
            0xffff_fffb => (earlier(None), None, 0),
            0xffff_fffa => (earlier(Some(41)), Some([2, 5, 6]), 0),
            // 0 if the dynamic linker is to write it there: the file doesn't tell, then.
            0xffff_fff0 => (
                later(37),
                Some([3, 6, 7]),
                word(2).filter(|text| *text > 0)?,
            ),
            0xffff_fff1 => (
                later(41),
                Some([3, 6, 7]),
                word(2).filter(|text| *text > 0)?,
            ),
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
            entries,
            index,
            names,
            changes,
            text,
            count,
        })
    }

    /// The functions in the order of their addresses. One that can't be read is left out.
    pub fn functions(&self) -> impl Iterator<Item = GoFunction<'a>> + use<'a> {
        let table = *self;
        (0..self.count).filter_map(move |index| table.function(index))
    }

    fn function(&self, index: usize) -> Option<GoFunction<'a>> {
        let Form {
            word,
            name,
            sizes,
            flags,
        } = self.form;
        let at = |place: usize| number(self.index, place * word, word);
        let begin = self.text.checked_add(at(2 * index)?)?;
        let end = self.text.checked_add(at(2 * index + 2)?)?;
        let entry = self
            .entries
            .get(usize::try_from(at(2 * index + 1)?).ok()?..)?;
        let offset = |place: usize| usize::try_from(number(entry, place, 4)?).ok();
        let name = self.names.get(offset(name)?..)?;
        let name = &name[..name.len().min(MAX_NAME)];
        let name = name.split(|byte| *byte == 0).next()?;
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
}

/// The size in bytes of the frame, without the return address above it, of a function that begins at `begin`, at its
/// instruction at `address`. `sizes` are its changes, which this is to read: pairs of a difference of sizes and one of addresses.
pub fn frame_size(sizes: &[u8], begin: u64, address: u64) -> Option<u32> {
    let mut changes = changes(sizes);
    let (mut size, mut end) = (-1_i64, begin);
    loop {
        let (difference, length) = changes.next()?;
        size += i64::from(difference);
        end = end.checked_add(length.into())?;
        if address < end {
            return u32::try_from(size).ok();
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

fn changes(sizes: &[u8]) -> impl Iterator<Item = (i32, u32)> {
    let mut rest = Numbers(sizes);
    (0..MAX_CHANGES).map_while(move |index| next_change(&mut rest, index == 0)?)
}

/// The next difference of sizes, which is signed, and of addresses. The inner `None` is the end of all.
fn next_change(rest: &mut Numbers<'_>, is_first: bool) -> Option<Option<(i32, u32)>> {
    let size = i32::try_from(rest.next_signed()?).ok()?;
    if size == 0 && !is_first {
        return Some(None);
    }
    Some(Some((size, rest.next_as()?)))
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
mod tests {
    use super::*;

    const TEXT: u64 = 0x40_1000;
    /// Frames of 0, 8 and 24 bytes: until byte 4, byte 10 and byte 32.
    const SIZES: [u8; 7] = [2, 4, 16, 6, 32, 22, 0];
    /// Offsets of the parts, which are those of later versions' headers, too.
    const NAMES: usize = 0x60;
    const CHANGES: usize = 0x80;
    const INDEX: usize = 0x90;
    const ENTRY: usize = 0x100;

    /// A table with the functions `main.work`, of 32 bytes, and `runtime.goexit`, of 16, in the form that begins with `magic`.
    fn table(magic: u32) -> Vec<u8> {
        let mut table = vec![0; 0x200];
        let mut put =
            |place: usize, bytes: &[u8]| table[place..][..bytes.len()].copy_from_slice(bytes);
        put(0, &magic.to_le_bytes());
        put(6, &[1, 8]);
        put(8, &2_u64.to_le_bytes());
        let words: &[(usize, usize)] = match magic {
            0xffff_fffb => &[],
            0xffff_fffa => &[(2, NAMES), (5, CHANGES), (6, INDEX)],
            _ => &[(2, 0x40_1000), (3, NAMES), (6, CHANGES), (7, INDEX)],
        };
        for (index, word) in words {
            put(8 + 8 * index, &(*word as u64).to_le_bytes());
        }
        put(NAMES + 1, b"main.work\0runtime.goexit\0");
        put(CHANGES, &[0]);
        put(CHANGES + 1, &SIZES);
        // Earlier versions have addresses and offsets from the table's start in place of offsets.
        let is_early = !(0xffff_fff0..=0xffff_fff1).contains(&magic);
        let is_first = magic == 0xffff_fffb;
        let base = if is_first { 0 } else { INDEX };
        let index = if is_first { 16 } else { INDEX };
        let entries = [ENTRY - base, ENTRY + 0x40 - base];
        let numbers = [0, entries[0], 32, entries[1], 48];
        for (place, mut number) in numbers.into_iter().enumerate() {
            if is_early {
                if place % 2 == 0 {
                    number += 0x40_1000;
                }
                put(index + 8 * place, &(number as u64).to_le_bytes());
            } else {
                let number = u32::try_from(number).unwrap();
                put(index + 4 * place, &number.to_le_bytes());
            }
        }
        let part = |offset: usize, base: usize| {
            let place = if is_first { offset + base } else { offset };
            u32::try_from(place).unwrap().to_le_bytes()
        };
        let (name, sizes) = if is_early { (8, 20) } else { (4, 16) };
        for (entry, named) in [(ENTRY, 1), (ENTRY + 0x40, 11)] {
            put(entry + name, &part(named, NAMES));
            put(entry + sizes, &part(1, CHANGES));
        }
        table
    }

    #[test]
    fn all_versions_tell_names_and_frames() {
        for magic in [0xffff_fffb, 0xffff_fffa, 0xffff_fff0, 0xffff_fff1] {
            let table = table(magic);
            let functions: Vec<_> = GoTable::parse(&table).unwrap().functions().collect();
            let [work, exit] = functions.as_slice() else {
                panic!("{magic:x}: {functions:?}");
            };
            for (function, bounds, name, caller) in [
                (work, (0, 32), &b"main.work"[..], GoCaller::AboveFrame),
                (exit, (32, 48), b"runtime.goexit", GoCaller::Outermost),
            ] {
                assert_eq!((function.begin - TEXT, function.end - TEXT), bounds);
                assert_eq!(
                    (function.name, function.caller),
                    (name, caller),
                    "{magic:x}"
                );
            }
            let size = |offset| frame_size(work.sizes, work.begin, work.begin + offset);
            let sizes = [0, 3, 4, 9, 10, 31].map(size);
            assert_eq!(sizes, [0, 0, 8, 8, 24, 24].map(Some));
            assert_eq!(size(32), None);
            assert_eq!(length_of_sizes(work.sizes), Some(SIZES.len()));
        }
    }

    #[test]
    fn flags_say_where_the_caller_is() {
        for (magic, place) in [(0xffff_fffa, 41), (0xffff_fff0, 37), (0xffff_fff1, 41)] {
            for (flags, caller) in [
                (IS_OUTERMOST | WRITES_STACK_POINTER, GoCaller::Outermost),
                (WRITES_STACK_POINTER, GoCaller::Elsewhere),
                (4, GoCaller::AboveFrame),
            ] {
                let mut table = table(magic);
                table[ENTRY + place] = flags;
                let first = GoTable::parse(&table).unwrap().functions().next();
                assert_eq!(first.unwrap().caller, caller, "{magic:x} {flags}");
            }
        }
    }

    /// The dynamic linker would write where the code begins.
    #[test]
    fn a_table_without_the_codes_address_is_not_used() {
        let mut table = table(0xffff_fff1);
        table[8 + 16..8 + 24].fill(0);
        assert!(GoTable::parse(&table).is_none());
    }

    #[test]
    fn damaged_tables_give_what_is_right() {
        let whole = table(0xffff_fff1);
        for length in 0..whole.len() {
            if let Some(table) = GoTable::parse(&whole[..length]) {
                assert!(table.functions().count() <= 2);
            }
        }
        let mut many = whole.clone();
        many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(GoTable::parse(&many).is_none());
        // Changes without an end.
        assert_eq!(length_of_sizes(&[2; 1000]), None);
        assert_eq!(frame_size(&[2; 4000], 0, u64::MAX), None);
        assert_eq!(frame_size(&[0x80; 10], 0, 0), None);
    }
}
