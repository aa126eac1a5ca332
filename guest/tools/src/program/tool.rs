//! The tools as commands.

use std::io;
use std::process::ExitCode;

use clap::Subcommand;

use crate::prf::{
    PrfError, PrfdcArguments, PrfldArguments, PrfprArguments, PrfsnapArguments, PrfstatArguments,
};
use crate::{getpc, pcstat};

/// A tool and its arguments.
#[derive(Clone, Debug, Subcommand)]
#[expect(
    missing_docs,
    reason = "A comment would take the place of the arguments' own, as the command's help"
)]
pub enum Tool {
    Getpc(getpc::Arguments),
    Pcstat(pcstat::Arguments),
    Prfld(PrfldArguments),
    Prfstat(PrfstatArguments),
    Prfdc(PrfdcArguments),
    Prfsnap(PrfsnapArguments),
    Prfpr(PrfprArguments),
}

/// Why a tool failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// getpc did.
    #[error(transparent)]
    Getpc(#[from] getpc::CommandError),
    /// pcstat did.
    #[error(transparent)]
    Pcstat(#[from] pcstat::PcstatError),
    /// One of prf's did.
    #[error(transparent)]
    Prf(#[from] PrfError),
}

impl Tool {
    /// The tools' names, under which the program is a tool itself.
    pub const NAMES: [&str; 7] = [
        "getpc", "pcstat", "prfld", "prfstat", "prfdc", "prfsnap", "prfpr",
    ];

    /// Does what the tool does.
    ///
    /// # Errors
    /// What kept it from that.
    pub fn execute(&self) -> Result<ExitCode, ToolError> {
        let (output, warnings) = (&mut io::stdout(), &mut io::stderr());
        match self {
            Self::Getpc(arguments) => {
                arguments.execute()?;
            }
            Self::Pcstat(arguments) => return Ok(arguments.execute(output, warnings)?),
            Self::Prfld(arguments) => arguments.execute(warnings)?,
            Self::Prfstat(arguments) => arguments.execute(output)?,
            Self::Prfdc(arguments) => arguments.execute()?,
            Self::Prfsnap(arguments) => arguments.execute(warnings)?,
            Self::Prfpr(arguments) => arguments.execute(output, warnings)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_commands() {
        let command = Tool::augment_subcommands(clap::Command::new("program"));
        let names: Vec<&str> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        assert_eq!(names, Tool::NAMES);
        command.debug_assert();
    }
}
