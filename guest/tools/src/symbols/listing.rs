//! Listings: `System.map`, `/proc/kallsyms`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use kvmprof_abi::kallsyms::{KernelSymbol, is_function};

use super::{Symbol, SymbolsError};

/// Maximum length of a listing, in bytes; a distribution's kernel has some 10 MiB.
pub(super) const MAX_BYTES: usize = 128 << 20;

/// Reads a listing from a file with the first bytes `bytes`.
pub(super) fn read_file(
    bytes: Vec<u8>,
    file: File,
    path: &Path,
) -> Result<Vec<Symbol>, SymbolsError> {
    let bytes = read_rest(bytes, file, path)?;
    parse_listing(&bytes, &path.to_string_lossy()).map_err(|error| match error {
        // The first line is invalid, so it isn't a listing.
        SymbolsError::Line { line: 1, .. } => SymbolsError::NoNamelist {
            path: path.to_path_buf(),
        },
        error => error,
    })
}

/// `bytes` and the rest of `file`, which is at `path`.
pub(super) fn read_rest(
    mut bytes: Vec<u8>,
    file: File,
    path: &Path,
) -> Result<Vec<u8>, SymbolsError> {
    let limit = u64::try_from(MAX_BYTES + 1).unwrap_or(u64::MAX);
    let read = file.take(limit).read_to_end(&mut bytes);
    read.map_err(SymbolsError::read(path))?;
    if bytes.len() > MAX_BYTES {
        return Err(SymbolsError::TooLong {
            source_name: path.display().to_string(),
            limit: MAX_BYTES,
        });
    }
    Ok(bytes)
}

/// The text symbols of lines `address type name` with a hexadecimal address; a module in brackets after that is
/// ignored. Types are nm(1)'s: `t`, `T`, `w` and `W` are text. A symbol without a name is the end of one, as in the lines `ADDRESS ? [end]`
/// of the running guest's symbols. `name` is the listing's name for errors.
///
/// # Errors
/// [`SymbolsError::Line`].
pub fn parse_listing(bytes: &[u8], name: &str) -> Result<Vec<Symbol>, SymbolsError> {
    let mut symbols = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let symbol = KernelSymbol::parse(line).ok_or_else(|| SymbolsError::Line {
            source_name: name.to_owned(),
            line: index + 1,
        })?;
        if is_function(symbol.kind) || symbol.is_end() {
            let name: &[u8] = if symbol.is_end() { &[] } else { symbol.name };
            symbols.push(Symbol {
                address: symbol.address,
                name: String::from_utf8_lossy(name).into_owned(),
                global: symbol.kind.is_ascii_uppercase(),
            });
        }
    }
    Ok(symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_symbols_are_taken_from_a_listing() {
        let lines = b"0000000000000000 A __per_cpu_start\n\
            ffffffff81000000 T _text\n\
            ffffffff81000040 t local\n\
            ffffffff81000080 W weak\n\
            ffffffff82000000 D data\n\
            ffffffffc0001000 t init\t[fuse]\n\
            ffffffffc0001040 ? [end]\t[fuse]\n";
        let symbols = parse_listing(lines, "kallsyms").unwrap();
        let names: Vec<&str> = symbols.iter().map(|symbol| &*symbol.name).collect();
        assert_eq!(names, ["_text", "local", "weak", "init", ""]);
        assert_eq!(symbols[4].address, 0xffff_ffff_c000_1040);
        assert_eq!(symbols[0].address, 0xffff_ffff_8100_0000);
        assert!(symbols[0].global && !symbols[1].global);
    }

    #[test]
    fn an_invalid_line_is_named() {
        let error = parse_listing(b"10 T name\nxyz T name\n", "list").unwrap_err();
        let expected = "Line 2 of list is not 'ADDRESS TYPE NAME'";
        assert_eq!(error.to_string(), expected);
    }
}
