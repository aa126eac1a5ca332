//! The tables in which HotSpot describes itself to debuggers (`src/hotspot/share/runtime/vmStructs.hpp` of the JDK's source): the places of
//! fields, the sizes of types, and constants. `libjvm.so` exports where they are, and how their entries are laid out. Most of them are
//! filled in when the library is loaded, so that they are read from the process's memory.

use std::collections::HashMap;

use kvmprof_recording::elf;

use super::super::ProcessMemory;
use crate::bytes::{i32_at, u32_at, u64_at};

/// Maximum number of entries of a table. JDK 21 has some 800 fields.
const MAX_ENTRIES: u64 = 2048;
/// Maximum number of bytes of an entry, and of a name.
const MAX_ENTRY: usize = 64;
const MAX_NAME: usize = 128;
/// Maximum offset of a field, and maximum size of a type, in bytes.
const MAX_SIZE: u64 = 4096;

/// Where a file has the variables that lead to its tables, by its own addresses.
#[derive(Debug)]
pub struct Anchors {
    fields: Anchor<5>,
    types: Anchor<2>,
    numbers: Anchor<2>,
}

/// The variables of one table: those with its address, with the distance of its entries, and with the places of an entry's parts.
#[derive(Debug)]
struct Anchor<const PARTS: usize> {
    table: u64,
    distance: u64,
    parts: [u64; PARTS],
}

impl Anchors {
    /// Those of the ELF file with these contents. `None` if it doesn't export them.
    pub fn find(contents: &[u8]) -> Option<Self> {
        let fields = ["TypeName", "FieldName", "IsStatic", "Offset", "Address"];
        Some(Self {
            fields: Anchor::find(contents, ["VMStructs", "VMStruct"], fields)?,
            types: Anchor::find(contents, ["VMTypes", "VMType"], ["TypeName", "Size"])?,
            numbers: Anchor::find(
                contents,
                ["VMIntConstants", "VMIntConstant"],
                ["Name", "Value"],
            )?,
        })
    }
}

impl<const PARTS: usize> Anchor<PARTS> {
    fn find(contents: &[u8], names: [&str; 2], parts: [&str; PARTS]) -> Option<Self> {
        let [table, entry] = names;
        let address = |name: String| Some(elf::variable(contents, &name)?.address);
        let table = address(format!("gHotSpot{table}"))?;
        let distance = address(format!("gHotSpot{entry}EntryArrayStride"))?;
        let parts = parts.map(|part| address(format!("gHotSpot{entry}Entry{part}Offset")));
        Some(Self {
            table,
            distance,
            parts: all(parts)?,
        })
    }

    /// Hands the parts of each entry to `take`, as words, the first of which is the address of a name. `None` if the table isn't there, or
    /// isn't one.
    fn read(
        &self,
        bias: u64,
        memory: &mut dyn ProcessMemory,
        mut take: impl FnMut([u64; PARTS], &mut dyn ProcessMemory) -> Option<()>,
    ) -> Option<()> {
        let variable = |at: u64, memory: &mut dyn ProcessMemory| memory.word(at.wrapping_add(bias));
        let table = variable(self.table, memory)?;
        let distance = variable(self.distance, memory)?;
        let parts = all(self.parts.map(|part| variable(part, memory)))?;
        let mut bytes = [0; MAX_ENTRY];
        let bytes = bytes.get_mut(..usize::try_from(distance).ok()?)?;
        for number in 0..MAX_ENTRIES {
            let entry = table.checked_add(number.checked_mul(distance)?)?;
            memory.read(entry, bytes)?;
            let part = |offset: u64| {
                let offset = usize::try_from(offset).ok()?;
                // Numbers have 32 bits, and may be at an entry's end.
                u64_at(bytes, offset).or_else(|| u32_at(bytes, offset).map(u64::from))
            };
            let words = all(parts.map(part))?;
            if words.first() == Some(&0) {
                return Some(());
            }
            take(words, memory)?;
        }
        None
    }
}

/// All of `values`, if there are all of them.
fn all<const COUNT: usize>(values: [Option<u64>; COUNT]) -> Option<[u64; COUNT]> {
    let is_there = values.iter().all(Option::is_some);
    is_there.then(|| values.map(Option::unwrap_or_default))
}

/// The contents of the tables.
#[derive(Debug, Default)]
pub struct Tables {
    /// Offsets of fields, by their types' names and their own.
    offsets: HashMap<(String, String), u64>,
    /// Addresses of static fields.
    places: HashMap<(String, String), u64>,
    sizes: HashMap<String, u64>,
    numbers: HashMap<String, i32>,
}

impl Tables {
    /// Reads those that `anchors` lead to, in a process whose file is `bias` from its own addresses. `None` if they aren't there yet.
    pub fn read(anchors: &Anchors, bias: u64, memory: &mut dyn ProcessMemory) -> Option<Self> {
        let mut tables = Self::default();
        let mut last = (0, String::new());
        anchors.fields.read(bias, memory, |words, memory| {
            let [of_type, field, is_static, offset, address] = words;
            if last.0 != of_type {
                last = (of_type, name(of_type, memory)?);
            }
            // Some types are entered as if they had a field, which has no name.
            let field = match field {
                0 => String::new(),
                field => name(field, memory)?,
            };
            let key = (last.1.clone(), field);
            match is_static & u64::from(u32::MAX) {
                0 => tables.offsets.insert(key, offset),
                _ => tables.places.insert(key, address),
            };
            Some(())
        })?;
        anchors
            .types
            .read(bias, memory, |[of_type, size], memory| {
                tables.sizes.insert(name(of_type, memory)?, size);
                Some(())
            })?;
        anchors
            .numbers
            .read(bias, memory, |[constant, value], memory| {
                let value = i32_at(&value.to_le_bytes(), 0)?;
                tables.numbers.insert(name(constant, memory)?, value);
                Some(())
            })?;
        Some(tables)
    }

