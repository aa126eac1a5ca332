//! Makes text safe for terminals. The text comes from guests, peers and files, and can contain anything.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use kvmprof_abi::text::{is_visible, visible};

/// `text` as a message: with U+FFFD in place of invisible characters ([`is_visible`]), but for line ends and tabs. Further lines are indented, so that none of them
/// looks like another message.
pub fn message(text: &str) -> String {
    let mut message = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => message.push_str("\n  "),
            '\t' => message.push(character),
            _ if is_visible(character) => message.push(character),
            _ => message.push(char::REPLACEMENT_CHARACTER),
        }
    }
    message
}

/// `rows`, each on a line, with U+FFFD in place of invisible characters ([`visible`]), so that a name in a row can't look like a further
/// row.
pub fn visible_rows(rows: &[String]) -> String {
    let line = |row: &String| visible(row) + "\n";
    rows.iter().map(line).collect()
}

/// Writes a JSON document and a line end, with escapes in place of invisible characters.
///
/// # Errors
/// Writing to `out` failed.
pub fn write_json(out: &mut dyn Write, document: impl fmt::Display) -> io::Result<()> {
    writeln!(out, "{}", visible_json(&document.to_string()))
}

/// The JSON text `json` with escapes in place of invisible characters, which occur only in its strings.
pub fn visible_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || is_visible(character) {
            escaped.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b[2J\u{9b}b\u{202e}c\u{200b}";

    #[test]
    fn no_control_characters_are_left() {
        assert_eq!(message(HOSTILE), "a\u{fffd}[2J\u{fffd}b\u{fffd}c\u{fffd}");
        assert_eq!(message("one\ttwo\nthree\r"), "one\ttwo\n  three\u{fffd}");
    }

    #[test]
    fn a_row_is_a_line() {
        let rows = ["name  a\nname  b\t".to_owned(), "c".to_owned()];
        assert_eq!(visible_rows(&rows), "name  a\u{fffd}name  b\u{fffd}\nc\n");
        assert_eq!(visible_rows(&[]), "");
    }

    #[test]
    fn json_has_the_same_data() {
        let json = serde_json::json!({ "name": HOSTILE, "other": "\u{10fffe}" }).to_string();
        let escaped = visible_json(&json);
        assert!(escaped.is_ascii(), "{escaped}");
        let read: serde_json::Value = serde_json::from_str(&escaped).unwrap();
        assert_eq!(read["name"], HOSTILE);
        assert_eq!(read["other"], "\u{10fffe}");
    }
}
