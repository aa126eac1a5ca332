//! Names, files and lines of code objects.

use kvmprof_recording::file::LanguageFunction;

use super::super::ProcessMemory;
use super::layout::{Instructions, Layout};
use crate::bytes::{u32_at, u64_at};

/// Maximum number of characters of a name or a path.
const MAX_TEXT: usize = 1024;
/// Maximum number of bytes of a table of lines. Lines of a longer one are unknown.
const MAX_TABLE: usize = 64 << 10;
/// Maximum number of stretches of lines that are kept of a function.
const MAX_LINES: usize = 4096;
/// `PyASCIIObject`: the length, and the word with `kind`, `compact` and `ascii` (`Include/cpython/unicodeobject.h`).
const LENGTH: usize = 16;
const STATE: usize = 32;
const HEAD: usize = 40;
/// `PyBytesObject`: the length and the bytes.
const BYTES_LENGTH: u64 = 16;
const BYTES: u64 = 32;

/// The function with the code object at `code`.
pub fn describe(
    layout: &Layout,
    code: u64,
    memory: &mut dyn ProcessMemory,
) -> Option<LanguageFunction> {
    let function = &layout.function;
    let mut field = |offset: u64| memory.word(code.wrapping_add(offset));
    let (name, file) = (field(function.qualified_name)?, field(function.file)?);
    let table = field(function.lines)?;
    let mut first = [0; 4];
    memory.read(code.wrapping_add(function.first_line), &mut first)?;
    let first = u32::from_le_bytes(first);
    let name = text(layout, name, memory)?;
    if name.is_empty() {
        return None;
    }
    Some(LanguageFunction {
        function: 0,
        name,
        file: text(layout, file, memory)?,
        line: first,
        lines: bytes(table, memory).map_or_else(Vec::new, |table| {
            match layout.function.instructions {
                Instructions::Byte => stepped_lines(first, &table),
                Instructions::Number => paired_lines(first, &table),
                Instructions::Address(_) => lines(first, &table),
            }
        }),
    })
}

/// The string object at `address`, at most [`MAX_TEXT`] characters.
fn text(layout: &Layout, address: u64, memory: &mut dyn ProcessMemory) -> Option<String> {
    let mut head = [0; HEAD];
    memory.read(address, &mut head)?;
    let state = u32_at(&head, STATE)?;
    // Two bits for interned strings precede.
    let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 != 0, state >> 6 & 1 != 0);
    if !is_compact || !matches!(kind, 1 | 2 | 4) || is_ascii && kind != 1 {
        return None;
    }
    let length = usize::try_from(u64_at(&head, LENGTH)?).ok()?.min(MAX_TEXT);
    let width = usize::try_from(kind).ok()?;
    let begin = if is_ascii {
        layout.ascii
    } else {
        layout.compact
    };
    let mut characters = vec![0; length * width];
    memory.read(address.wrapping_add(begin), &mut characters)?;
    let characters = characters.chunks_exact(width).map(|bytes| {
        let number = bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u32::from(*byte));
        char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
    });
    Some(characters.collect())
}

/// The contents of the bytes object at `address`. `None` if there are more than [`MAX_TABLE`].
fn bytes(address: u64, memory: &mut dyn ProcessMemory) -> Option<Vec<u8>> {
    let length = memory.word(address.wrapping_add(BYTES_LENGTH))?;
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= MAX_TABLE)?;
    let mut bytes = vec![0; length];
    memory.read(address.wrapping_add(BYTES), &mut bytes)?;
    Some(bytes)
}

/// The lines by the table of locations of a function that begins at line `first` (`Objects/locations.md`): the first instruction of
/// each stretch, and its line; 0 for none.
fn lines(first: u32, table: &[u8]) -> Vec<(u32, u32)> {
    let mut lines: Vec<(u32, u32)> = Vec::new();
    let mut line = i64::from(first);
    let mut unit = 0_u32;
    let mut rest = table;
    while let Some((head, after)) = rest.split_first() {
        // Each entry begins with the highest bit set, and has no other such byte.
        let next = after.iter().position(|byte| byte & 0x80 != 0);
        let (entry, later) = after.split_at(next.unwrap_or(after.len()));
        if head & 0x80 == 0 {
            return lines;
        }
        let form = head >> 3 & 15;
        let distance = match form {
            10..=12 => i64::from(form) - 10,
            13 | 14 => signed(entry),
            _ => 0,
        };
        line = line.saturating_add(distance);
        let now = match form {
            15 => 0,
            _ => u32::try_from(line).unwrap_or(0),
        };
        if lines.last().is_none_or(|(_, before)| *before != now) {
            if lines.len() >= MAX_LINES {
                // Further lines are unknown.
                lines.push((unit, 0));
                return lines;
            }
            lines.push((unit, now));
        }
        unit = unit.saturating_add(u32::from(head & 7) + 1);
        rest = later;
    }
    // Nothing is known behind the end.
    lines.push((unit, 0));
    lines
}

