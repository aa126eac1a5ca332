//! Functions of languages in a recording.

use serde::{Deserialize, Serialize};

use super::block::{Block, Kind};

/// A function that frames of a language are of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LanguageFunction {
    /// The number by which frames refer to it ([`crate::LanguageFrame::function`]).
    pub function: u64,
    /// Its name.
    pub name: String,
    /// Its source file, as its program calls it.
    pub file: String,
    /// The line at which it begins; 0 if unknown.
    pub line: u32,
    /// From which offset on which line of the file is executed, by offset. Line 0 is unknown.
    pub lines: Vec<(u32, u32)>,
}

/// Functions of languages, in any order. If a recording has a number more than once, the first one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LanguageFunctions {
    /// The functions.
    pub functions: Vec<LanguageFunction>,
}

impl LanguageFunction {
    /// The line that is executed at `offset`; `None` if that is unknown.
    pub fn line_at(&self, offset: u32) -> Option<u32> {
        let after = self.lines.partition_point(|(begin, _)| *begin <= offset);
        let (_, line) = self.lines.get(after.checked_sub(1)?)?;
        (*line > 0).then_some(*line)
    }
}

impl LanguageFunctions {
    /// The block for them. `None` when it would be too long.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        Block::encode(Kind::Functions, &serde_json::to_vec(self).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_reach_to_the_next_ones() {
        let function = LanguageFunction {
            lines: vec![(2, 10), (5, 0), (8, 12)],
            ..LanguageFunction::default()
        };
        let lines = [0, 1, 2, 4, 5, 7, 8, 1000].map(|offset| function.line_at(offset));
        let (ten, twelve) = (Some(10), Some(12));
        assert_eq!(lines, [None, None, ten, ten, None, None, twelve, twelve]);
    }
}
