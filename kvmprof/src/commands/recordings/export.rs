//! `kvmprof export`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::input::Input;
use super::output::{check_output, is_packed_name, is_standard, write_to};
use super::output_limit::OutputLimit;
use super::{CommandError, InputArguments};
use kvmprof_report::export::{ExportError, Format, Source};
use kvmprof_tools::command_line::{Command, Console, ExitStatus, usage};

/// Write a recording in a format that other tools read
#[derive(Debug, Args)]
#[command(
    after_help = "For perf, in two commands:\n\n  kvmprof export --format perf-data out.kvmprof -o out.perf.data\n  \
    perf report -i out.perf.data --kallsyms out.perf.data.symbols/kallsyms\n\nThe folder out.perf.data.symbols has the \
    names of the guest's functions; leave it where it was made.\n\n\
    Exit status: 0; 1 when the recording cannot be read or has nothing of what was chosen, or the file cannot be written; \
    2 for wrong options."
)]
pub struct ExportArguments {
    /// The recording; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The format
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Format,
    /// The file; - is standard output; a name that ends in .gz has it packed by gzip [default: standard output]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Replace the output file even if it is a recording
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    limit: OutputLimit,
}

impl Command for ExportArguments {
    /// Reads the recording and writes it in the other format.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let output = self.output.as_deref().unwrap_or(Path::new("-"));
        check_output(output, &[&self.file], self.force)?;
        let Input {
            recording,
            profile,
            copy: _copy,
        } = self.input.open(&self.file, console)?;
        let room = self.limit.room(recording.length());
        let source = Source::new(recording, profile).with_room(room);
        if self.format == Format::PerfData && !is_standard(output) {
            self.write_perf_data(&source, output, console)?;
        } else {
            // pprof's format is packed by itself.
            let packed = is_packed_name(output) && self.format != Format::Pprof;
            write_to(output, packed, console.output, |out| {
                self.format.write(&source, out).map_err(failure)
            })?;
        }
        Ok(ExitStatus::SUCCESS)
    }
}

impl ExportArguments {
    /// Writes a file and the folder that belongs to it, and prints the command that reads them.
    fn write_perf_data(
        &self,
        source: &Source,
        path: &Path,
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        if is_packed_name(path) {
            return Err(usage(format_args!(
                "perf reads no packed files: give {} a name without .gz",
                path.display()
            )));
        }
        let written = self.format.write_file(source, path);
        written.map_err(|error| match error {
            ExportError::Output(source) => CommandError::Write {
                path: path.to_owned(),
                source,
            },
            other => failure(other),
        })?;
        if let Some(command) = self.format.reading_command(path) {
            writeln!(console.output, "{command}").map_err(CommandError::Output)?;
        }
        Ok(())
    }
}

pub(super) fn failure(error: ExportError) -> CommandError {
    match error {
        ExportError::Recording(error) => CommandError::Recording(error),
        ExportError::Output(error) => CommandError::Output(error),
        error @ (ExportError::TooMany(_) | ExportError::TooMuch(_) | ExportError::NeedsFile) => {
            CommandError::Export(error)
        }
    }
}