/// The lines by the table of 3.10 (PEP 626, `Objects/lnotab_notes.txt`): pairs of a number of bytes of code and the distance of their line
/// from the one before, -128 for none.
fn paired_lines(first: u32, table: &[u8]) -> Vec<(u32, u32)> {
    let mut lines: Vec<(u32, u32)> = Vec::new();
    let mut line = i64::from(first);
    let mut byte = 0_u32;
    for pair in table.chunks_exact(2).take(MAX_LINES) {
        let [length, distance] = [pair[0], pair[1]];
        let distance = i8::from_le_bytes([distance]);
        let now = if distance == i8::MIN {
            0
        } else {
            line = line.saturating_add(distance.into());
            u32::try_from(line).unwrap_or(0)
        };
        if length > 0 && lines.last().is_none_or(|(_, before)| *before != now) {
            lines.push((byte / 2, now));
        }
        byte = byte.saturating_add(length.into());
    }
    // Nothing is known behind the end.
    lines.push((byte / 2, 0));
    lines
}

/// The lines by the table of 3.8 and 3.9 (`Objects/lnotab_notes.txt`): pairs of a number of bytes of code and the distance of the line of
/// what is behind them from the one before. The last line goes on to the function's end, which isn't in the table.
fn stepped_lines(first: u32, table: &[u8]) -> Vec<(u32, u32)> {
    let mut lines = vec![(0, first)];
    let mut line = i64::from(first);
    let mut byte = 0_u32;
    for pair in table.chunks_exact(2) {
        byte = byte.saturating_add(pair[0].into());
        line = line.saturating_add(i8::from_le_bytes([pair[1]]).into());
        if lines.len() >= MAX_LINES {
            // Further lines are unknown.
            lines.push((byte / 2, 0));
            return lines;
        }
        let now = u32::try_from(line).unwrap_or(0);
        match lines.last_mut() {
            // A distance may take several pairs.
            Some((unit, known)) if *unit == byte / 2 => *known = now,
            Some((_, known)) if *known == now => {}
            _ => lines.push((byte / 2, now)),
        }
    }
    lines
}

/// The signed number at the start of `bytes`: 6 bits a byte, the lowest first, bit 6 set in all but the last; the sign is the lowest bit.
fn signed(bytes: &[u8]) -> i64 {
    let mut number = 0_u64;
    for (byte, shift) in bytes.iter().zip((0..60).step_by(6)) {
        number |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            break;
        }
    }
    let size = i64::try_from(number >> 1).unwrap_or(0);
    if number & 1 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_table() {
        // A short form, one with a column, one that says none, a long form that goes back, and one without columns.
        let table = [
            0x80 | 3 << 3 | 1,
            0x11,
            0x80 | 11 << 3,
            1,
            2,
            0x80 | 15 << 3 | 2,
            0x80 | 14 << 3,
            0b111,
            0,
            0,
            0,
            0x80 | 13 << 3 | 7,
            0b100_0000 | 0b10_0000,
            0b1,
        ];
        let expected = [(0, 10), (2, 11), (3, 0), (6, 8), (7, 56), (15, 0)];
        assert_eq!(lines(10, &table), expected);
    }

    #[test]
    fn lines_are_those_of_the_pairs() {
        let table = [4, 0, 0, 3, 6, 1, 2, 0x80, 8, 0xfe, 7];
        let expected = [(0, 10), (2, 14), (5, 0), (6, 12), (10, 0)];
        assert_eq!(paired_lines(10, &table), expected);
        assert_eq!(paired_lines(10, &[]), [(0, 0)]);
        let back = paired_lines(1, &[2, 0x90]);
        assert_eq!(back, [(0, 0), (1, 0)], "before the first line");
        assert_eq!(paired_lines(1, &[2, 1].repeat(20_000)).len(), MAX_LINES + 1);
    }

    /// The table of 3.9's build of: `def f(x):`, a sum over two lines, 140 empty lines, a loop in one line with a list over two lines after
    /// it, and a return.
    #[test]
    fn lines_are_those_of_the_steps() {
        let table = [0, 1, 2, 1, 2, 255, 4, 127, 0, 15, 20, 1, 4, 255, 6, 2];
        // As `dis.findlinestarts` has them.
        let expected = [
            (0, 2),
            (1, 3),
            (2, 2),
            (4, 144),
            (14, 145),
            (16, 144),
            (19, 146),
        ];
        assert_eq!(stepped_lines(1, &table), expected);
        assert_eq!(stepped_lines(7, &[]), [(0, 7)]);
        assert_eq!(stepped_lines(1, &[2, 0x90, 7]), [(0, 1), (1, 0)]);
        let many = stepped_lines(1, &[2, 1].repeat(20_000));
        assert_eq!((many.len(), many[MAX_LINES].1), (MAX_LINES + 1, 0));
    }

    #[test]
    fn damaged_tables_give_no_other_lines() {
        assert_eq!(lines(5, &[]), [(0, 0)]);
        assert_eq!(lines(5, &[0x7f, 0x80]), []);
        assert_eq!(lines(5, &[0x80 | 13 << 3]), [(0, 5), (1, 0)]);
        // Numbers without an end, and lines before the first one.
        let long = [&[0x80 | 13 << 3][..], &[0x7f; 20]].concat();
        assert_eq!(lines(5, &long)[0], (0, 0));
        let many: Vec<u8> = (0..20_000).flat_map(|_| [0x80 | 11 << 3, 0, 0]).collect();
        let found = lines(0, &many);
        assert_eq!(found.len(), MAX_LINES + 1);
        assert_eq!(found.last().map(|(_, line)| *line), Some(0));
    }
}
