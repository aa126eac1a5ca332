//! `kvmprof export`.

use std::io::{self, BufWriter};
use std::path::PathBuf;

use clap::Args;

use super::{CommandError, InputArguments};
use crate::export::{ExportError, Format, Source};

/// Write a recording in a format that other tools read
#[derive(Debug, Args)]
#[command(
    after_help = "For perf, in two commands:\n\n  kvmprof export --format perf-data out.kvmprof -o out.perf.data\n  \
    perf report -i out.perf.data --kallsyms out.perf.data.symbols/kallsyms\n\nThe folder out.perf.data.symbols has the \
    names of the guest's functions; it stays where it was made."
)]
pub struct ExportArguments {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The format
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Format,
    /// Where to; standard output if not given
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    input: InputArguments,
}

impl ExportArguments {
    /// Reads the recording and writes it in the other format.
    ///
    /// # Errors
    /// The recording can't be read, or the result written.
    pub fn execute(&self) -> Result<(), CommandError> {
        let (recording, profile) = self.input.open(&self.file)?;
        let source = Source::new(recording, profile);
        match &self.output {
            None => {
                let mut out = BufWriter::new(io::stdout().lock());
                self.format.write(&source, &mut out).map_err(failure)
            }
            Some(path) => {
                let written = self.format.write_file(&source, path);
                written.map_err(|error| match error {
                    ExportError::Output(source) => CommandError::Write {
                        path: path.clone(),
                        source,
                    },
                    other => failure(other),
                })?;
                if let Some(command) = self.format.reading_command(path) {
                    println!("{command}");
                }
                Ok(())
            }
        }
    }
}

fn failure(error: ExportError) -> CommandError {
    match error {
        ExportError::Recording(error) => CommandError::Recording(error),
        ExportError::Output(error) => CommandError::Output(error),
        error @ (ExportError::TooMany(_) | ExportError::NeedsFile) => CommandError::Export(error),
    }
}
