//! The tools as one program, chosen by its name or its first argument.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use kvmprof_tools::program::{Setup, Tool, parse, refuse, told_as};

/// Profiles of a guest that runs under kvmprof
///
/// Called by a tool's name, through a link (see install-links), the program is that tool. In a guest the tools
/// use the nodes that pcsd makes; on the host, --socket or KVMPROF_SOCKET says where kvmprof listens.
#[derive(Parser)]
#[command(
    name = "kvmprof-tools",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Tool(Tool),
    #[command(flatten)]
    Setup(Setup),
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Tool(tool) => Ok(tool.execute()?),
        Command::Setup(setup) => {
            setup.execute(&CommandLine::command(), &mut std::io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let line: CommandLine = parse(&arguments)
        .unwrap_or_else(|error| refuse(&error, &CommandLine::command(), &arguments));
    run(&line.command).unwrap_or_else(|error| {
        // The whole chain of causes on one line.
        eprintln!("{}: {error:#}", told_as(&arguments, "kvmprof-tools"));
        ExitCode::FAILURE
    })
}
