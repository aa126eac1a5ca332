//! Text on its way to people.

use std::io::{self, Write};

use kvmprof_abi::text::is_visible;

/// The escape sequences that programs of this project print: plain, bold, dim, red, yellow and blue letters (ECMA-48, SGR).
const STYLES: [&str; 6] = [
    "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[34m",
];

/// Passes text on with U+FFFD in place of everything that acts on a terminal: invisible characters ([`is_visible`]), except for tabs, line ends and
/// [`STYLES`], and invalid UTF-8.
pub struct TextWriter<'a> {
    out: &'a mut dyn Write,
    /// The first bytes of a character whose other bytes have yet to come.
    begun: Vec<u8>,
}

impl<'a> TextWriter<'a> {
    /// A writer to `out`.
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            begun: Vec::new(),
        }
    }

    /// The destination itself, for what is no text.
    pub fn as_it_is(&mut self) -> &mut dyn Write {
        self.out
    }

    /// Writes the end of a character that has never come.
    fn end_begun(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.begun).is_empty() {
            return Ok(());
        }
        write!(self.out, "{}", char::REPLACEMENT_CHARACTER)
    }
}

impl Write for TextWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut shown = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            push_shown(&mut shown, chunk.valid());
            let invalid = chunk.invalid();
            let is_begun = || std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if chunks.peek().is_none() && is_begun() {
                self.begun = invalid.to_vec();
            } else if !invalid.is_empty() {
                shown.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.out.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.end_begun()?;
        self.out.flush()
    }
}

fn push_shown(shown: &mut String, mut text: &str) {
    while let Some(character) = text.chars().next() {
        let style = STYLES.iter().find(|style| text.starts_with(**style));
        let passed = match character {
            '\x1b' => style.copied().unwrap_or_default(),
            '\r' if text.starts_with("\r\n") => "\r\n",
            '\n' | '\t' => &text[..1],
            _ if is_visible(character) => &text[..character.len_utf8()],
            _ => "",
        };
        shown.push_str(passed);
        if passed.is_empty() {
            shown.push(char::REPLACEMENT_CHARACTER);
        }
        text = &text[passed.len().max(character.len_utf8())..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut writer = TextWriter::new(&mut out);
        for piece in pieces {
            writer.write_all(piece).unwrap();
        }
        writer.flush().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn no_control_characters_pass() {
        let hostile = "a\x1b]0;x\x07\x1b[2J\u{9b}2J\u{202e}\x1b[8m\x1b\r\0";
        let expected =
            "a\u{fffd}]0;x\u{fffd}\u{fffd}[2J\u{fffd}2J\u{fffd}\u{fffd}[8m\u{fffd}\u{fffd}\u{fffd}";
        assert_eq!(shown(&[hostile.as_bytes()]), expected);
        // Nor in pieces.
        let parts: Vec<&[u8]> = hostile.as_bytes().chunks(1).collect();
        assert_eq!(shown(&parts), expected);
        assert_eq!(shown(&[b"a\xffb", b"\xc3"]), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn text_with_styles_passes() {
        let text = "\x1b[1mNAME\x1b[0m\tkäse 名\r\n  \x1b[33m████\x1b[0m\n";
        assert_eq!(shown(&[text.as_bytes()]), text);
        let plain = "käse 名\n";
        let parts: Vec<&[u8]> = plain.as_bytes().chunks(1).collect();
        assert_eq!(shown(&parts), plain);
    }
}
