//! The names of code that programs generate at run time, as the guest's programs write them.

use serde::{Deserialize, Serialize};

use super::block::{Block, Kind};
use super::piece::json_and_text;

/// Lines of a process's perf map that were written between two moments. A process's later lines are in later blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeneratedCode {
    /// Whose lines they are, and when they were written.
    pub info: GeneratedCodeInfo,
    /// The lines: hexadecimal address, hexadecimal length, name (`tools/perf/Documentation/jit-interface.txt` of the Linux sources).
    pub lines: String,
}

/// The properties of such lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GeneratedCodeInfo {
    /// The process.
    pub pid: i32,
    /// Whether earlier lines of this process no longer count: it is another process or program with the same id, or has begun a new file.
    pub begins: bool,
    /// When they hadn't been written yet, in ns of CLOCK_MONOTONIC; a program may keep lines back for a while.
    pub since: u64,
    /// When all of them had been.
    pub until: u64,
}

impl GeneratedCode {
    /// The block for it. `None` when it would be too long.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        let mut text = serde_json::to_string(&self.info).ok()?;
        text.push('\n');
        text.push_str(&self.lines);
        Block::encode(Kind::GeneratedCode, text.as_bytes())
    }

    /// Reads a block's contents.
    pub(crate) fn decode(contents: Vec<u8>) -> Option<Self> {
        let (info, lines) = json_and_text(contents)?;
        Some(Self { info, lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_lines_as_they_are() {
        let code = GeneratedCode {
            info: GeneratedCodeInfo {
                pid: 7,
                begins: true,
                since: 10,
                until: 20,
            },
            lines: "7f00 20 Function:~dye /srv/loom.js:3\n\n7f20 8 a".to_owned(),
        };
        let block = Block::decode(&code.to_block().unwrap()).unwrap();
        assert_eq!(GeneratedCode::decode(block.contents), Some(code));
        assert_eq!(GeneratedCode::decode(b"{}".to_vec()), None);
        assert_eq!(GeneratedCode::decode(vec![b'{', b'}', b'\n', 0xff]), None);
    }
}
