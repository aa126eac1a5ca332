//! The tools as commands.

use clap::Subcommand;

use crate::command_line::Command;
use crate::prf::{
    PrfdcArguments, PrfldArguments, PrfprArguments, PrfsnapArguments, PrfstatArguments,
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

impl Tool {
    /// The names of the tools. If it is called by one of these names, the program is that tool.
    pub const NAMES: [&str; 7] = [
        "getpc", "pcstat", "prfld", "prfstat", "prfdc", "prfsnap", "prfpr",
    ];

    /// The selected tool.
    pub fn chosen(&self) -> &dyn Command {
        match self {
            Self::Getpc(arguments) => arguments,
            Self::Pcstat(arguments) => arguments,
            Self::Prfld(arguments) => arguments,
            Self::Prfstat(arguments) => arguments,
            Self::Prfdc(arguments) => arguments,
            Self::Prfsnap(arguments) => arguments,
            Self::Prfpr(arguments) => arguments,
        }
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
