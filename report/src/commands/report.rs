//! `kvmprof report`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;

use super::CommandError;
use crate::profile::{Look, Profile, SortBy, document, print};

/// Show what a recording has: modes, processes, functions
#[derive(Debug, Args)]
pub struct ReportArguments {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Functions by their own samples, or by all in which they are on the stack
    #[arg(long, value_enum, default_value = "self", value_name = "ORDER")]
    sort: SortBy,
    /// Only this process; may be given more than once
    #[arg(long, value_name = "PID", allow_negative_numbers = true)]
    pid: Vec<i32>,
    /// How many rows each table has at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

impl ReportArguments {
    /// Reads the recording and prints the report to standard output: with bars and colours on a terminal.
    ///
    /// # Errors
    /// The recording can't be read, or the report written.
    pub fn execute(&self) -> Result<(), CommandError> {
        let profile = Profile::of_file(&self.file, &self.pid)?;
        let mut out = std::io::stdout().lock();
        let result = if self.json {
            writeln!(out, "{}", document(&profile, self.sort, self.top))
        } else {
            let is_terminal = out.is_terminal();
            let look = Look {
                bars: is_terminal,
                // https://no-color.org
                colours: is_terminal
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            };
            print(&profile, self.sort, self.top, look, &mut out)
        };
        result.map_err(CommandError::Output)
    }
}
