//! Reads the names in a file of the form "jitdump" as it grows (`tools/perf/Documentation/jitdump-specification.txt` of the Linux sources). The code in it
//! isn't read.

use std::collections::HashMap;
use std::fmt::Write;

use super::{GrowingFile, NewLines};

/// The file's mark, in the byte order of x86-64.
const MAGIC: [u8; 4] = 0x4a69_5444_u32.to_le_bytes();
/// Bytes of the file's header, and of a record's.
const HEADER: usize = 40;
const RECORD_HEADER: usize = 16;
/// Kinds of records.
const LOAD: u32 = 0;
const MOVE: u32 = 1;
/// Offsets in records in bytes: `code_addr`, `code_size`, `code_index` and the name of a `LOAD`; `new_code_addr`, `code_size` and
/// `code_index` of a `MOVE`.
const LOADED: [usize; 3] = [32, 40, 48];
const NAME: usize = 56;
const MOVED: [usize; 3] = [40, 48, 56];
/// Maximum number of bytes of a header, of a record, and of a name.
const MAX_HEADER: u64 = 4096;
const MAX_RECORD: u64 = 64 << 20;
const MAX_NAME: usize = 512;
/// Maximum number of records that are read at once, and of functions that are found again when they move.
const MAX_RECORDS: usize = 4096;
const MAX_FUNCTIONS: usize = 1 << 16;
/// The name of a function that has moved, if its own isn't known any more.
const UNKNOWN: &str = "[unknown]";

/// How far such a file has been read.
#[derive(Debug, Default)]
pub struct JitDump {
    /// The offset of the next record in bytes; 0 before the header.
    next: u64,
    /// Names by the numbers of their functions.
    names: HashMap<u64, Box<str>>,
}

impl JitDump {
    /// The offset of the next record in bytes.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The names that were finished since the last call, as lines of a perf map, maybe none. `None` if the file can't be read.
    pub fn read(&mut self, file: &dyn GrowingFile) -> Option<NewLines> {
        if self.next == 0 {
            let (header, _) = file.read(0, HEADER as u64)?;
            let length = u64::from(u32_at(&header, 8)?);
            let is_known =
                header.starts_with(&MAGIC) && (HEADER as u64..=MAX_HEADER).contains(&length);
            self.next = Some(length).filter(|_| is_known)?;
        }
        let mut lines = String::new();
        for _ in 0..MAX_RECORDS {
            if self.record(file, &mut lines).is_none() {
                break;
            }
        }
        if lines.is_empty() {
            // There are no more records, but not because they can't be read.
            file.read(self.next, RECORD_HEADER as u64)?;
        }
        let begins = false;
        Some(NewLines { begins, lines })
    }

    /// Reads the next record. `None` if it isn't finished, or isn't valid.
    fn record(&mut self, file: &dyn GrowingFile, lines: &mut String) -> Option<()> {
        let (record, length) = file.read(self.next, (NAME + MAX_NAME) as u64)?;
        let size = u64::from(u32_at(&record, 4)?);
        let end = self.next.checked_add(size)?;
        let is_whole = (RECORD_HEADER as u64..=MAX_RECORD).contains(&size) && end <= length;
        is_whole.then_some(())?;
        let record = record.get(..usize::try_from(size).ok()?.min(record.len()))?;
        // What is wrong in itself is passed over.
        let line = match u32_at(record, 0)? {
            LOAD => self.loaded(record),
            // What was there before has gone in any case.
            MOVE => numbers(record, MOVED).map(|[address, length, number]| {
                let name = self.names.get(&number).cloned();
                (address, length, name.unwrap_or_else(|| UNKNOWN.into()))
            }),
            _ => None,
        };
        if let Some((address, length, name)) = line {
            // Writing to a string never fails.
            let _ = writeln!(lines, "{address:x} {length:x} {name}");
        }
        self.next = end;
        Some(())
    }

    /// The address, length and name of a function that was loaded.
    fn loaded(&mut self, record: &[u8]) -> Option<(u64, u64, Box<str>)> {
        let [address, length, number] = numbers(record, LOADED)?;
        let name = record.get(NAME..)?;
        let end = memchr::memchr(0, name).unwrap_or(name.len().min(MAX_NAME));
        let name = String::from_utf8_lossy(name.get(..end)?);
        let name: Box<str> = name.replace(['\n', '\r'], "?").into();
        if self.names.len() < MAX_FUNCTIONS || self.names.contains_key(&number) {
            self.names.insert(number, name.clone());
        }
        Some((address, length, name))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The 64-bit numbers at these places.
fn numbers(bytes: &[u8], places: [usize; 3]) -> Option<[u64; 3]> {
    let mut numbers = [0; 3];
    for (number, at) in numbers.iter_mut().zip(places) {
        let bytes = bytes.get(at..at + 8)?;
        *number = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// A file with functions: address, number and name; without a name it moves.
    fn example(functions: &[(u64, u64, Option<&str>)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 40, 62, 0, 7].into_iter().flat_map(u32::to_le_bytes));
        bytes.resize(HEADER, 0);
        for (address, number, name) in functions {
            let (kind, body) = match name {
                Some(name) => {
                    let body = words(&[0, *address, *address, 16, *number]);
                    let code = [&body[..], name.as_bytes(), &[0], &[0xcc; 16]].concat();
                    (LOAD, code)
                }
                None => (MOVE, words(&[0, *address, 0, *address, 16, *number])),
            };
            let size = u32::try_from(RECORD_HEADER + body.len()).unwrap_or(0);
            bytes.extend([kind, size, 0, 0].into_iter().flat_map(u32::to_le_bytes));
            bytes.extend(body);
        }
        bytes
    }

    #[test]
    fn records_become_lines_once_they_are_finished() {
        let file = example(&[
            (0x7000, 1, Some("dye")),
            (0x8000, 2, Some("two\nlines")),
            (0x9000, 1, None),
            (0xa000, 77, None),
        ]);
        let mut dump = JitDump::default();
        let mut found = String::new();
        for end in 0..=file.len() {
            if let Some(new) = dump.read(&&file[..end]) {
                assert!(!new.begins);
                found.push_str(&new.lines);
            }
        }
        let expected = "7000 10 dye\n8000 10 two?lines\n9000 10 dye\na000 10 [unknown]\n";
        assert_eq!(found, expected);
    }

    #[test]
    fn damaged_files_end_where_they_are_damaged() {
        let file = example(&[(0x7000, 1, Some("dye")), (0x8000, 2, Some("weave"))]);
        let lines = |file: &[u8]| {
            let new = JitDump::default().read(&file);
            new.map(|new| new.lines).filter(|lines| !lines.is_empty())
        };
        let other = b"not such a file, but long enough for a header";
        assert_eq!(lines(other), None);
        let damaged = |at: usize, byte: u8| {
            let mut file = file.clone();
            file[at] = byte;
            lines(&file)
        };
        assert_eq!(damaged(8, 39), None, "the header's length");
        assert_eq!(damaged(HEADER + 4, 0), None, "a record without length");
        assert_eq!(damaged(HEADER + 7, 0xff), None, "a record beyond the end");
        assert_eq!(damaged(HEADER, 9).as_deref(), Some("8000 10 weave\n"));
        let long = "n".repeat(5000);
        let found = lines(&example(&[(0x7000, 1, Some(&long))])).unwrap();
        assert_eq!(found.len(), "7000 10 \n".len() + MAX_NAME);
    }
}
