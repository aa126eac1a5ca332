//! The program with all tools, which its name or its first argument selects.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kvmprof_cli::command_line::{self, Program};
use kvmprof_tools::program::{Setup, Tool};

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
    chosen: SelectedTool,
}

#[derive(Subcommand)]
enum SelectedTool {
    #[command(flatten)]
    Tool(Tool),
    #[command(flatten)]
    Setup(Setup),
}

impl Program for CommandLine {
    fn chosen(&self) -> &dyn command_line::Command {
        match &self.chosen {
            SelectedTool::Tool(tool) => tool.chosen(),
            SelectedTool::Setup(setup) => setup,
        }
    }
}

fn main() -> ExitCode {
    command_line::main::<CommandLine>()
}
