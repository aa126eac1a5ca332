//! The guest's consoles, serial and virtio, and the terminal at their other end.

mod escape;
mod hvc;
mod input;
mod listening;
mod output;
mod output_thread;
mod panic_watch;
mod room;
mod serial;
mod terminal;
mod text_watch;
mod window;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

pub use escape::ESCAPE_HELP;
pub use hvc::HvcConsole;
pub use input::ConsoleInput;
pub use output::ConsoleOutput;
pub use room::InputTarget;
pub use serial::SerialConsole;
pub use terminal::{Interrupt, RawTerminal, restore_terminal};
pub use text_watch::TextWatch;
pub use window::WindowWatch;

/// Where the guest's console is connected: `stdio`, `hvc`, `none` or `file:PATH`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Console {
    /// The serial port, on standard input and output.
    #[default]
    Stdio,
    /// The virtio console `hvc0`, on standard input and output. The serial port's output is shown, too,
    /// so that the messages that a kernel prints before it has the driver aren't lost.
    Hvc,
    /// No console: the serial port's output is thrown away, and there is no input.
    None,
    /// The serial port's output goes to a file, which is emptied when the guest starts; there is no input.
    File(PathBuf),
}

/// Why a console can't be used.
#[derive(Debug, Error)]
pub enum ConsoleError {
    /// The word is unknown.
    #[error("'{0}' is no console: it must be stdio, hvc, none or file:PATH")]
    Unknown(String),
    /// `file:` without a path.
    #[error("The console file: needs a path, as in file:/tmp/console.log")]
    NoPath,
    /// The output can't be opened.
    #[error("Cannot open the console file {}", path.display())]
    OpenFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Standard output is unusable.
    #[error("Cannot use standard output for the console")]
    Stdout(#[source] io::Error),
}

impl FromStr for Console {
    type Err = ConsoleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("file:")) {
            ("stdio", _) => Ok(Self::Stdio),
            ("hvc", _) => Ok(Self::Hvc),
            ("none", _) => Ok(Self::None),
            (_, Some("")) => Err(ConsoleError::NoPath),
            (_, Some(path)) => Ok(Self::File(path.into())),
            _ => Err(ConsoleError::Unknown(text.to_owned())),
        }
    }
}

impl Console {
    /// Opens the output of the serial port, or that of the virtio console.
    ///
    /// # Errors
    /// If the file can't be made, or standard output can't be used.
    pub fn open_output(&self) -> Result<ConsoleOutput, ConsoleError> {
        match self {
            Self::Stdio | Self::Hvc => ConsoleOutput::stdout().map_err(ConsoleError::Stdout),
            Self::None => Ok(ConsoleOutput::discard()),
            Self::File(path) => {
                ConsoleOutput::file(path).map_err(|source| ConsoleError::OpenFile {
                    path: path.clone(),
                    source,
                })
            }
        }
    }

    /// The console's file, which may have the output of an older guest; `None` if the console isn't a regular file. `output` is
    /// [open](Self::open_output) already. [Empty](File::set_len) it when the new guest is about to start.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn older_output(&self, output: &ConsoleOutput) -> Result<Option<File>, ConsoleError> {
        match self {
            Self::File(path) => output
                .regular_file()
                .map_err(|source| ConsoleError::OpenFile {
                    path: path.clone(),
                    source,
                }),
            _ => Ok(None),
        }
    }

    /// Whether the guest gets standard input.
    #[must_use]
    pub fn has_input(&self) -> bool {
        matches!(self, Self::Stdio | Self::Hvc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_consoles_are_understood() {
        for (text, console) in [
            ("stdio", Console::Stdio),
            ("hvc", Console::Hvc),
            ("none", Console::None),
            ("file:/tmp/a:b", Console::File("/tmp/a:b".into())),
        ] {
            assert_eq!(text.parse::<Console>().unwrap(), console);
        }
    }

    #[test]
    fn other_values_are_refused_with_the_choices() {
        let error = "tty".parse::<Console>().unwrap_err().to_string();
        let expected = "'tty' is no console: it must be stdio, hvc, none or file:PATH";
        assert_eq!(error, expected);
        let nowhere = "file:".parse::<Console>();
        assert!(matches!(nowhere, Err(ConsoleError::NoPath)));
    }

    #[test]
    fn an_older_file_is_intact_until_the_guest_starts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        std::fs::write(&path, "an older guest's words").unwrap();
        let console = Console::File(path.clone());
        let mut output = console.open_output().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"an older guest's words");
        let older = console.older_output(&output).unwrap().unwrap();
        older.set_len(0).unwrap();
        output.write(b"new");
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        let device = Console::File("/dev/null".into());
        let output = device.open_output().unwrap();
        assert!(device.older_output(&output).unwrap().is_none());
        // Standard output isn't the guest's own.
        let stdout = Console::Stdio.open_output().unwrap();
        assert!(Console::Stdio.older_output(&stdout).unwrap().is_none());
    }

    #[test]
    fn a_file_in_a_missing_folder_is_named() {
        let path = "/nonexistent/folder/console.log";
        let error = Console::File(path.into()).open_output().err().unwrap();
        assert!(error.to_string().contains(path), "{error}");
    }
}
