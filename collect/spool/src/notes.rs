//! A sink's progress on the disk. It is written for each request, so that a note takes one flush, and no additional room.
//!
//! The file has two slots, which are written in turn. If a crash cuts a note off, the note before it is still in the other slot, as long as the
//! disk changes no bytes except those that are written (SQLite assumes that, too: <https://www.sqlite.org/psow.html>).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flate2::Crc;

use super::files::Folder;
use super::{Progress, SpoolError};

/// Length of a slot in bytes: far above what a progress needs, and half of a page, so that the file has one block.
const SLOT: usize = 2048;

/// The name of a sink's file.
fn file_name(sink: &str) -> String {
    format!("sink-{sink}.notes")
}

/// The name of an earlier release's file.
fn former_name(sink: &str) -> String {
    format!("sink-{sink}.json")
}

/// What [`Notes::open`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedNotes {
    /// The file.
    File,
    /// No file of this release.
    Nothing,
    /// A damaged file, which was set aside.
    Damaged,
}

/// A sink's file.
#[derive(Debug)]
pub struct Notes {
    path: PathBuf,
    name: String,
    /// `None` until the file has been written.
    file: Option<File>,
    /// The number of the last note, which determines its slot.
    number: u64,
    /// The last note.
    last: Option<Progress>,
}

impl Notes {
    /// The file for `sink`, and whether it exists. If only an earlier release's file exists, the progress is taken from that.
    pub fn open(folder: &Folder, sink: &str) -> Result<(Self, OpenedNotes), SpoolError> {
        let name = file_name(sink);
        let path = folder.file(&name);
        let mut notes = Self {
            path,
            name,
            file: None,
            number: 0,
            last: None,
        };
        let damaged = |source| SpoolError::Damaged {
            path: notes.path.clone(),
            source,
        };
        match read(&notes.path).map_err(damaged) {
            Ok(Some((number, progress))) => {
                notes.file = Some(open(&notes.path).map_err(damaged)?);
                (notes.number, notes.last) = (number, Some(progress));
                folder.remove(&former_name(sink))?;
                Ok((notes, OpenedNotes::File))
            }
            Ok(None) => match folder.read_json(&former_name(sink)) {
                Ok(last) => {
                    notes.last = last;
                    Ok((notes, OpenedNotes::Nothing))
                }
                Err(error) if error.is_damage() => {
                    folder.set_aside(&former_name(sink), &error)?;
                    Ok((notes, OpenedNotes::Damaged))
                }
                Err(error) => Err(error),
            },
            Err(error) if error.is_damage() => {
                folder.set_aside(&notes.name, &error)?;
                Ok((notes, OpenedNotes::Damaged))
            }
            Err(error) => Err(error),
        }
    }

    /// The last note's progress. The default if there is none.
    pub fn last(&self) -> Progress {
        self.last.unwrap_or_default()
    }

