//! Opens recordings from a file or standard input, compressed by gzip or not.

use std::fs::File;
use std::io::{self, Cursor, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use flate2::read::MultiGzDecoder;
use kvmprof_recording::file::{FileError, Recording};
use tempfile::NamedTempFile;

use super::output::{GZIP, is_standard};
use kvmprof_cli::interrupt::Interrupt;

/// Maximum ratio of a compressed file's unpacked length to its length, and the length to which any file may be
/// unpacked. Recordings are packed already, so gzip gains little.
const MOST_GAIN: u64 = 100;
const LEAST_ROOM: u64 = 64 << 20;
/// Bytes that are copied at once.
const CHUNK: usize = 1 << 20;

/// A recording, and its temporary copy if it isn't read from its own file.
pub struct OpenRecording {
    /// The recording.
    pub recording: Recording,
    /// The file that the recording is read from, if it isn't the given one. Removed when dropped.
    pub copy: Option<NamedTempFile>,
}

/// Opens the recording at `path`, or on standard input for the path `-`, compressed by gzip or not. `interrupt` ends
/// the copying.
///
/// # Errors
/// The recording can't be read, or isn't one.
pub fn open(path: &Path, interrupt: &Interrupt) -> anyhow::Result<OpenRecording> {
    let name = if is_standard(path) {
        PathBuf::from("standard input")
    } else {
        path.to_owned()
    };
    let failed = |source| FileError::Read {
        path: name.clone(),
        source,
    };
    let mut start = Vec::new();
    let mut input: Box<dyn Read> = if is_standard(path) {
        ensure!(
            !io::stdin().is_terminal(),
            "Standard input is a terminal: pipe a recording into the command, or name its file"
        );
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(failed)?)
    };
    let beginning = (&mut input).take(GZIP.len() as u64);
    { beginning }.read_to_end(&mut start).map_err(failed)?;
    let is_packed = start == GZIP;
    if !is_packed && !is_standard(path) {
        let recording = Recording::open(path)?;
        return Ok(OpenRecording {
            recording,
            copy: None,
        });
    }
    let input = CountingReader {
        inner: Cursor::new(start).chain(input),
        count: 0,
    };
    let mut copy = NamedTempFile::new().context(
        "Cannot make a temporary file for the recording: TMPDIR names the folder for it",
    )?;
    let copied = if is_packed {
        unpack(input, copy.as_file_mut(), interrupt)
    } else {
        copy_all(input, copy.as_file_mut(), interrupt)
    };
    copied.map_err(failed)?;
    let recording = Recording::open(copy.path()).map_err(|error| renamed(error, &name))?;
    Ok(OpenRecording {
        recording,
        copy: Some(copy),
    })
}

/// Counts the bytes that are read.
struct CountingReader<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count = self.count.saturating_add(count as u64);
        Ok(count)
    }
}

fn copy_all(mut input: impl Read, copy: &mut File, interrupt: &Interrupt) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    while !interrupt.is_raised() {
        match input.read(&mut chunk)? {
            0 => break,
            count => copy.write_all(chunk.get(..count).unwrap_or_default())?,
        }
    }
    Ok(())
}

/// Unpacks as far as the input goes. A truncated input is a recording up to its end.
fn unpack<R: Read>(
    input: CountingReader<R>,
    copy: &mut File,
    interrupt: &Interrupt,
) -> io::Result<()> {
    let mut unpacker = MultiGzDecoder::new(input);
    let mut chunk = vec![0; CHUNK];
    let mut unpacked = 0_u64;
    while !interrupt.is_raised() {
        let count = match unpacker.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        };
        unpacked = unpacked.saturating_add(count as u64);
        let room = unpacker.get_ref().count.saturating_mul(MOST_GAIN);
        if unpacked > room.saturating_add(LEAST_ROOM) {
            return Err(io::Error::other(format!(
                "it unpacks to more than {MOST_GAIN} times its size, as no recording does"
            )));
        }
        copy.write_all(chunk.get(..count).unwrap_or_default())?;
    }
    Ok(())
}

/// `error` about a copy, as an error about the recording called `name`.
fn renamed(error: FileError, name: &Path) -> FileError {
    let path = name.to_owned();
    match error {
        FileError::Read { source, .. } => FileError::Read { path, source },
        FileError::NotARecording(_) => FileError::NotARecording(path),
        FileError::UnknownVersion { version, .. } => FileError::UnknownVersion { path, version },
        FileError::Empty(_) => FileError::Empty(path),
        FileError::Damaged { offset, what, .. } => FileError::Damaged { path, offset, what },
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use kvmprof_recording::file::{RecordingInfo, header};

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    fn open_bytes(bytes: &[u8]) -> anyhow::Result<OpenRecording> {
        let mut file = NamedTempFile::with_suffix(".gz").unwrap();
        file.write_all(bytes).unwrap();
        open(file.path(), &Interrupt::default())
    }

    #[test]
    fn a_truncated_packed_recording_opens() {
        let info = RecordingInfo {
            kernel: "guest".to_owned(),
            ..RecordingInfo::default()
        };
        let recording = [header().as_slice(), &info.to_block().unwrap()].concat();
        let read = |bytes: &[u8]| open_bytes(bytes).unwrap().recording.contents().unwrap();
        let whole = packed(&recording);
        assert_eq!(read(&recording).info.kernel, "guest");
        assert_eq!(read(&whole).info.kernel, "guest");
        let cut = &whole[..whole.len() - 6];
        assert_eq!(read(cut).info.kernel, "guest");
    }

    #[test]
    fn decompression_bombs_are_refused() {
        let nothing = vec![0; 80 << 20];
        let Err(error) = open_bytes(&packed(&nothing)) else {
            panic!("80 MiB of nothing are a recording");
        };
        assert!(
            format!("{error:#}").contains("unpacks to more"),
            "{error:#}"
        );
    }

    #[test]
    fn errors_name_the_users_path() {
        let Err(error) = open_bytes(&packed(b"Dear report,")) else {
            panic!("a letter is a recording");
        };
        assert!(error.to_string().contains(".gz is no recording"), "{error}");
    }
}
