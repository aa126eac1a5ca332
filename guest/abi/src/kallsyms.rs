//! Lines of `/proc/kallsyms`, of `System.map`, and of nm(1).

/// A symbol of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSymbol<'a> {
    /// Its address.
    pub address: u64,
    /// nm(1)'s letter for its type: `t`, `T`, `w` and `W` are code, capital letters global symbols.
    pub kind: u8,
    /// Its name.
    pub name: &'a [u8],
    /// Its module, in brackets; `None` for the kernel itself.
    pub module: Option<&'a [u8]>,
}

/// Whether nm(1)'s letter `kind` stands for a variable: initialized, read-only, or initially zero.
pub const fn is_variable(kind: u8) -> bool {
    matches!(kind, b'd' | b'D' | b'r' | b'R' | b'b' | b'B')
}

/// Whether nm(1)'s letter `kind` stands for code.
pub const fn is_function(kind: u8) -> bool {
    matches!(kind, b't' | b'T' | b'w' | b'W')
}

/// The type letter and the name of an [end of code](KernelSymbol::is_end).
pub const END_KIND: u8 = b'?';
/// See [`END_KIND`].
pub const END_NAME: &str = "[end]";
/// The names of the symbols that Linux has at the ends of its code.
pub const CODE_ENDS: [&str; 2] = ["_etext", "_einittext"];

impl<'a> KernelSymbol<'a> {
    /// Whether this line says where a function ends: no function is known to be at its address, nor between it and the next symbol. kvmprof
    /// writes such lines as `ADDRESS ? [end]`; of a kernel's own symbols, those of [`CODE_ENDS`] are ends.
    pub fn is_end(&self) -> bool {
        let is_name = |name: &&str| self.name == name.as_bytes();
        self.kind == END_KIND && is_name(&END_NAME) || CODE_ENDS.iter().any(is_name)
    }

    /// Reads `ADDRESS TYPE NAME [MODULE]`, with a hexadecimal address; further words are ignored. `None` for a line of another form.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        let address = core::str::from_utf8(words.next()?).ok()?;
        let address = u64::from_str_radix(address, 16).ok()?;
        let &[kind] = words.next()? else {
            return None;
        };
        Some(Self {
            address,
            kind,
            name: words.next()?,
            module: words.next().filter(|word| word.starts_with(b"[")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_address_type_name_and_optional_module() {
        let symbol = |module| {
            Some(KernelSymbol {
                address: 0xffff_ffff_c000_1000,
                kind: b't',
                name: b"init",
                module,
            })
        };
        for (line, expected) in [
            (
                "ffffffffc0001000 t init\t[fuse]\n",
                symbol(Some(&b"[fuse]"[..])),
            ),
            (" ffffffffc0001000  t init", symbol(None)),
            ("ffffffffc0001000 t init fuse", symbol(None)),
            ("xyz T name", None),
            ("10 T", None),
            ("10 TT name", None),
            ("10", None),
            ("-1 T name", None),
            ("", None),
        ] {
            assert_eq!(KernelSymbol::parse(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn an_end_marker_has_its_own_letter_and_name() {
        let is_end = |line: &str| KernelSymbol::parse(line.as_bytes()).unwrap().is_end();
        assert!(is_end("ffffffffc0001000 ? [end]"));
        assert!(is_end("ffffffffc0001000 ? [end]\t[fuse]"));
        assert!(is_end("ffffffff82000000 T _etext"));
        assert!(!is_end("ffffffffc0001000 t [end]"));
        assert!(!is_end("ffffffffc0001000 ? end"));
        assert!(!is_function(END_KIND) && !is_variable(END_KIND));
    }
}
