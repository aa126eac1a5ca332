//! Parses command lines, with the name by which the program was called, and formats errors about arguments.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap::error::ErrorKind;
use clap::{Command, Parser};

use super::ExitStatus;

/// The names of the tools. A program that is called by one of these names is that tool.
pub const TOOLS: [&str; 7] = [
    "getpc", "pcstat", "prfld", "prfstat", "prfdc", "prfsnap", "prfpr",
];

/// Parses `arguments`, which begin with the program's name, by the command line of `program`. If that name is the name of a tool, the program is
/// that tool.
///
/// # Errors
/// An error about the arguments, or the requested help.
pub fn parse<P: Parser>(program: &Command, arguments: &[OsString]) -> Result<P, clap::Error> {
    let command = program.clone().multicall(is_called_as_tool(arguments));
    P::from_arg_matches_mut(&mut command.try_get_matches_from(arguments)?)
}

/// The prefix of the program's messages: the name of the tool if it was called by that, else `program`.
pub fn program_name<'a>(arguments: &[OsString], program: &'a str) -> &'a str {
    called_as_tool(arguments).unwrap_or(program)
}

/// Whether the first of the `arguments` is the name of a tool.
pub fn is_called_as_tool(arguments: &[OsString]) -> bool {
    called_as_tool(arguments).is_some()
}

fn called_as_tool(arguments: &[OsString]) -> Option<&'static str> {
    let name = Path::new(arguments.first()?).file_name()?;
    TOOLS.into_iter().find(|tool| *tool == name)
}

/// Prints the error about the arguments (see [`usage_error`]), or the requested help.
pub(super) fn refuse(error: &clap::Error, command: &Command, arguments: &[OsString]) -> ExitStatus {
    // Standard output and standard error may be closed: ignore errors.
    let _ = match usage_error(error, command, arguments) {
        Some(line) => writeln!(io::stderr(), "{line}"),
        None => error.print(),
    };
    if error.exit_code() == 0 {
        ExitStatus::SUCCESS
    } else {
        ExitStatus::USAGE
    }
}

/// A line with the error and a reference to the help; `None` if help or a version was requested, or no argument was
/// given, which gives help too. `arguments` are those of the program, with its name first.
pub fn usage_error(
    error: &clap::Error,
    command: &Command,
    arguments: &[OsString],
) -> Option<String> {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return None;
    }
    let program = program_name(arguments, command.get_name());
    // The last paragraphs of the text are the usage and a reference to help.
    let text = error.to_string();
    let parts: Vec<&str> = text
        .split("\n\n")
        .take_while(|part| !part.starts_with("Usage:") && !part.starts_with("For more"))
        .flat_map(str::lines)
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let mut line = String::new();
    for part in parts {
        let part = part.strip_prefix("error: ").unwrap_or(part);
        let separator = match line.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) if part.starts_with('[') => " ",
            // A list of arguments.
            Some('>' | ']') if part.starts_with(['-', '<', '[']) => ", ",
            Some(_) => "; ",
        };
        line += separator;
        line += part.strip_prefix("tip: ").unwrap_or(part);
    }
    let hint = help_hint(command, arguments);
    Some(format!("{program}: {line}{hint}"))
}

/// A reference to the help, to append to an error about arguments.
pub(super) fn help_hint(command: &Command, arguments: &[OsString]) -> String {
    let program = program_name(arguments, command.get_name());
    let mut hint = format!("; see {program}");
    if program == command.get_name() {
        let mut command = command;
        for word in arguments.iter().skip(1) {
            let Some(part) = word.to_str().and_then(|word| command.find_subcommand(word)) else {
                break;
            };
            hint = format!("{hint} {}", part.get_name());
            command = part;
        }
    }
    hint + " --help"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(arguments: &[&str]) -> Vec<OsString> {
        arguments.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_help_is_that_of_the_innermost_command() {
        let part = Command::new("list").arg(clap::Arg::new("json").long("json"));
        let pmc = Command::new("pmc").subcommand(part);
        let command = Command::new("kvmprof").subcommand(pmc);
        for (arguments, hint) in [
            (
                &["kvmprof", "pmc", "list", "--jso"][..],
                "; see kvmprof pmc list --help",
            ),
            (&["kvmprof", "pmc", "lost"], "; see kvmprof pmc --help"),
            (&["kvmprof", "list"], "; see kvmprof --help"),
        ] {
            assert_eq!(help_hint(&command, &strings(arguments)), hint);
        }
    }
}