    /// Writes `progress`, which is on the disk when this returns.
    ///
    /// # Errors
    /// It can't be written. A later read returns the note before it, or, if only the flush has failed, possibly this one.
    pub fn write(&mut self, folder: &Folder, progress: &Progress) -> Result<(), SpoolError> {
        let number = self.number + 1;
        let slot = encode(number, progress).map_err(|source| folder.failed(source))?;
        let place = place_of(number);
        if let Some(file) = &self.file {
            // Neither the file's length nor its blocks change, so that only its data need a flush.
            let written = file.write_all_at(&slot, place);
            let flushed = written.and_then(|()| file.sync_data());
            flushed.map_err(|source| folder.failed(source))?;
        } else {
            let mut both = vec![b' '; 2 * SLOT];
            let start = if place == 0 { 0 } else { SLOT };
            both[start..start + SLOT].copy_from_slice(&slot);
            folder.write(&self.name, &both)?;
            self.file = Some(open(&self.path).map_err(|source| folder.failed(source))?);
        }
        (self.number, self.last) = (number, Some(*progress));
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// The offset of a note's slot in the file, in bytes.
fn place_of(number: u64) -> u64 {
    number % 2 * SLOT as u64
}

/// A note in the form of a slot: a checksum of the rest, the note's number, its text, and spaces.
fn encode(number: u64, progress: &Progress) -> io::Result<Vec<u8>> {
    let text = format!("{number} {}", serde_json::to_string(progress)?);
    let mut slot = format!("{:08x} {text}", checksum(&text)).into_bytes();
    if slot.len() >= SLOT {
        return Err(io::ErrorKind::InvalidData.into());
    }
    slot.resize(SLOT - 1, b' ');
    slot.push(b'\n');
    Ok(slot)
}

/// The note in a slot. `None` if it isn't complete.
fn decode(slot: &[u8]) -> Option<(u64, Progress)> {
    let slot = std::str::from_utf8(slot).ok()?;
    let (sum, text) = slot.trim_end().split_once(' ')?;
    if u32::from_str_radix(sum, 16).ok()? != checksum(text) {
        return None;
    }
    let (number, progress) = text.split_once(' ')?;
    Some((number.parse().ok()?, serde_json::from_str(progress).ok()?))
}

fn checksum(text: &str) -> u32 {
    let mut sum = Crc::new();
    sum.update(text.as_bytes());
    sum.sum()
}

/// The last complete note in a file's bytes.
fn last_of(bytes: &[u8]) -> Option<(u64, Progress)> {
    let slots = bytes.chunks(SLOT).take(2).filter_map(decode);
    slots.max_by_key(|(number, _)| *number)
}

/// The last note in the file at `path`. `None` if there is no file.
fn read(path: &Path) -> io::Result<Option<(u64, Progress)>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes?,
    };
    let last = last_of(&bytes);
    last.map(Some).ok_or_else(|| {
        let message = "neither of its notes is whole";
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// The progress of the sink `sink` of a running collector, whose spool is the folder `spool`. `None` if there is no note of it.
///
/// # Errors
/// The file can't be read, or was written meanwhile.
pub fn read_progress(spool: &Path, sink: &str) -> io::Result<Option<Progress>> {
    let found = read(&spool.join(file_name(sink)))?;
    Ok(found.map(|(_, progress)| progress))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use proptest::prelude::*;

    use super::*;
    use crate::{Attempt, Counts};

    fn progress(number: u64) -> Progress {
        Progress {
            next: number,
            retries: number.wrapping_mul(7),
            ..Progress::default()
        }
    }

    #[test]
    fn the_longest_note_fits() {
        let counts = Counts {
            batches: u64::MAX,
            windows: u64::MAX,
            ticks: u64::MAX,
        };
        let progress = Progress {
            next: u64::MAX,
            attempt: Some(Attempt {
                first: u64::MAX,
                last: u64::MAX,
                part: u64::MAX,
                is_sent: false,
            }),
            delivered: counts,
            lost: counts,
            refused: counts,
            unsure: counts,
            retries: u64::MAX,
        };
        let slot = encode(u64::MAX, &progress).unwrap();
        assert_eq!(slot.len(), SLOT);
        assert_eq!(decode(&slot), Some((u64::MAX, progress)));
    }

    proptest! {
        /// Each note overwrites the one before the last. Wherever the write is cut, the new or the last one can be read.
        #[test]
        fn a_truncated_note_leaves_the_previous_one(
            count in 1..6_u64,
            cut in 0..=SLOT,
            changed in prop::collection::vec(any::<u64>(), 6),
        ) {
            let mut file = vec![b' '; 2 * SLOT];
            for number in 1..=count {
                let place = usize::try_from(place_of(number)).unwrap();
                let noted = progress(changed[usize::try_from(number).unwrap() - 1]);
                let slot = encode(number, &noted).unwrap();
                let end = if number == count { cut } else { SLOT };
                file[place..place + end].copy_from_slice(&slot[..end]);
                let found = last_of(&file);
                let is_before = found.is_none_or(|(found, _)| found + 1 == number);
                prop_assert!(found == Some((number, noted)) || (end < SLOT && is_before));
                if number > 1 {
                    prop_assert!(found.is_some());
                }
            }
        }
    }

    #[test]
    fn the_last_note_is_read_again() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(&place.path().join("spool")).unwrap();
        let (mut notes, found) = Notes::open(&folder, "a").unwrap();
        assert_eq!(found, OpenedNotes::Nothing);
        // Neither the folder nor the file's length changes: a flush of its data suffices.
        let file = || {
            let found = fs::metadata(folder.file(&file_name("a"))).unwrap();
            (found.ino(), found.len())
        };
        let mut first = None;
        for number in 1..5 {
            notes.write(&folder, &progress(number)).unwrap();
            let now = file();
            assert_eq!(*first.get_or_insert(now), now);
            let (again, found) = Notes::open(&folder, "a").unwrap();
            assert_eq!(found, OpenedNotes::File);
            assert_eq!(again.last(), progress(number));
        }
        let path = folder.file(&file_name("a"));
        assert_eq!(fs::metadata(&path).unwrap().len(), 2 * SLOT as u64);
        fs::write(&path, "").unwrap();
        let (damaged, found) = Notes::open(&folder, "a").unwrap();
        assert_eq!((damaged.last(), found), (progress(0), OpenedNotes::Damaged));
        assert!(!path.exists() && folder.file("sink-a.notes.damaged").exists());
    }

    #[test]
    fn notes_of_earlier_releases_are_migrated() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(&place.path().join("spool")).unwrap();
        folder.write_json(&former_name("a"), &progress(7)).unwrap();
        let (mut notes, found) = Notes::open(&folder, "a").unwrap();
        assert_eq!((notes.last(), found), (progress(7), OpenedNotes::Nothing));
        let last = notes.last();
        notes.write(&folder, &last).unwrap();
        let (notes, found) = Notes::open(&folder, "a").unwrap();
        assert_eq!((notes.last(), found), (progress(7), OpenedNotes::File));
        assert!(!folder.file(&former_name("a")).exists());
    }
}
