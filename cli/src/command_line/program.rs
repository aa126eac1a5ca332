//! Runs a program from its arguments to its exit status.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;

use super::error::status_of;
use super::usage::{help_hint, parse, program_name, refuse};
use super::{Command, Console, ExitStatus, PipeWriter, UsageError, is_reader_gone};
use crate::text;

/// A program: a command line that selects one command.
pub trait Program: Parser {
    /// The selected command.
    fn chosen(&self) -> &dyn Command;

    /// The program's command line. Commands that `arguments` don't select may be left out; they begin with the program's name.
    fn command_for(_arguments: &[OsString]) -> clap::Command {
        Self::command()
    }

    /// Replaces `arguments` of the command line of `program`, which begin with the program's name: a program may read some from a file.
    ///
    /// # Errors
    /// If the arguments can't be read.
    fn expand(_program: &clap::Command, arguments: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
        Ok(arguments)
    }
}

/// Makes a write beyond the maximum size of a file (`RLIMIT_FSIZE`) fail with EFBIG, which is reported like a full disk, instead of ending
/// the program with SIGXFSZ.
fn fail_at_file_size() {
    // If this fails, the signal ends the program, as it does other programs.
    let _ = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
}

/// Parses the arguments of the process, executes the command, prints its error if there is one, and returns the exit
/// status.
pub fn main<P: Program>() -> ExitCode {
    fail_at_file_size();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let program = P::command_for(&arguments);
    let name = program_name(&arguments, program.get_name());
    let expanded = match P::expand(&program, arguments.clone()) {
        Ok(expanded) => expanded,
        Err(error) => {
            let hint = help_hint(&program, &arguments);
            // Standard error may be closed.
            let message = text::message(&format!("{error:#}"));
            let _ = writeln!(io::stderr(), "{name}: {message}{hint}");
            return status_of(&error).into();
        }
    };
    let line: P = match parse(&program, &expanded) {
        Ok(line) => line,
        Err(error) => return refuse(&error, &program, &arguments).into(),
    };
    let on_terminal = io::stdout().is_terminal();
    let mut output = BufWriter::new(PipeWriter(io::stdout()));
    let mut messages = io::stderr();
    let console = Console::new(name, &program, &mut output, &mut messages);
    let mut console = console.on_terminal(on_terminal);
    let result = line.chosen().execute(&mut console);
    let result = result.and_then(|status| {
        let flushed = console.text().flush();
        flushed
            .context("Cannot write to standard output")
            .or_else(|error| {
                // A terminal that has gone returns EIO, and is handled like a closed pipe.
                let is_gone = is_reader_gone(&error) || on_terminal && is_io_error(&error);
                is_gone.then_some(()).ok_or(error)
            })?;
        Ok(status)
    });
    let status = match result {
        Ok(status) => status,
        Err(error) if is_reader_gone(&error) => ExitStatus::SUCCESS,
        Err(error) => {
            let hint = if error.is::<UsageError>() {
                help_hint(&program, &arguments)
            } else {
                String::new()
            };
            console.say(format_args!("{error:#}{hint}"));
            status_of(&error)
        }
    };
    status.into()
}

fn is_io_error(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.and_then(io::Error::raw_os_error) == Some(rustix::io::Errno::IO.raw_os_error())
}
