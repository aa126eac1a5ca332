//! The destinations of results: a file, which never replaces a recording by mistake, or standard output.

use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{bail, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use kvmprof_cli::command_line::{Console, PipeWriter};
use kvmprof_recording::file::{NewFile, is_recording};
use kvmprof_report::export::ExportError;

/// Why a command ends whose standard output can't be written.
pub const NO_OUTPUT: &str = "Cannot write to standard output";

/// The first bytes of a file compressed by gzip (RFC 1952).
pub const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Whether `path` stands for standard input or output.
pub fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// How the user of a command names the result's file.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// The option that names it.
    pub option: &'static str,
    /// Whether a recording may be replaced, by an option that forces it; `None` if there is no such option.
    pub force: Option<bool>,
}

impl Naming {
    /// A file that `--output` names; `force` says whether `--force` is given.
    pub fn output(force: bool) -> Self {
        Self {
            option: "--output",
            force: Some(force),
        }
    }
}

/// Checks that a result may be written to `output`: it is none of the `inputs`, and no other recording unless that may
/// be replaced.
///
/// # Errors
/// It is one of them, or another recording.
pub fn check_output(output: &Path, inputs: &[&Path], naming: Naming) -> anyhow::Result<()> {
    let Naming { option, force } = naming;
    if is_standard(output) {
        return Ok(());
    }
    if inputs.iter().any(|input| is_same_file(output, input)) {
        bail!(
            "{} is the recording that is read: name another file with {option}",
            output.display()
        );
    }
    match force {
        Some(true) => Ok(()),
        Some(false) => refuse_recording(
            output,
            &format!("name another file with {option}, or give --force"),
        ),
        None => refuse_recording(output, &format!("name another file with {option}")),
    }
}

/// Checks that the file at `path`, if it exists, isn't a recording. The error says what the user can do `instead`.
///
/// # Errors
/// It is one.
pub fn refuse_recording(path: &Path, instead: &str) -> anyhow::Result<()> {
    ensure!(
        !is_recording(path),
        "{} is a recording, which would be lost: {instead}",
        path.display()
    );
    Ok(())
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let inode = |path: &Path| {
        let found = path.metadata().ok()?;
        Some((found.dev(), found.ino()))
    };
    inode(one).is_some_and(|found| inode(other) == Some(found))
}

/// Whether a result for `path` has to be compressed by gzip.
pub fn is_packed_name(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "gz")
}

/// Writes a `picture` or a page to the file at `path`, or to standard output for the path `-`. Its name says whether it is compressed by gzip.
///
/// # Errors
/// It can't be written.
pub fn write_picture(path: &Path, picture: &[u8], console: &mut Console<'_>) -> anyhow::Result<()> {
    write_to(path, is_packed_name(path), console.data(), |out| {
        Ok(out.write_all(picture)?)
    })
}

/// `error` of a result for the file at `path`, or for standard output if that is `-`.
pub fn unwritten(error: ExportError, path: &Path) -> anyhow::Error {
    match error {
        ExportError::Output(source) if is_standard(path) => {
            anyhow::Error::new(source).context(NO_OUTPUT)
        }
        ExportError::Output(source) => {
            anyhow::Error::new(source).context(format!("Cannot write {}", path.display()))
        }
        other => other.into(),
    }
}

/// Lets `write` write a result to the file at `path`, or to `standard_output` for the path `-`. The file gets its name,
/// and replaces an older one, after everything is written. It is compressed by gzip if `packed`.
///
/// # Errors
/// The file can't be written; or as of `write`.
pub fn write_to(
    path: &Path,
    packed: bool,
    standard_output: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> Result<(), ExportError>,
) -> anyhow::Result<()> {
    let unwritten = |error| unwritten(error, path);
    if is_standard(path) {
        return write(standard_output).map_err(unwritten);
    }
    let failed = |source| unwritten(ExportError::Output(source));
    let file = NewFile::create(path).map_err(failed)?;
    let mut out = BufWriter::new(PipeWriter(file));
    if packed {
        let mut packer = GzEncoder::new(&mut out, Compression::default());
        write(&mut packer).map_err(unwritten)?;
        packer.finish().map_err(failed)?;
    } else {
        write(&mut out).map_err(unwritten)?;
    }
    let file = out.into_inner().map_err(io::IntoInnerError::into_error);
    file.and_then(|mut file| file.0.keep()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_failed_result_keeps_the_older_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, "old").unwrap();
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let failed = write_to(&path, false, &mut Vec::new(), |out| {
            out.write_all(b"half").unwrap();
            Err(full().into())
        });
        assert!(failed.unwrap_err().to_string().starts_with("Cannot write "));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
