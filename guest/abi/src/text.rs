//! Names that a guest chose, as text that is safe to show: on a terminal, control characters are commands.

use alloc::string::String;

/// Whether `character` has no effect beyond its shape. Control characters act on terminals; others change the direction of the text around
/// them or end a line; characters of no width and blank letters make two names look like one.
pub fn is_visible(character: char) -> bool {
    let changes_direction = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let has_no_width = matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}'
            | '\u{2060}'..='\u{2064}' | '\u{206a}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    );
    let is_blank_letter = matches!(character, '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}');
    let is_noncharacter = u32::from(character) & 0xfffe == 0xfffe;
    !(character.is_control()
        || changes_direction
        || has_no_width
        || is_blank_letter
        || is_noncharacter)
}

/// `text` with U+FFFD in place of invisible characters ([`is_visible`]), including line ends and tabs, so that a name can't look like
/// further lines.
pub fn visible(text: &str) -> String {
    let shown = |character| match is_visible(character) {
        true => character,
        false => char::REPLACEMENT_CHARACTER,
    };
    text.chars().map(shown).collect()
}

/// The characters of a task's name (`comm`), up to its first NUL, with `?` for what is not UTF-8 or not visible.
pub fn task_name(comm: &[u8]) -> impl Iterator<Item = char> + '_ {
    let end = comm.iter().position(|byte| *byte == 0);
    let name = comm.get(..end.unwrap_or(comm.len())).unwrap_or_default();
    name.utf8_chunks().flat_map(|chunk| {
        let shown = |character| {
            if is_visible(character) {
                character
            } else {
                '?'
            }
        };
        let invalid = (!chunk.invalid().is_empty()).then_some('?');
        chunk.valid().chars().map(shown).chain(invalid)
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::String;

    use super::*;

    #[test]
    fn control_and_invisible_characters_are_not_visible() {
        let hidden = "\0\x07\x1b\x7f\u{85}\u{9b}\u{61c}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{2028}\u{2029}\
            \u{202a}\u{202e}\u{2060}\u{2066}\u{2069}\u{feff}\u{ffff}";
        for character in hidden.chars() {
            assert!(!is_visible(character), "{character:?}");
        }
        let first_and_last = [
            0x34f, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x180b, 0x180f, 0x206a, 0x206f, 0x3164, 0xfe00,
            0xfe0f, 0xffa0, 0xfff9, 0xfffb, 0xe_0000, 0xe_0fff,
        ];
        for character in first_and_last {
            let character = char::from_u32(character).unwrap();
            assert!(!is_visible(character), "{character:?}");
        }
        assert!("a é λ 名 🦀 \u{a0} ~".chars().all(is_visible));
    }

    #[test]
    fn no_control_characters_are_left() {
        assert_eq!(
            visible("é a\x1b[31m\n\t\u{202e}\u{ffff}b"),
            "é a\u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}b"
        );
    }

    #[test]
    fn invisible_characters_become_question_marks() {
        for (comm, shown) in [
            (&b"sh\x1b[2J\xff\0rest____"[..], "sh?[2J?"),
            (b"xxxxxxxxxxxxxxxx", "xxxxxxxxxxxxxxxx"),
            ("käse-λ\u{202e}".as_bytes(), "käse-λ?"),
            // Cut off within a character, as the kernel does.
            (&"schäl-großé".as_bytes()[..13], "schäl-groß?"),
            (b"", ""),
        ] {
            assert_eq!(task_name(comm).collect::<String>(), shown);
        }
    }
}