    /// The offset of a field.
    pub fn offset(&self, of_type: &str, field: &str) -> Option<usize> {
        let offset = *self.offsets.get(&key(of_type, field))?;
        bounded(offset)
    }

    /// The address of a static field.
    pub fn place(&self, of_type: &str, field: &str) -> Option<u64> {
        let place = *self.places.get(&key(of_type, field))?;
        (place != 0).then_some(place)
    }

    /// The size of a type, in bytes.
    pub fn size(&self, of_type: &str) -> Option<usize> {
        bounded(*self.sizes.get(of_type)?)
    }

    /// A constant.
    pub fn number(&self, name: &str) -> Option<i32> {
        self.numbers.get(name).copied()
    }
}

fn key(of_type: &str, field: &str) -> (String, String) {
    (of_type.to_owned(), field.to_owned())
}

fn bounded(size: u64) -> Option<usize> {
    usize::try_from(size).ok().filter(|_| size <= MAX_SIZE)
}

/// The name at `address`, which ends with a NUL; cut off after [`MAX_NAME`] bytes.
fn name(address: u64, memory: &mut dyn ProcessMemory) -> Option<String> {
    const CHUNK: usize = 16;
    let mut bytes = Vec::new();
    let mut at = address;
    while bytes.len() < MAX_NAME {
        // Chunks end where pages do.
        let mut chunk = [0; CHUNK];
        let within = usize::try_from(at % CHUNK as u64).ok()?;
        let chunk = chunk.get_mut(within..)?;
        memory.read(at, chunk)?;
        if let Some(end) = chunk.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(chunk.get(..end)?);
            break;
        }
        bytes.extend_from_slice(chunk);
        at = at.checked_add(chunk.len() as u64)?;
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::super::test_memory::Words;
    use super::*;

    const VARIABLES: u64 = 0x10_0000_0000;
    const TABLE: u64 = 0x20_0000_0000;
    /// A word that is an address where all words are this one: names have no end there.
    const ENDLESS: u64 = 0x0101_0101_0101_0101;

    /// Variables that follow each other.
    fn anchor<const PARTS: usize>(first: u64) -> Anchor<PARTS> {
        Anchor {
            table: first,
            distance: first + 8,
            parts: std::array::from_fn(|part| first + 16 + 8 * part as u64),
        }
    }

    /// The tables at `table`, whose entries are `distance` bytes and have their parts in the first two words.
    fn read(distance: u64, table: u64, memory: &mut Words) -> Option<Tables> {
        let anchors = Anchors {
            fields: anchor(VARIABLES),
            types: anchor(VARIABLES + 7 * 8),
            numbers: anchor(VARIABLES + 11 * 8),
        };
        for number in 0..15 {
            memory.put(VARIABLES + 8 * number, 8 * (number % 2));
        }
        for first in [0, 7, 11] {
            memory.put(VARIABLES + 8 * first, table);
            memory.put(VARIABLES + 8 * first + 8, distance);
        }
        Tables::read(&anchors, 0, memory)
    }

    #[test]
    fn tables_are_bounded() {
        for distance in [0, 8, 48, 64, 65, 1 << 40, u64::MAX] {
            for table in [0, 8, VARIABLES + 0x1000, u64::MAX - 8] {
                let found = read(distance, table, &mut Words::default());
                assert!(found.is_none(), "{distance}, {table:#x}");
            }
        }
        let (mut memory, table) = (Words::default(), ENDLESS & !7);
        for number in 0..0x2000 {
            memory.put(table + 8 * number, ENDLESS);
        }
        assert!(read(16, table, &mut memory).is_none());
        assert!(memory.reads < 100_000, "{}", memory.reads);
    }

    #[test]
    fn sizes_and_places_are_plausible() {
        let mut memory = Words::default();
        // One entry, whose parts are the addresses of its names, or the name's and a number.
        memory.put(TABLE, TABLE + 0x40);
        memory.put(TABLE + 8, TABLE + 0x50);
        memory.put(TABLE + 0x10, 0);
        memory.put(TABLE + 0x40, u64::from_le_bytes(*b"Method\0\0"));
        memory.put(TABLE + 0x50, u64::from_le_bytes(*b"_code\0\0\0"));
        let tables = read(16, TABLE, &mut memory).unwrap();
        // A type with an enormous size, and a field that is said to be static.
        assert_eq!(tables.size("_code"), None);
        assert_eq!(tables.offset("Method", "_code"), None);
        assert_eq!(tables.place("Method", "_code"), Some(TABLE + 0x40));
        assert_eq!(tables.number("_code"), Some(0x40));
        assert_eq!(tables.number("Klass"), None);
    }
}
