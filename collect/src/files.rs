//! Reads whole files of a bounded length.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The bytes of the file at `path`.
///
/// # Errors
/// The file can't be read, or has more than `most` bytes: without an error, its end would be missing.
pub fn read_up_to(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let message = format!("it has more than {most} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// The text in the file at `path`.
///
/// # Errors
/// As for [`read_up_to`], or the file isn't UTF-8.
pub fn read_text_up_to(path: &Path, most: u64) -> io::Result<String> {
    let text = String::from_utf8(read_up_to(path, most)?);
    text.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_completely_or_not_at_all() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "12345").unwrap();
        assert_eq!(read_text_up_to(file.path(), 5).unwrap(), "12345");
        let error = read_text_up_to(file.path(), 4).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 4 bytes");
        std::fs::write(file.path(), b"\xff").unwrap();
        let error = read_text_up_to(file.path(), 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
