//! The program's commands: arguments in, exit status out.

mod demo;
mod exit;
mod run;
mod status;
mod units;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use kvmprof_tools::{getpc, pcstat};

/// A profiler that looks at a guest from the hypervisor.
#[derive(Debug, Parser)]
#[command(name = "kvmprof", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a guest under the clock
    Run(run::RunArguments),
    /// Run the embedded guest and show who used the time, beside what the guest itself counted
    Demo(demo::DemoArguments),
    /// Show the machine, the clock and where every tick went
    Status(status::StatusArguments),
    Getpc(getpc::Arguments),
    Pcstat(pcstat::Arguments),
}

/// Carries out the command line; the result is the program's exit status.
pub fn main() -> ExitCode {
    start_log();
    let arguments = Arguments::try_parse().unwrap_or_else(|error| refuse(&error));
    let result = match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Getpc(arguments) => arguments
            .execute()
            .map(|_| ExitCode::SUCCESS)
            .map_err(Into::into),
        Command::Pcstat(arguments) => arguments
            .execute(&mut io::stdout(), &mut io::stderr())
            .map_err(Into::into),
    };
    exit::status_of(result)
}

/// Sends warnings to standard error; `RUST_LOG` chooses other levels.
fn start_log() {
    let level = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(level)
        .format(|buffer, record| writeln!(buffer, "kvmprof: {}", record.args()))
        .init();
}

/// Ends the program with what is wrong with its arguments; a wrong value takes one line.
fn refuse(error: &clap::Error) -> ! {
    if error.kind() != ErrorKind::ValueValidation {
        error.exit();
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    eprintln!("kvmprof: {}", line.strip_prefix("error: ").unwrap_or(line));
    std::process::exit(error.exit_code());
}
