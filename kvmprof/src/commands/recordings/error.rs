//! The errors of commands that read recordings.

use std::io;
use std::path::PathBuf;

use kvmprof_recording::file::FileError;

/// Why a command has no result.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The recording can't be read.
    #[error(transparent)]
    Recording(#[from] FileError),
    /// The recording would be read from a terminal.
    #[error("Standard input is a terminal: pipe a recording into the command, or name its file")]
    InputIsTerminal,
    /// A recording that isn't a file or is compressed can't be copied to a temporary file.
    #[error("Cannot make a temporary file for the recording: TMPDIR names the folder for it")]
    Temporary(#[source] io::Error),
    /// The options select nothing in the recording.
    #[error(
        "Nothing in {recordings} matches {options}: kvmprof report {recordings} --by process --by thread --by vcpu --by function shows what there is"
    )]
    NothingMatched {
        /// The recordings, separated by spaces.
        recordings: String,
        /// The options that select a part of it.
        options: String,
    },
    /// The command needs the time between ticks.
    #[error(
        "{path} was sampled by an event (--event), so that the time between its ticks is unknown: record without --event for this",
        path = .0.display()
    )]
    NotByTime(PathBuf),
    /// A recording was named twice.
    #[error("{path} is named twice: its ticks would count twice", path = .0.display())]
    NamedTwice(PathBuf),
    /// Recordings can't be counted together.
    #[error(transparent)]
    DifferentTicks(kvmprof_report::profile::DifferentTicks),
    /// The output file is the recording that is read.
    #[error("{path} is the recording that is read: name another file with {option}", path = .path.display())]
    OutputIsInput {
        /// The file.
        path: PathBuf,
        /// The option that names another file.
        option: &'static str,
    },
    /// The output file is another recording.
    #[error("{path} is a recording, which would be lost: {instead}", path = .path.display())]
    OutputIsRecording {
        /// The file.
        path: PathBuf,
        /// The advice for the user.
        instead: String,
    },
    /// The result can't be written.
    #[error("Cannot write {path}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The result can't be written to standard output.
    #[error("Cannot write to standard output")]
    Output(#[source] io::Error),
    /// The export failed.
    #[error(transparent)]
    Export(kvmprof_report::export::ExportError),
    /// A file with names of functions can't be used.
    #[error(transparent)]
    Symbols(#[from] kvmprof_report::symbolize::SymbolError),
    /// The shares of two recordings don't have the same unit.
    #[error(
        "The recordings were sampled by different events, or one of them by the clock: compare recordings of the same --event"
    )]
    DifferentEvents,
    /// The recording has no looks at tasks.
    #[error(
        "{0} has no looks at tasks: record a Linux guest with --tasks, and for longer than it takes to find its kernel"
    )]
    NoLooks(String),
    /// The recording has no exits.
    #[error("{0} has no exits: record the guest with --exits")]
    NoExits(String),
    /// The recording has nothing to draw.
    #[error("There are no samples to draw: {0} has none")]
    NoSamples(String),
}
