//! Builds symbol tables like a kernel's (`kernel/kallsyms.c`, `scripts/kallsyms.c`).

use super::kernel::TEXT;

/// Tokens that stand for several characters.
const LONG_TOKENS: [(u8, &str); 4] = [
    (1, "filler_"),
    (2, "Tfil"),
    (200, "__per_cpu"),
    (255, "_task"),
];

/// The encoding of a kernel's symbol table, by kernel version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 4.6 to 4.20: 64-bit count and markers.
    Relative46,
    /// 5.0 to 6.1.
    Relative50,
    /// 6.2 and 6.3: with `kallsyms_seqs_of_names`.
    Relative62,
    /// 6.4 to 6.14: offsets after the names.
    Relative64,
    /// Since 6.15: no absolute addresses.
    Relative615,
    /// Since 7.0: each offset is relative to its own address.
    Relative70,
    /// Up to 6.3 with CONFIG_KALLSYMS_BASE_RELATIVE off.
    Absolute,
    /// 6.4 to 6.10 with CONFIG_KALLSYMS_BASE_RELATIVE off.
    Absolute64,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 8] = [
        Self::Relative46,
        Self::Relative50,
        Self::Relative62,
        Self::Relative64,
        Self::Relative615,
        Self::Relative70,
        Self::Absolute,
        Self::Absolute64,
    ];

    fn alignment(self) -> usize {
        if self == Self::Relative70 { 4 } else { 8 }
    }
}

/// A growing sequence of bytes.
#[derive(Default)]
struct Bytes {
    bytes: Vec<u8>,
    alignment: usize,
}

impl Bytes {
    fn align(&mut self) -> usize {
        let length = self.bytes.len().next_multiple_of(self.alignment);
        self.bytes.resize(length, 0);
        length
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
}

fn token(byte: u8) -> String {
    if let Some((_, long)) = LONG_TOKENS.iter().find(|(number, _)| *number == byte) {
        return (*long).to_owned();
    }
    match byte {
        b'$' | b'.' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
            char::from(byte).to_string()
        }
        _ => String::new(),
    }
}

fn compress(mut name: &str) -> Vec<u8> {
    let mut compressed = Vec::new();
    while let Some(first) = name.bytes().next() {
        match LONG_TOKENS.iter().find(|(_, long)| name.starts_with(long)) {
            Some((number, long)) => {
                compressed.push(*number);
                name = &name[long.len()..];
            }
            None => {
                compressed.push(first);
                name = &name[1..];
            }
        }
    }
    compressed
}

/// A table of `symbols` (address, type, name) to be loaded at `address`.
pub fn kallsyms(layout: Layout, symbols: &[(u64, char, &str)], address: u64) -> Vec<u8> {
    let mut symbols = symbols.to_vec();
    symbols.sort_by_key(|symbol| symbol.0);
    let mut table = Bytes {
        alignment: layout.alignment(),
        ..Bytes::default()
    };
    table.bytes.extend_from_slice(b"something else before it");
    table.align();
    if matches!(
        layout,
        Layout::Relative46 | Layout::Relative50 | Layout::Relative62 | Layout::Absolute
    ) {
        addresses(&mut table, layout, &symbols, address);
    }
    let count = u32::try_from(symbols.len()).unwrap();
    table.u32(count);
    table.align();
    let start = table.bytes.len();
    let mut markers = Vec::new();
    for (index, (_, kind, name)) in symbols.iter().enumerate() {
        if index % 256 == 0 {
            markers.push(table.bytes.len() - start);
        }
        let compressed = compress(&format!("{kind}{name}"));
        let length = compressed.len();
        if length < 0x80 {
            table.bytes.push(u8::try_from(length).unwrap());
        } else {
            table
                .bytes
                .push(u8::try_from(length & 0x7f | 0x80).unwrap());
            table.bytes.push(u8::try_from(length >> 7).unwrap());
        }
        table.bytes.extend_from_slice(&compressed);
    }
    table.align();
    for marker in markers {
        match layout {
            Layout::Relative46 => table.u64(marker as u64),
            _ => table.u32(u32::try_from(marker).unwrap()),
        }
    }
    table.align();
    if layout == Layout::Relative62 {
        sequences(&mut table, count);
    }
    let mut index = Vec::new();
    let start = table.bytes.len();
    for byte in 0..=255 {
        index.push(u16::try_from(table.bytes.len() - start).unwrap());
        table.bytes.extend_from_slice(token(byte).as_bytes());
        table.bytes.push(0);
    }
    table.align();
    for entry in index {
        table.bytes.extend_from_slice(&entry.to_le_bytes());
    }
    table.align();
    if matches!(
        layout,
        Layout::Relative64 | Layout::Relative615 | Layout::Relative70 | Layout::Absolute64
    ) {
        addresses(&mut table, layout, &symbols, address);
        sequences(&mut table, count);
    }
    table.bytes
}

fn sequences(table: &mut Bytes, count: u32) {
    for number in (0..count).rev() {
        table.bytes.extend_from_slice(&number.to_be_bytes()[1..]);
    }
    table.align();
}

fn addresses(table: &mut Bytes, layout: Layout, symbols: &[(u64, char, &str)], address: u64) {
    let base = symbols
        .iter()
        .map(|symbol| symbol.0)
        .find(|address| *address >= TEXT)
        .unwrap();
    for (symbol, ..) in symbols {
        match layout {
            Layout::Absolute | Layout::Absolute64 => table.u64(*symbol),
            Layout::Relative70 => {
                let place = address + table.bytes.len() as u64;
                let offset = i32::try_from(symbol.wrapping_sub(place).cast_signed()).unwrap();
                table.u32(offset.cast_unsigned());
            }
            Layout::Relative615 => table.u32(u32::try_from(symbol - base).unwrap()),
            _ if *symbol < base => table.u32(u32::try_from(*symbol).unwrap()),
            _ => {
                let distance = i32::try_from(symbol - base).unwrap();
                table.u32((-1 - distance).cast_unsigned());
            }
        }
    }
    table.align();
    if !matches!(
        layout,
        Layout::Absolute | Layout::Absolute64 | Layout::Relative70
    ) {
        table.u64(base);
    }
}
