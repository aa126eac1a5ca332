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
mod perf_script;
mod pprof;
mod source;
mod speedscope;

use std::io::Write;

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
            Self::PerfScript => perf_script::write(source, out)?,
            Self::Speedscope => speedscope::write(source, out)?,
            Self::Pprof => pprof::write(source, out)?,
            Self::Firefox => firefox::write(source, out)?,
            Self::Callgrind => callgrind::write(source, out)?,
        }
        out.flush().map_err(ExportError::Output)
    }
}

fn write_folded(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    for line in folded(source.profile()) {
        writeln!(out, "{line}").map_err(ExportError::Output)?;
    }
    Ok(())
}
