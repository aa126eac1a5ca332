//! The command's output folder, which comes back as a tar stream.

use std::error::Error;
use std::fs;
use std::io::Read;
use std::path::Path;

use tar::{Archive, EntryType};

use crate::LabError;

const ENTRIES_MAX: usize = 100_000;

/// Unpacks the stream into `folder`, which is made if it is missing. Writes nothing outside the folder, and only files, folders and
/// symbolic links. Calls `taken` after the last of them, before the stream's end.
pub(crate) fn unpack(
    stream: impl Read,
    folder: &Path,
    limit: u64,
    taken: impl FnOnce(),
) -> Result<(), LabError> {
    fs::create_dir_all(folder).map_err(LabError::file("create", folder))?;
    let wrong = |reason: String| LabError::OutFolder { reason };
    // One byte more than allowed, to distinguish the limit from an end.
    let mut archive = Archive::new(stream.take(limit.saturating_add(1)));
    let mut entries = 0;
    let listing = archive.entries().map_err(|error| wrong(chain(&error)))?;
    let mut failure = None;
    for entry in listing {
        entries += 1;
        let unpacked = if entries > ENTRIES_MAX {
            Err(format!("it holds more than {ENTRIES_MAX} files"))
        } else {
            entry
                .map_err(|error| chain(&error))
                .and_then(|mut entry| unpack_entry(&mut entry, folder))
        };
        if let Err(reason) = unpacked {
            failure = Some(reason);
            break;
        }
    }
    let mut rest = archive.into_inner();
    if rest.limit() == 0 {
        return Err(LabError::TooMuch {
            what: "output folder",
            limit,
        });
    }
    if let Some(reason) = failure {
        return Err(wrong(reason));
    }
    taken();
    // Padding after the last entry.
    std::io::copy(&mut rest, &mut std::io::sink())
        .map_err(LabError::file("read", "output folder"))?;
    Ok(())
}

fn unpack_entry(entry: &mut tar::Entry<impl Read>, folder: &Path) -> Result<(), String> {
    let path = entry.path().map_err(|error| chain(&error))?.into_owned();
    match entry.header().entry_type() {
        EntryType::Regular | EntryType::Directory | EntryType::Symlink => {}
        other => {
            return Err(format!(
                "{} is neither a file, a folder nor a symbolic link ({other:?})",
                path.display()
            ));
        }
    }
    match entry.unpack_in(folder) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} would lie outside of it", path.display())),
        Err(error) => Err(chain(&error)),
    }
}

/// The error with its causes: the message of tar itself only names the file.
fn chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn header(kind: EntryType, name: &[u8], size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        // This bypasses the writer's own checks, as a hostile machine would.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o640);
        header.set_cksum();
        header
    }

    fn stream(entries: &[(tar::Header, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (header, contents) in entries {
            builder.append(header, *contents).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn files_come_back_with_their_contents() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new");
        let bytes = stream(&[
            (header(EntryType::Directory, b"./sub", 0), b""),
            (header(EntryType::Regular, b"./sub/file", 3), b"\0\r\n"),
        ]);
        unpack(bytes.as_slice(), &out, LIMIT, || ()).unwrap();
        assert_eq!(fs::read(out.join("sub/file")).unwrap(), b"\0\r\n");
    }

    #[test]
    fn nothing_is_written_outside() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let bytes = stream(&[(header(EntryType::Regular, b"../escaped", 1), b"x")]);
        assert!(unpack(bytes.as_slice(), &out, LIMIT, || ()).is_err());
        let mut link = header(EntryType::Symlink, b"way", 0);
        link.set_link_name("..").unwrap();
        link.set_cksum();
        let through = stream(&[
            (link, b""),
            (header(EntryType::Regular, b"way/escaped", 1), b"x"),
        ]);
        assert!(unpack(through.as_slice(), &out, LIMIT, || ()).is_err());
        assert!(!folder.path().join("escaped").exists());
    }

    #[test]
    fn devices_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = stream(&[(header(EntryType::Char, b"device", 0), b"")]);
        let error = unpack(bytes.as_slice(), folder.path(), LIMIT, || ()).unwrap_err();
        assert!(error.to_string().contains("device is neither"), "{error}");
    }

    #[test]
    fn more_than_the_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let contents = vec![7; 4096];
        let bytes = stream(&[(header(EntryType::Regular, b"big", 4096), &contents)]);
        let error = unpack(bytes.as_slice(), folder.path(), 2048, || ()).unwrap_err();
        assert!(
            matches!(error, LabError::TooMuch { limit: 2048, .. }),
            "{error}"
        );
        // A header that announces more bytes than follow.
        let promised = header(EntryType::Regular, b"huge", 1 << 40);
        assert!(unpack(&promised.as_bytes()[..], folder.path(), LIMIT, || ()).is_err());
    }
}
