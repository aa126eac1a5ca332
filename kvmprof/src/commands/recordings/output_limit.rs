//! The limit of a command's output from a recording.

use std::io::{self, Write};

use clap::Args;
use kvmprof_cli::command_line::{Console, ExitStatus};
use kvmprof_report::budget::{BudgetWriter, OutputBudget, too_much};

use super::NO_OUTPUT;
use crate::commands::units::parse_memory;

/// The option `--output-limit`.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct OutputLimit {
    /// Maximum size of the output and of tables in memory, such as 4G [default: 128M plus 1024 times the recording's size]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    output_limit: Option<u64>,
}

impl OutputLimit {
    /// The limit of the command line, in bytes.
    pub fn bytes(self) -> Option<u64> {
        self.output_limit
    }

    /// The budget for the output from a recording of `length` bytes.
    pub fn budget(self, length: usize) -> OutputBudget {
        OutputBudget::limited(self.output_limit, length)
    }
}

/// Lets `write` write to standard output while there is `budget`.
pub(super) fn within(
    budget: &OutputBudget,
    console: &mut Console<'_>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<ExitStatus> {
    let out = console.text();
    write(&mut BudgetWriter { out, budget }).map_err(|error| match too_much(&error) {
        Some(too_much) => anyhow::Error::from(too_much),
        None => anyhow::Error::from(error).context(NO_OUTPUT),
    })?;
    Ok(ExitStatus::SUCCESS)
}
