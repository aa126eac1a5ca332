//! Reading a recording.

use std::fs;
use std::path::{Path, PathBuf};

use kvmprof_devices::profiling::Ticks;

use super::block::{Block, HEADER, Kind, MAGIC, VERSION};
use super::samples::decode;
use super::{Account, Facts, FileError};

/// A recording in memory, as far as it is whole.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// What there is besides samples.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// What the recording is about.
    pub facts: Facts,
    /// The symbols of the guest's kernel and its modules, in the form of `/proc/kallsyms`, in the order in which they
    /// came; empty when they weren't known.
    pub symbols: String,
    /// Where every tick went, by what is in the file.
    pub account: Account,
    /// The account that the recorder closed the file with; `None` when it was cut off before.
    pub closed: Option<Account>,
    /// Bytes at the file's end that belong to no whole block.
    pub cut_off: usize,
}

impl Recording {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file can't be read, or is no recording of a known format.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let bytes = fs::read(path).map_err(|source| FileError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::of_bytes(path, bytes)
    }

    fn of_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, FileError> {
        let header = bytes.get(..HEADER);
        let header = header.filter(|header| header.starts_with(&MAGIC));
        let header = header.ok_or_else(|| FileError::NotARecording(path.to_owned()))?;
        let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if version != VERSION {
            return Err(FileError::UnknownVersion {
                path: path.to_owned(),
                version,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            bytes,
        })
    }

    /// Reads all of it: hands each run of ticks, and the frames of its sample's stack, to `each`.
    ///
    /// # Errors
    /// It was cut off before its first block, or a block that is whole makes no sense.
    pub fn read(&self, mut each: impl FnMut(&Ticks, &[u64])) -> Result<Contents, FileError> {
        let mut contents = Contents::default();
        let mut offset = HEADER;
        let mut has_facts = false;
        while let Some(block) = Block::decode(self.bytes.get(offset..).unwrap_or_default()) {
            let damaged = |what| FileError::Damaged {
                path: self.path.clone(),
                offset,
                what,
            };
            match block.kind {
                Some(Kind::Facts) => {
                    contents.facts = serde_json::from_slice(&block.contents)
                        .map_err(|_| damaged("its facts are no JSON of that form"))?;
                    has_facts = true;
                }
                Some(Kind::Symbols) => {
                    let text = String::from_utf8(block.contents)
                        .map_err(|_| damaged("its symbols are no text"))?;
                    contents.symbols.push_str(&text);
                }
                Some(Kind::Samples) => {
                    let account = &mut contents.account;
                    decode(&block.contents, |ticks, frames| {
                        enter(account, ticks);
                        each(ticks, frames);
                    })
                    .ok_or_else(|| damaged("its samples make no sense"))?;
                }
                Some(Kind::End) => {
                    let account = serde_json::from_slice(&block.contents)
                        .map_err(|_| damaged("its account is no JSON of that form"))?;
                    contents.closed = Some(account);
                }
                None => {}
            }
            offset += block.length;
        }
        contents.cut_off = self.bytes.len() - offset;
        if has_facts {
            Ok(contents)
        } else {
            Err(FileError::Empty(self.path.clone()))
        }
    }
}

/// Counts that are absurd stay where they are rather than start anew.
fn enter(account: &mut Account, ticks: &Ticks) {
    let parts = [
        (&mut account.samples, u64::from(ticks.sample.is_some())),
        (&mut account.idle, ticks.idle),
        (&mut account.stolen, ticks.stolen),
        (&mut account.lost, ticks.lost),
    ];
    for (part, count) in parts {
        *part = part.saturating_add(count);
        account.ticks = account.ticks.saturating_add(count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SamplesEncoder, header};
    use super::*;
    use kvmprof_devices::profiling::Sample;

    fn recording() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header().to_vec();
        let mut ends = Vec::new();
        let facts = serde_json::to_vec(&Facts::default()).unwrap();
        let mut add = |kind, contents: &[u8]| {
            bytes.extend(Block::encode(kind, contents).unwrap());
            ends.push(bytes.len());
        };
        add(Kind::Facts, &facts);
        add(Kind::Symbols, b"ffffffff81000000 T _text\n");
        for count in 1..4 {
            let mut encoder = SamplesEncoder::default();
            for idle in 0..count {
                let ticks = Ticks {
                    idle,
                    sample: Some(Sample::default()),
                    ..Ticks::default()
                };
                encoder.push(&ticks, &[]);
            }
            add(Kind::Samples, &encoder.take().bytes);
        }
        let account = Account {
            ticks: 10,
            samples: 6,
            idle: 4,
            ..Account::default()
        };
        add(Kind::End, &serde_json::to_vec(&account).unwrap());
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> Result<Contents, FileError> {
        Recording::of_bytes(Path::new("test"), bytes.to_vec())?.read(|_, _| {})
    }

    #[test]
    fn a_whole_file_tells_all() {
        let (bytes, _) = recording();
        let contents = read(&bytes).unwrap();
        assert_eq!(contents.closed, Some(contents.account));
        assert!(contents.account.balances());
        assert_eq!(contents.cut_off, 0);
        assert_eq!(contents.symbols, "ffffffff81000000 T _text\n");
    }

    #[test]
    fn a_file_cut_off_anywhere_opens_up_to_there() {
        let (bytes, ends) = recording();
        let samples = [0, 0, 1, 3, 6, 6];
        for length in 0..bytes.len() {
            let whole = ends.iter().filter(|end| **end <= length).count();
            match read(&bytes[..length]) {
                Ok(contents) => {
                    assert_eq!(contents.account.samples, samples[whole - 1]);
                    assert_eq!(contents.closed, None);
                    assert_eq!(contents.cut_off, length - ends[whole - 1]);
                    assert!(contents.account.balances());
                }
                Err(FileError::NotARecording(_)) => assert!(length < HEADER),
                Err(FileError::Empty(_)) => assert!((HEADER..ends[0]).contains(&length)),
                Err(error) => panic!("{length} bytes: {error}"),
            }
        }
    }

    #[test]
    fn later_formats_are_refused() {
        let (mut bytes, _) = recording();
        bytes[8] = 2;
        let error = read(&bytes).unwrap_err();
        assert!(matches!(
            error,
            FileError::UnknownVersion { version: 2, .. }
        ));
    }

    #[test]
    fn a_whole_block_of_nonsense_is_an_error() {
        let mut bytes = header().to_vec();
        bytes.extend(Block::encode(Kind::Samples, &[0xff; 9]).unwrap());
        let error = read(&bytes).unwrap_err();
        assert!(matches!(error, FileError::Damaged { offset: HEADER, .. }));
    }
}
