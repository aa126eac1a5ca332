//! The tools as one program, chosen by its name or its first argument.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kvmprof_tools::{getpc, pcstat};

/// Profiles of a guest that runs under kvmprof
#[derive(Parser)]
#[command(name = "kvmprof-tools", version)]
struct CommandLine {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    Getpc(getpc::Arguments),
    Pcstat(pcstat::Arguments),
}

/// The names under which the program is a tool of its own.
const TOOLS: [&str; 2] = ["getpc", "pcstat"];

/// The command line, with the program's name as the first argument if that is a tool's.
fn words(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = arguments.collect();
    let tool = words
        .first()
        .and_then(|program| Path::new(program).file_name())
        .filter(|name| TOOLS.iter().any(|tool| *tool == *name))
        .map(OsString::from);
    if let Some(tool) = tool {
        words.insert(1, tool);
    }
    words
}

fn run() -> anyhow::Result<ExitCode> {
    match CommandLine::parse_from(words(std::env::args_os())).tool {
        Tool::Getpc(arguments) => {
            arguments.execute()?;
            Ok(ExitCode::SUCCESS)
        }
        Tool::Pcstat(arguments) => Ok(arguments.execute(&mut io::stdout(), &mut io::stderr())?),
    }
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        // The whole chain of causes on one line.
        eprintln!("kvmprof-tools: {error:#}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(arguments: &[&str]) -> Vec<OsString> {
        words(arguments.iter().map(OsString::from))
    }

    #[test]
    fn the_name_or_the_first_argument_chooses_the_tool() {
        assert_eq!(tool(&["/usr/bin/getpc", "5"])[1..], ["getpc", "5"]);
        assert_eq!(tool(&["pcstat"])[1..], ["pcstat"]);
        assert_eq!(
            tool(&["./kvmprof-tools", "getpc", "5"])[1..],
            ["getpc", "5"]
        );
        assert!(tool(&[]).is_empty());
    }
}
