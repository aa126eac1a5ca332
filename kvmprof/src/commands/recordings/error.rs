//! What keeps a command from its result.

use std::io;
use std::path::PathBuf;

use kvmprof_recording::file::FileError;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The recording can't be read.
    #[error(transparent)]
    Recording(#[from] FileError),
    /// The recording was to come from a terminal.
    #[error("Standard input is a terminal: pipe a recording into the command, or name its file")]
    InputIsTerminal,
    /// There is no room for a copy of what isn't a file, or is packed.
    #[error("Cannot make a temporary file for the recording: TMPDIR names the folder for it")]
    Temporary(#[source] io::Error),
    /// The selection leaves nothing.
    #[error(
        "Nothing in {recordings} matches {options}: kvmprof report {recordings} --by process,thread,vcpu,function shows what there is"
    )]
    NothingMatched {
        /// The recordings, separated by spaces.
        recordings: String,
        /// The options that select a part of it.
        options: String,
    },
    /// What is wanted of it is a matter of time.
    #[error(
        "{path} was made by events (--event), between which no time is known: record without --event for this",
        path = .0.display()
    )]
    NotByTime(PathBuf),
    /// A recording was named twice.
    #[error("{path} is named twice: its ticks would count twice", path = .0.display())]
    NamedTwice(PathBuf),
    /// Recordings can't be counted together.
    #[error(transparent)]
    DifferentTicks(kvmprof_report::profile::DifferentTicks),
    /// The result would replace the recording that it is of.
    #[error("{path} is the recording that is read: name another file with {option}", path = .path.display())]
    OutputIsInput {
        /// The file.
        path: PathBuf,
        /// What names another one.
        option: &'static str,
    },
    /// The result would replace a recording.
    #[error("{path} is a recording, which would be lost: {instead}", path = .path.display())]
    OutputIsRecording {
        /// The file.
        path: PathBuf,
        /// What the user can do.
        instead: String,
    },
    /// The result can't be written.
    #[error("Cannot write {path}", path = .path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The result can't be written to standard output.
    #[error("Cannot write to standard output")]
    Output(#[source] io::Error),
    /// The format has no room for the recording.
    #[error(transparent)]
    Export(kvmprof_report::export::ExportError),
    /// The flame graph can't be drawn.
    #[error("Cannot draw the flame graph: {0}")]
    Drawing(String),
    /// The files that names come from can't be used.
    #[error(transparent)]
    Symbols(#[from] kvmprof_report::symbolize::SymbolError),
    /// No sample has the function that was asked for.
    #[error(
        "No sample has a function called {0} on its stack: kvmprof report --sort total lists them"
    )]
    NoSuchFunction(String),
    /// The shares of two recordings are shares of different things.
    #[error(
        "One recording was sampled by another event than the other, or by the clock: compare recordings of the same --event"
    )]
    DifferentEvents,
    /// The recording has no looks at tasks.
    #[error(
        "{0} has no looks at tasks: record a Linux guest with --tasks, and for longer than it takes to find its kernel"
    )]
    NoLooks(String),
    /// There is nothing to draw.
    #[error("There are no samples to draw: {0} has none")]
    NoSamples(String),
}
