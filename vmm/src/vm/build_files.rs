//! The files that the build of a guest's kernel has left behind, as options name them.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use kvmprof_introspection::{BuildFiles, IntrospectionError};
use kvmprof_machine::open_without_waiting;
use kvmprof_profiling::ProfilingConfig;

use super::VmError;

/// Maximum size of a file in bytes. A kernel with all of its debug information has less than 1 GiB.
const MAX_BYTES: u64 = 2 << 30;

/// A file that was read: its path, and its bytes.
pub struct ReadFile {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
}

impl ReadFile {
    /// Reads the regular file at `path`.
    ///
    /// # Errors
    /// It can't be read, isn't a regular file, or is too large.
    pub fn read(path: &Path) -> Result<Self, VmError> {
        match read(path) {
            Ok(bytes) => Ok(Self {
                path: path.to_owned(),
                bytes,
            }),
            Err(source) => Err(VmError::Read {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Its name in messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let (file, metadata) = open_without_waiting(OpenOptions::new().read(true), path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it isn't a regular file"));
    }
    if metadata.len() > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The files of `--btf` and `--symbols`. They are read before this process may open no more files, and parsed after that.
#[derive(Default)]
pub struct ReadFiles {
    btf: Option<ReadFile>,
    symbols: Option<ReadFile>,
}

impl ReadFiles {
    /// Reads those that `profiling` names.
    ///
    /// # Errors
    /// One of them can't be read.
    pub fn read(profiling: &ProfilingConfig) -> Result<Self, VmError> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(ReadFile::read).transpose();
        Ok(Self {
            btf: read(&profiling.btf)?,
            symbols: read(&profiling.symbols)?,
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.btf.is_none() && self.symbols.is_none()
    }

    /// What they say.
    ///
    /// # Errors
    /// A file is of another kind, or damaged.
    pub fn parse(self) -> Result<BuildFiles, IntrospectionError> {
        let mut files = BuildFiles::default();
        if let Some(file) = self.btf {
            files.add_types(&file.name(), &file.bytes)?;
        }
        if let Some(file) = self.symbols {
            files.add_symbols(&file.name(), &file.bytes)?;
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &Path) -> String {
        let Err(error) = ReadFile::read(path) else {
            panic!("{} was read", path.display());
        };
        let source = std::error::Error::source(&error).unwrap();
        format!("{error}: {source}")
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("System.map");
        assert!(said(&path).contains("Cannot read"));
        let owner = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, owner).unwrap();
        assert!(said(&path).contains("isn't a regular file"));
        assert!(said(Path::new("/dev/zero")).contains("isn't a regular file"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "text").unwrap();
        assert_eq!(ReadFile::read(&path).unwrap().bytes, b"text");
    }
}
