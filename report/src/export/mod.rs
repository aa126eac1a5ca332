//! Recordings in formats that other tools read.
//!
//! Each module is one format and names where it is described. Files are written as they come about; what is kept in
//! memory besides the recording itself grows with its different stacks, and by 8 bytes a sample at most where a format
//! wants samples by thread or vCPU.

mod callgrind;
mod error;
mod firefox;
mod interned;
mod libraries;
mod perf_data;
mod perf_script;
mod pprof;
mod source;
mod speedscope;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

pub use error::ExportError;
pub use source::{Event, Frame, Source};

use crate::profile::folded;

/// A format that other tools read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Folded stacks, for flame graphs
    Folded,
    /// Text as perf script prints it
    PerfScript,
    /// For perf report and perf script; needs --output, beside which a folder with symbols is made
    PerfData,
    /// JSON for speedscope
    Speedscope,
    /// For pprof: protocol buffers, packed by gzip
    Pprof,
    /// JSON for the Firefox Profiler
    Firefox,
    /// For callgrind_annotate and KCachegrind
    Callgrind,
}

impl Format {
    /// Writes `source` to `out` in this format.
    ///
    /// # Errors
    /// The recording is damaged, the format has no room for it, or `out` takes no more.
    pub fn write(self, source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
        match self {
            Self::Folded => write_folded(source, out)?,
            Self::PerfData => return Err(ExportError::NeedsFile),
            Self::PerfScript => perf_script::write(source, out)?,
            Self::Speedscope => speedscope::write(source, out)?,
            Self::Pprof => pprof::write(source, out)?,
            Self::Firefox => firefox::write(source, out)?,
            Self::Callgrind => callgrind::write(source, out)?,
        }
        out.flush().map_err(ExportError::Output)
    }

    /// Writes `source` to the file at `path` in this format; what belongs to it lies beside it.
    ///
    /// # Errors
    /// As [`Self::write`], and the file can't be made.
    pub fn write_file(self, source: &Source, path: &Path) -> Result<(), ExportError> {
        if self == Self::PerfData {
            return perf_data::write(source, path);
        }
        self.write(source, &mut BufWriter::new(File::create(path)?))
    }

    /// The command that reads the file at `path`, where that isn't the file's name alone.
    pub fn reading_command(self, path: &Path) -> Option<String> {
        (self == Self::PerfData).then(|| perf_data::reading_command(path))
    }
}

fn write_folded(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    for line in folded(source.profile()) {
        writeln!(out, "{line}").map_err(ExportError::Output)?;
    }
    Ok(())
}
