//! Names as they may be shown: they come from guests, which choose them as they like.

use std::fmt::Write;

/// `text` with U+FFFD in place of all that isn't visible: control characters, which terminals obey and XML
/// forbids, and those that turn the direction of what follows.
pub fn visible(text: &str) -> String {
    text.chars()
        .map(|character| {
            if is_visible(character) {
                character
            } else {
                char::REPLACEMENT_CHARACTER
            }
        })
        .collect()
}

fn is_visible(character: char) -> bool {
    let turns_direction = matches!(
        character,
        '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let is_no_character = u32::from(character) & 0xfffe == 0xfffe;
    !(character.is_control() || turns_direction || is_no_character)
}

/// `text` as HTML, within and outside of attributes' quotes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in visible(text).chars() {
        match character {
            '&' | '<' | '>' | '"' | '\'' => {
                // Writing to a string can't fail.
                let _ = write!(escaped, "&#{};", u32::from(character));
            }
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_acts_is_left() {
        assert_eq!(visible("é a\x1b[31m\n\u{202e}\u{ffff}b"), "é a�[31m���b");
        assert_eq!(
            escape("<a b='c' d=\"&\">\0"),
            "&#60;a b=&#39;c&#39; d=&#34;&#38;&#34;&#62;�"
        );
    }
}
