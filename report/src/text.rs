//! Escapes names for display. Guests choose them and can put anything into them.

use std::fmt::Write;

pub use kvmprof_abi::text::visible;

/// `text` as HTML, for contents and quoted attributes.
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
    fn nothing_that_acts_is_left_in_html() {
        assert_eq!(
            escape("<a b='c' d=\"&\">\0"),
            "&#60;a b=&#39;c&#39; d=&#34;&#38;&#34;&#62;�"
        );
    }
}
