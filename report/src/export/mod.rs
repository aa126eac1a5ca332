//! Exports recordings in formats of other tools.
//!
//! Each module writes one format and refers to its specification. Files are written as a stream; besides the recording,
//! memory grows with the number of different stacks, by 32 bytes a sample, and by up to as many more in formats that sort samples by
//! time, thread or vCPU. The output and the tables in memory have to fit into the source's [`OutputBudget`](crate::budget::OutputBudget).

mod callgrind;
mod error;
mod events;
mod firefox;
mod perf_data;
mod perf_script;
mod pprof;
mod source;
mod speedscope;

use std::io::{BufWriter, Write};
use std::path::Path;

pub use error::ExportError;
pub use events::{Event, EventThread, Events};
pub use firefox::{Library, write_on_demand};
pub use pprof::{PprofTables, message as pprof_message, signed as pprof_number};
pub use source::Source;

use crate::budget::BudgetWriter;
use crate::profile::folded;
use kvmprof_recording::file::create_in_place;

/// A format of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Folded stacks, for flame graphs
    Folded,
    /// Text as perf script prints it
    PerfScript,
    /// For perf report and perf script; needs --output, and makes a folder with symbols beside it
    PerfData,
    /// JSON for speedscope
    Speedscope,
    /// For pprof: protocol buffers, compressed by gzip
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
    /// The recording is damaged, the format or the source's budget can't hold it, or writing to `out` failed.
    pub fn write(self, source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
        let out: &mut dyn Write = &mut BufWriter::new(BudgetWriter {
            out,
            budget: source.budget(),
        });
        match self {
            Self::Folded => write_folded(source, out)?,
            Self::PerfData => return Err(ExportError::NeedsFile),
            Self::PerfScript => perf_script::write(source, out)?,
            Self::Speedscope => speedscope::write(source, out)?,
            Self::Pprof => pprof::write(source, out)?,
            Self::Firefox => firefox::write(source, firefox::Detail::Whole, out)?,
            Self::Callgrind => callgrind::write(source, out)?,
        }
        Ok(out.flush()?)
    }

    /// Writes `source` to the file at `path` in this format, and further files of the format beside it.
    ///
    /// # Errors
    /// As [`Self::write`], and the file can't be created.
    pub fn write_file(self, source: &Source, path: &Path) -> Result<(), ExportError> {
        if self == Self::PerfData {
            return perf_data::write(source, path);
        }
        self.write(source, &mut BufWriter::new(create_in_place(path)?))
    }

    /// A command that shows the file at `path`.
    pub fn reading_command(self, path: &Path) -> String {
        let program = match self {
            Self::PerfData => return perf_data::reading_command(path),
            Self::Folded | Self::PerfScript | Self::Speedscope => "speedscope",
            Self::Pprof => "go tool pprof",
            Self::Firefox => "samply load",
            Self::Callgrind => "callgrind_annotate",
        };
        format!("{program} {}", word(path))
    }
}

/// `path` as one word of a shell command.
fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |character: char| character.is_alphanumeric() || "/._-+:@%".contains(character);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn write_folded(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    for line in folded(source.profile(), source.budget())? {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
