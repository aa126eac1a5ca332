//! The log that prfdc and prfsnap write and prfpr reads.
//!
//! All numbers are 64-bit and little-endian: N, N addresses in ascending order, then any number of records, each a time (in seconds since
//! the start of 1970) and N + 2 counters. A killed writer leaves an incomplete record at the end, which is ignored.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};

use kvmprof_abi::prf::{EXTRA_COUNTERS, MAX_ADDRESSES, MIN_ADDRESSES, WORD_SIZE};
use rustix::fs::{FlockOperation, flock};

use super::profiler::{Counters, words};

/// Why a log can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file can't be opened, read or written.
    #[error("Cannot {operation} {}", path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// prfdc needs a new file.
    #[error("{} exists already: prfdc writes a new file; name another, or add to this one with prfsnap", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The header is damaged, or the file is something else.
    #[error("{} is no log of prfdc or prfsnap: {reason}", path.display())]
    NoLog {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// There are fewer than two records to compare.
    #[error("{} has less than two records: add one with prfsnap", path.display())]
    TooFewRecords {
        /// The file.
        path: PathBuf,
    },
    /// The log belongs to another table.
    #[error(
        "{} was written with another table of addresses ({log} in it, {device} in the profiler): name a new file",
        path.display()
    )]
    OtherTable {
        /// The file.
        path: PathBuf,
        /// Addresses in the log.
        log: usize,
        /// Addresses in the device.
        device: usize,
    },
}

/// One record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its time, in seconds since the start of 1970 in UTC.
    pub time: i64,
    /// The counters of the addresses, then user mode, then idle.
    pub counters: Vec<u64>,
}

/// A log that is being read.
pub struct Log<R> {
    input: R,
    path: PathBuf,
    addresses: Vec<u64>,
    partial: bool,
}

impl Log<BufReader<File>> {
    /// Opens the log at `path` and reads its header.
    ///
    /// # Errors
    /// [`LogError::Io`], [`LogError::NoLog`].
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let file = File::open(path).map_err(|source| failed("open", path, source))?;
        Log::read(BufReader::new(file), path)
    }
}

impl<R: Read> Log<R> {
    /// Reads the header from `input`, the file at `path`.
    ///
    /// # Errors
    /// [`LogError::Io`], [`LogError::NoLog`].
    pub fn read(mut input: R, path: &Path) -> Result<Self, LogError> {
        let no_log = |reason: &str| LogError::NoLog {
            path: path.to_path_buf(),
            reason: reason.to_owned(),
        };
        let mut read = |size: usize, lacking: &str| {
            let bytes =
                read_up_to(&mut input, size).map_err(|source| failed("read", path, source))?;
            match bytes.len() {
                length if length == size => Ok(bytes),
                0 if size == WORD_SIZE => Err(no_log("it is empty")),
                _ => Err(no_log(lacking)),
            }
        };
        let count = words(&read(WORD_SIZE, "it has less than 8 bytes")?).next();
        let count = count
            .and_then(|count| usize::try_from(count).ok())
            .filter(|count| (MIN_ADDRESSES..=MAX_ADDRESSES).contains(count));
        let count = count.ok_or_else(|| no_log("it doesn't begin with a number of addresses"))?;
        let bytes = read(count * WORD_SIZE, "its table of addresses is cut off")?;
        let addresses: Vec<u64> = words(&bytes).collect();
        if !addresses.is_sorted() {
            return Err(no_log("its addresses don't ascend"));
        }
        Ok(Self {
            input,
            path: path.to_path_buf(),
            addresses,
            partial: false,
        })
    }

    /// The table of addresses.
    pub fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn next_record(&mut self) -> Result<Option<Record>, LogError> {
        let size = record_size(self.addresses.len());
        let bytes = read_up_to(&mut self.input, size)
            .map_err(|source| failed("read", &self.path, source))?;
        if bytes.len() < size {
            self.partial = !bytes.is_empty();
            return Ok(None);
        }
        let mut words = words(&bytes);
        Ok(Some(Record {
            time: words.next().unwrap_or_default().cast_signed(),
            counters: words.collect(),
        }))
    }

    /// Whether the file ended within a record.
    pub fn is_cut_off(&self) -> bool {
        self.partial
    }
}

/// What [`append`] found at the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEnd {
    /// A complete record, or nothing.
    Cleanly,
    /// An incomplete record, which the new record replaces.
    OverPart,
}

/// Appends a record of `counters` at `time` to `file`, which must be open for reading and writing; an empty file gets a
/// header first.
///
/// # Errors
/// [`LogError::OtherTable`], [`LogError::NoLog`], [`LogError::Io`]; the file has its former contents then, and perhaps
/// an incomplete record, which doesn't count.
pub fn append(
    file: &mut File,
    path: &Path,
    time: i64,
    counters: &Counters,
) -> Result<LogEnd, LogError> {
    // prfdc and prfsnap may write to one file. File systems without locks are used without them.
    let _ = flock(&*file, FlockOperation::LockExclusive);
    let appended = append_alone(file, path, time, counters);
    let _ = flock(&*file, FlockOperation::Unlock);
    appended
}

