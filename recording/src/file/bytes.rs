//! The bytes of a recording, which may be larger than the memory.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// Bytes that are read at a time.
const STEP: usize = 1 << 20;

/// The bytes of a recording when it was opened, without those that are appended later.
#[derive(Debug)]
pub struct Bytes {
    source: Source,
    length: usize,
}

#[derive(Debug)]
enum Source {
    File(File),
    /// All bytes of a source that can be read only once, such as a pipe.
    Memory(Vec<u8>),
}

impl Bytes {
    /// The bytes of the file at `path`.
    ///
    /// # Errors
    /// It can't be opened, or it is no regular file and can't be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path).map_err(|error| of_socket(path).unwrap_or(error))?;
        let about = file.metadata()?;
        if about.is_file() {
            let length = usize::try_from(about.len()).unwrap_or(usize::MAX);
            let source = Source::File(file);
            return Ok(Self { source, length });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }

    /// The number of bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Replaces `into` by the next bytes from `begin` on, about a MiB. It is empty from the end on.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(&self, begin: usize, into: &mut Vec<u8>) -> io::Result<()> {
        let wanted = self.length.saturating_sub(begin).min(STEP);
        into.clear();
        match &self.source {
            Source::Memory(bytes) => {
                let bytes = bytes.get(begin..begin + wanted);
                into.extend_from_slice(bytes.unwrap_or_default());
            }
            Source::File(file) => {
                into.resize(wanted, 0);
                let mut done = 0;
                while done < wanted {
                    let rest = into.get_mut(done..).unwrap_or_default();
                    match file.read_at(rest, (begin + done) as u64) {
                        // The file was made shorter meanwhile.
                        Ok(0) => break,
                        Ok(count) => done += count,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                into.truncate(done);
            }
        }
        Ok(())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            length: bytes.len(),
            source: Source::Memory(bytes),
        }
    }
}

/// The error of opening the socket at `path`; `None` if it is no socket. The system says that there is no such device.
fn of_socket(path: &Path) -> Option<io::Error> {
    let is_socket = path.metadata().ok()?.file_type().is_socket();
    is_socket
        .then(|| io::Error::other("it is a socket, whose guest kvmprof record --socket records"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &Bytes) -> Vec<u8> {
        let (mut all, mut step) = (Vec::new(), Vec::new());
        loop {
            bytes.read(all.len(), &mut step).unwrap();
            if step.is_empty() {
                return all;
            }
            all.append(&mut step);
        }
    }

    #[test]
    fn a_socket_and_a_folder_are_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = |path| Bytes::open(path).unwrap_err();
        assert!(error(&path).to_string().starts_with("it is a socket"));
        assert_eq!(error(folder.path()).kind(), io::ErrorKind::IsADirectory);
        let missing = folder.path().join("missing");
        assert_eq!(error(&missing).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn files_and_pipes_have_the_same_bytes() {
        let expected: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, &expected).unwrap();
        let bytes = Bytes::open(&path).unwrap();
        assert_eq!(bytes.length(), expected.len());
        assert!(all(&bytes) == expected);
        assert!(all(&expected.clone().into()) == expected);
        // The following bytes are another recording's.
        std::fs::write(&path, [&expected[..], b"more"].concat()).unwrap();
        assert!(all(&bytes) == expected);
        std::fs::write(&path, b"less").unwrap();
        assert_eq!(all(&bytes), b"less");
        let mut step = vec![1];
        bytes.read(usize::MAX, &mut step).unwrap();
        assert!(step.is_empty());
    }
}
