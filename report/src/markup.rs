//! HTML and SVG as a type of their own: what isn't a literal of this program can only come into it as text, which is escaped.

use std::fmt::{self, Write};

use kvmprof_abi::text::is_visible;

/// HTML or SVG.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Markup(String);

impl Markup {
    /// Appends a literal.
    pub fn add(&mut self, literal: &'static str) -> &mut Self {
        self.0.push_str(literal);
        self
    }

    /// Appends text, as contents of an element or within a quoted attribute. Characters that aren't visible ([`is_visible`]) become U+FFFD.
    pub fn text(&mut self, text: impl fmt::Display) -> &mut Self {
        // Writing to a string can't fail.
        let _ = write!(EscapingWriter(&mut self.0), "{text}");
        self
    }

    /// Appends the JSON document `json` as the contents of a script element for data. No character of it can end the element, and those that
    /// aren't visible become U+FFFD.
    pub fn data(&mut self, json: &str) -> &mut Self {
        self.0.reserve(json.len());
        for character in json.chars() {
            match character {
                // In JSON it stands only in strings.
                '<' => self.0.push_str("\\u003c"),
                _ => self.0.push(shown(character)),
            }
        }
        self
    }

    /// Appends other markup.
    pub fn join(&mut self, other: &Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// The markup as it goes into a file.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Escapes what is written to it.
struct EscapingWriter<'a>(&'a mut String);

impl Write for EscapingWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' | '<' | '>' | '"' | '\'' => {
                    write!(self.0, "&#{};", u32::from(character))?;
                }
                _ => self.0.push(shown(character)),
            }
        }
        Ok(())
    }
}

fn shown(character: char) -> char {
    if is_visible(character) {
        character
    } else {
        char::REPLACEMENT_CHARACTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_literals_are_markup() {
        let mut all = Markup::default();
        all.add("<p>").text("<a b='c' d=\"&\">\0").text(7);
        let mut page = Markup::default();
        page.join(&all).add("</p>");
        let expected = "<p>&#60;a b=&#39;c&#39; d=&#34;&#38;&#34;&#62;\u{fffd}7</p>";
        assert_eq!(page.as_str(), expected);
    }

    #[test]
    fn data_stays_in_its_element_unchanged() {
        let json = serde_json::json!({ "name": "</script><!--<script>\u{202e}\"\\" }).to_string();
        let mut data = Markup::default();
        data.data(&json);
        assert!(!data.as_str().contains('<'), "{data:?}");
        let read: serde_json::Value = serde_json::from_str(data.as_str()).unwrap();
        assert_eq!(read["name"], "</script><!--<script>\u{fffd}\"\\");
    }
}
