//! Reads a perf map as it grows.

use super::{GrowingFile, NewLines};

/// Maximum number of bytes that are read at once.
const MAX_STEP: u64 = 1 << 20;
/// Number of bytes at the start of the file, and before the place up to which it was read, that show whether it is still the same.
const SAMPLE: usize = 256;

/// How far a perf map has been read.
#[derive(Debug, Default)]
pub struct MapText {
    /// The number of bytes of all lines that were read.
    read: u64,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl MapText {
    /// The number of bytes of all lines that were read.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// The lines that were finished since the last call, maybe none. `None` if what was written isn't in guest memory.
    pub fn read(&mut self, file: &dyn GrowingFile) -> Option<NewLines> {
        let mut begins = false;
        if !self.is_same(file)? {
            *self = Self::default();
            begins = true;
        }
        let (mut bytes, _) = file.read(self.read, MAX_STEP)?;
        let finished = memchr::memrchr(b'\n', &bytes).map_or(0, |end| end + 1);
        bytes.truncate(finished);
        if bytes.is_empty() {
            return Some(NewLines {
                begins,
                ..NewLines::default()
            });
        }
        if self.read == 0 {
            self.first = bytes.iter().take(SAMPLE).copied().collect();
        }
        self.last = bytes[bytes.len().saturating_sub(SAMPLE)..].to_vec();
        self.read += bytes.len() as u64;
        Some(NewLines {
            begins,
            lines: String::from_utf8_lossy(&bytes).into_owned(),
        })
    }

    /// Whether the file still has what was read.
    fn is_same(&self, file: &dyn GrowingFile) -> Option<bool> {
        let has = |begin: u64, expected: &[u8]| {
            let (found, _) = file.read(begin, expected.len() as u64)?;
            Some(found == expected)
        };
        let before = self.read - self.last.len() as u64;
        Some(has(0, &self.first)? && has(before, &self.last)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &mut MapText, file: &[u8]) -> Option<(bool, String)> {
        let new = text.read(&file).unwrap();
        (new != NewLines::default()).then_some((new.begins, new.lines))
    }

    #[test]
    fn lines_are_read_once_they_are_finished() {
        let mut text = MapText::default();
        let other = "10 1 c\n20 1 b\n\u{fffd}\n30 1 d\n";
        for (file, expected) in [
            (&b""[..], None),
            (b"10 1 a", None),
            (b"10 1 a\n20 1 b", Some((false, "10 1 a\n"))),
            (b"10 1 a\n20 1 b", None),
            (
                b"10 1 a\n20 1 b\n\xff\n",
                Some((false, "20 1 b\n\u{fffd}\n")),
            ),
            // Another file, a shorter one, and none.
            (b"10 1 c\n20 1 b\n\xff\n30 1 d\n", Some((true, other))),
            (b"10 1 c\n", Some((true, "10 1 c\n"))),
            (b"", Some((true, ""))),
            (b"10 1 e\n", Some((false, "10 1 e\n"))),
        ] {
            let new = lines(&mut text, file);
            let new = new
                .as_ref()
                .map(|(begins, lines)| (*begins, lines.as_str()));
            assert_eq!(new, expected, "{file:?}");
        }
    }

    #[test]
    fn long_files_are_read_in_steps() {
        let mut text = MapText::default();
        let file = b"10 1 abcdefgh\n".repeat(200_000);
        let mut found = Vec::new();
        let mut steps = 0;
        while let Some((_, lines)) = lines(&mut text, &file) {
            found.extend(lines.into_bytes());
            steps += 1;
        }
        assert_eq!((found == file, steps), (true, 3));
        // A line without an end.
        assert_eq!(lines(&mut MapText::default(), &[b'a'; 3 << 20]), None);
    }
}
