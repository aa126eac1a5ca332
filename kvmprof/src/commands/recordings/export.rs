//! `kvmprof export`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::Context;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use super::input::Input;
use super::output::{
    NO_OUTPUT, Naming, check_output, is_packed_name, is_standard, unwritten, write_to,
};
use super::output_limit::OutputLimit;
use super::{InputArguments, faults};
use crate::commands::other_program::become_program;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_report::export::{Events, Format, Source};

/// A format, and the program that writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectedFormat {
    /// This program.
    Own(Format),
    /// This program: the pages of guest memory that were touched.
    Pages,
    /// kvmprof-collect, which has a writer of Parquet files.
    Parquet,
}

impl ValueEnum for SelectedFormat {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<SelectedFormat>> = LazyLock::new(|| {
            let own = Format::value_variants().iter();
            let own = own.map(|format| SelectedFormat::Own(*format));
            own.chain([SelectedFormat::Pages, SelectedFormat::Parquet])
                .collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Own(format) => format.to_possible_value(),
            Self::Pages => Some(PossibleValue::new("pages").help(
                "The pages of guest memory that were touched, in this order: address, bytes, begin of the memory slot; of a recording by page-faults:1",
            )),
            Self::Parquet => Some(PossibleValue::new("parquet").help(
                "Parquet files, as kvmprof collect writes them; --output is a folder, and kvmprof-collect has to be installed",
            )),
        }
    }
}

/// Write a recording in a format that other tools read
#[derive(Debug, Args)]
#[command(
    after_help = "For perf, in two commands:\n\n  kvmprof export --format perf-data out.kvmprof -o out.perf.data\n  \
    perf report -i out.perf.data --kallsyms out.perf.data.symbols/kallsyms\n\nThe folder out.perf.data.symbols has the \
    names of the guest's functions; don't move it.\n\n\
    Exit status: 0; 1 when the recording cannot be read or has nothing that the options select, or the file cannot be written; \
    2 for wrong options."
)]
pub struct ExportArguments {
    /// The recording; - is standard input
    #[arg(value_name = "FILE", default_value = "out.kvmprof")]
    file: PathBuf,
    /// The format
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: SelectedFormat,
    /// The output file; - is standard output; it is compressed by gzip if its name ends in .gz [default: standard output]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Replace the output file even if it is a recording
    #[arg(long)]
    force: bool,
    /// For Parquet: length of a window in seconds [default: 10]
    #[arg(long, value_name = "SECONDS")]
    window: Option<u32>,
    /// For Parquet: the host's name [default: the name of this host]
    #[arg(long, value_name = "NAME")]
    host: Option<OsString>,
    /// For Parquet: the guest's name [default: the recording's file name without its extension]
    #[arg(long, value_name = "NAME")]
    guest: Option<OsString>,
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    limit: OutputLimit,
}

impl Command for ExportArguments {
    /// Reads the recording and writes it in the other format.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let output = self.output.as_deref().unwrap_or(Path::new("-"));
        if self.format == SelectedFormat::Parquet {
            let words = self.words_for_collector()?;
            match become_program("kvmprof-collect", &words, "build all programs")? {}
        }
        if self.window.is_some() || self.host.is_some() || self.guest.is_some() {
            return Err(usage(
                "--window, --host and --guest are for --format parquet",
            ));
        }
        check_output(output, &[&self.file], Naming::output(self.force))?;
        let SelectedFormat::Own(format) = self.format else {
            let pages = faults::all_pages(&self.input, &self.file, console)?;
            let shown = console.data();
            let packed = is_packed_name(output);
            write_to(output, packed, shown, |out| Ok(pages.write_list(out)?))?;
            return Ok(ExitStatus::SUCCESS);
        };
        let mut events = Events::new(self.limit.bytes());
        let Input {
            recording,
            profile,
            copy: _copy,
        } = self.input.open_with(&self.file, console, &mut events)?;
        let source = Source::new(recording, profile, events)?;
        if format == Format::PerfData && !is_standard(output) {
            write_perf_data(format, &source, output, console)?;
        } else {
            // The format of pprof is always compressed.
            let packed = is_packed_name(output) && format != Format::Pprof;
            let instead = "name a file with --output";
            let shown = match format {
                Format::Pprof if is_standard(output) => {
                    console.binary("pprof's format", instead)?
                }
                _ => console.data(),
            };
            write_to(output, packed, shown, |out| format.write(&source, out))?;
            if !is_standard(output) && !packed && console.is_terminal() {
                let command = format.reading_command(output);
                console.say(format_args!("next: {command}"));
            }
        }
        Ok(ExitStatus::SUCCESS)
    }
}

impl ExportArguments {
    /// The command line for kvmprof-collect to make the same export.
    fn words_for_collector(&self) -> anyhow::Result<Vec<OsString>> {
        let Some(output) = self.output.as_deref().filter(|path| !is_standard(path)) else {
            return Err(usage("Parquet needs a folder: name it with --output"));
        };
        if is_standard(&self.file) {
            return Err(usage("Parquet needs a recording that is a file"));
        }
        let mut words = vec!["export".into(), "--output".into(), output.into()];
        if let Some(window) = self.window {
            words.extend(["--window".into(), window.to_string().into()]);
        }
        if let Some(bytes) = self.limit.bytes() {
            words.extend(["--output-limit".into(), bytes.to_string().into()]);
        }
        for (option, name) in [("--host", &self.host), ("--guest", &self.guest)] {
            words.extend(name.iter().flat_map(|name| [option.into(), name.clone()]));
        }
        words.extend(self.input.words()?);
        words.extend(["--".into(), self.file.clone().into()]);
        Ok(words)
    }
}

/// Writes a file and the folder with its symbols, and prints the command that reads them.
fn write_perf_data(
    format: Format,
    source: &Source,
    path: &Path,
    console: &mut Console<'_>,
) -> anyhow::Result<()> {
    if is_packed_name(path) {
        return Err(usage(format_args!(
            "perf cannot read compressed files: give {} a name without .gz",
            path.display()
        )));
    }
    let written = format.write_file(source, path);
    written.map_err(|error| unwritten(error, path))?;
    let command = format.reading_command(path);
    writeln!(console.text(), "{command}").context(NO_OUTPUT)
}
