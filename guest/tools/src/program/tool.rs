//! The tools as commands.

use clap::Subcommand;

use crate::prf::{
    PrfdcArguments, PrfldArguments, PrfprArguments, PrfsnapArguments, PrfstatArguments,
};
use crate::{getpc, pcstat};
use kvmprof_cli::command_line::{Command, TOOLS};

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
    pub const NAMES: [&str; 7] = TOOLS;

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
    use std::ffi::OsString;

    use clap::{CommandFactory, Parser};
    use kvmprof_cli::command_line::{parse, program_name, usage_error};

    use super::*;

    #[test]
    fn the_names_are_those_of_the_commands() {
        let command = Tool::augment_subcommands(clap::Command::new("program"));
        let names = command.get_subcommands().map(clap::Command::get_name);
        assert!(names.eq(Tool::NAMES));
        command.debug_assert();
    }

    fn strings(arguments: &[&str]) -> Vec<OsString> {
        arguments.iter().map(OsString::from).collect()
    }

    #[derive(Debug, Parser)]
    #[command(name = "kvmprof", version, propagate_version = true)]
    struct Line {
        #[command(subcommand)]
        tool: Tool,
    }

    #[test]
    fn the_name_or_the_first_argument_chooses_the_tool() {
        for arguments in [
            &["/usr/bin/prfdc", "file", "5"][..],
            &["prfdc", "file", "5"],
            &["./kvmprof", "prfdc", "file", "5"],
        ] {
            let line: Line = parse(&Line::command(), &strings(arguments)).unwrap();
            assert!(matches!(line.tool, Tool::Prfdc(_)), "{arguments:?}");
        }
        assert_eq!(program_name(&strings(&["bin/prfpr"]), "kvmprof"), "prfpr");
        let other = program_name(&strings(&["bin/x", "prfpr"]), "kvmprof");
        assert_eq!(other, "kvmprof");
        assert_eq!(program_name(&[], "kvmprof"), "kvmprof");
    }

    #[test]
    fn help_shows_the_name_that_the_program_was_called_by() {
        for (arguments, usage) in [
            (&["/usr/bin/prfld", "--help"][..], "Usage: prfld [OPTIONS]"),
            (
                &["kvmprof", "prfld", "-h"],
                "Usage: kvmprof prfld [OPTIONS]",
            ),
        ] {
            let help = parse::<Line>(&Line::command(), &strings(arguments));
            let help = help.unwrap_err().to_string();
            assert!(help.contains(usage), "{help}");
        }
    }

    fn refused(arguments: &[&str]) -> Option<String> {
        let arguments = strings(arguments);
        let error = parse::<Line>(&Line::command(), &arguments).unwrap_err();
        usage_error(&error, &Line::command(), &arguments)
    }

    #[test]
    fn every_wrong_use_prints_one_line() {
        for (arguments, line) in [
            (
                &["kvmprof", "prfsnap"][..],
                "kvmprof: the following required arguments were not provided: <FILE>; \
                see kvmprof prfsnap --help",
            ),
            (
                &["/bin/prfsnap"],
                "prfsnap: the following required arguments were not provided: <FILE>; \
                see prfsnap --help",
            ),
            (
                &["prfsnap", "file", "more"],
                "prfsnap: unexpected argument 'more' found; see prfsnap --help",
            ),
            (
                &["kvmprof", "prfld", "--no-slyde"],
                "kvmprof: unexpected argument '--no-slyde' found; a similar argument exists: '--no-slide'; \
                see kvmprof prfld --help",
            ),
            (
                &["kvmprof", "gatpc"],
                "kvmprof: unrecognized subcommand 'gatpc'; \
                a similar subcommand exists: 'getpc'; see kvmprof --help",
            ),
            (
                &["kvmprof", "prfld", "--no-slide"],
                "kvmprof: the following required arguments were not provided: <NAMELIST>; \
                see kvmprof prfld --help",
            ),
            (
                &["prfdc", "file", "0"],
                "prfdc: invalid value '0' for '[period]': a number of minutes is needed, more than 0 and at most \
                527040; see prfdc --help",
            ),
            (
                &["getpc", "--format", "new"],
                "getpc: invalid value 'new' for '--format <FORMAT>' \
                [possible values: native, classic]; see getpc --help",
            ),
            (
                &["prfld", "--socket"],
                "prfld: a value is required for '--socket <PATH>' but none was supplied; \
                see prfld --help",
            ),
        ] {
            assert_eq!(refused(arguments).as_deref(), Some(line), "{arguments:?}");
        }
    }

    #[test]
    fn help_is_not_an_error() {
        for arguments in [
            &["kvmprof", "--help"][..],
            &["prfld", "-h"],
            &["kvmprof", "--version"],
            &["prfld", "--version"],
        ] {
            assert_eq!(refused(arguments), None, "{arguments:?}");
        }
    }
}