fn append_alone(
    file: &mut File,
    path: &Path,
    time: i64,
    counters: &Counters,
) -> Result<LogEnd, LogError> {
    let io = |operation| move |source| failed(operation, path, source);
    let size = file.metadata().map_err(io("read"))?.len();
    let count = counters.addresses.len();
    let header_size = length((1 + count) * WORD_SIZE);
    let mut bytes = Vec::new();
    let mut end = size;
    if size == 0 {
        push(&mut bytes, length(count));
        for address in &counters.addresses {
            push(&mut bytes, *address);
        }
    } else {
        file.rewind().map_err(io("read"))?;
        let log = Log::read(&mut *file, path)?;
        if log.addresses() != counters.addresses {
            return Err(LogError::OtherTable {
                path: path.to_path_buf(),
                log: log.addresses().len(),
                device: count,
            });
        }
        end -= (size - header_size) % length(record_size(count));
    }
    push(&mut bytes, time.cast_unsigned());
    for counter in &counters.counters {
        push(&mut bytes, *counter);
    }
    if end < size {
        file.set_len(end).map_err(io("write"))?;
    }
    file.seek(io::SeekFrom::Start(end)).map_err(io("write"))?;
    file.write_all(&bytes).map_err(io("write"))?;
    Ok(if end < size {
        LogEnd::OverPart
    } else {
        LogEnd::Cleanly
    })
}

/// Opens the log at `path` for appending, and creates it if there is none. If it must be `new`, it must not exist.
///
/// # Errors
/// [`LogError::Exists`], [`LogError::Io`].
pub(super) fn open_to_append(path: &Path, new: bool) -> Result<File, LogError> {
    let file = kvmprof_recording::file::open_to_append(path, new);
    file.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => LogError::Exists {
            path: path.to_path_buf(),
        },
        _ => failed("open", path, source),
    })
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> LogError {
    LogError::Io {
        operation,
        path: path.to_path_buf(),
        source,
    }
}

/// Bytes of a record of a log with `addresses` addresses.
fn record_size(addresses: usize) -> usize {
    (1 + addresses + EXTRA_COUNTERS) * WORD_SIZE
}

fn length(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

fn push(bytes: &mut Vec<u8>, word: u64) {
    bytes.extend(word.to_le_bytes());
}

/// Reads `size` bytes, or less at the end.
fn read_up_to(input: &mut impl Read, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size);
    input.take(length(size)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PATH: &str = "prf.log";

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn read(bytes: &[u8]) -> Result<Log<&[u8]>, LogError> {
        Log::read(bytes, Path::new(PATH))
    }

    fn counters(first: u64) -> Counters {
        Counters {
            addresses: vec![0, 16, 32],
            counters: (first..first + 5).collect(),
        }
    }

    #[test]
    fn a_log_is_the_table_and_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PATH);
        let mut file = open_to_append(&path, true).unwrap();
        for (time, first) in [(100, 1), (200, 11)] {
            let appended = append(&mut file, &path, time, &counters(first)).unwrap();
            assert_eq!(appended, LogEnd::Cleanly);
        }
        let expected = [3, 0, 16, 32, 100, 1, 2, 3, 4, 5, 200, 11, 12, 13, 14, 15];
        assert_eq!(fs::read(&path).unwrap(), words(&expected));
        let mut log = Log::open(&path).unwrap();
        assert_eq!(log.addresses(), [0, 16, 32]);
        let first = log.next_record().unwrap().unwrap();
        assert_eq!((first.time, first.counters), (100, vec![1, 2, 3, 4, 5]));
        assert_eq!(log.next_record().unwrap().unwrap().time, 200);
        assert_eq!(log.next_record().unwrap(), None);
        assert!(!log.is_cut_off());
    }

    #[test]
    fn half_a_record_does_not_count_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PATH);
        let mut whole = words(&[3, 0, 16, 32, 100, 1, 2, 3, 4, 5]);
        whole.extend([1; 47]);
        fs::write(&path, &whole).unwrap();
        let mut log = Log::open(&path).unwrap();
        assert!(log.next_record().unwrap().is_some());
        assert_eq!(log.next_record().unwrap(), None);
        assert!(log.is_cut_off());

        let mut file = open_to_append(&path, false).unwrap();
        let appended = append(&mut file, &path, 200, &counters(11)).unwrap();
        assert_eq!(appended, LogEnd::OverPart);
        let mut log = Log::open(&path).unwrap();
        assert_eq!(log.next_record().unwrap().unwrap().time, 100);
        assert_eq!(log.next_record().unwrap().unwrap().time, 200);
        assert!(log.next_record().unwrap().is_none() && !log.is_cut_off());
    }

    #[test]
    fn other_files_are_refused_as_logs_and_unchanged() {
        let absurd = words(&[u64::MAX, 0, 16, 32]);
        for (bytes, reason) in [
            (vec![], "it is empty"),
            (b"text".to_vec(), "less than 8 bytes"),
            (b"a letter to a friend".to_vec(), "number of addresses"),
            (absurd, "number of addresses"),
            (words(&[2, 0, 16]), "number of addresses"),
            (words(&[3, 0, 16]), "cut off"),
            (words(&[3, 0, 32, 16]), "don't ascend"),
        ] {
            let Err(error) = read(&bytes) else {
                panic!("{bytes:?} is a log");
            };
            assert!(error.to_string().contains(reason), "{bytes:?}: {error}");
            if bytes.is_empty() {
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(PATH);
            fs::write(&path, &bytes).unwrap();
            let mut file = open_to_append(&path, false).unwrap();
            let error = append(&mut file, &path, 1, &counters(1)).unwrap_err();
            assert!(matches!(error, LogError::NoLog { .. }), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn a_log_of_another_table_is_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PATH);
        let bytes = words(&[4, 0, 16, 32, 48]);
        fs::write(&path, &bytes).unwrap();
        let mut file = open_to_append(&path, false).unwrap();
        let error = append(&mut file, &path, 1, &counters(1)).unwrap_err();
        assert!(matches!(
            error,
            LogError::OtherTable {
                log: 4,
                device: 3,
                ..
            }
        ));
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}
