//! The program's commands: arguments in, exit status out.

mod demo;
mod exit;
mod record;
mod recorder;
mod run;
mod status;
mod top;
mod units;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use kvmprof_report::commands::{
    CommandError, DiffArguments, ExportArguments, FlamegraphArguments, HtmlArguments,
    ReportArguments,
};
use kvmprof_tools::program::{Setup, Tool, parse, refuse, told_as};

/// A profiler that looks at a guest from the hypervisor
///
/// run starts a guest under a profiling clock; getpc and the prf tools read what the clock has seen, over
/// the socket that run's --socket names (or KVMPROF_SOCKET). Called by a tool's name, through a link
/// (see install-links), the program is that tool.
#[derive(Debug, Parser)]
#[command(
    name = "kvmprof",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a guest under the clock
    ///
    /// Boots a Linux bzImage or another kernel in an ELF file, without any change to it. The clock ticks
    /// only while somebody looks: pcs is open, or a minor of prf is on.
    Run(run::RunArguments),
    /// Run the embedded guest and show who used the time, beside what the guest itself counted
    Demo(demo::DemoArguments),
    /// Show the machine, the clock and where every tick went
    ///
    /// All counts are ticks of the clock since the guest was started, or since a consumer began; the
    /// parts on the right of an equation always sum up to what is on its left.
    Status(status::StatusArguments),
    /// Record every tick of a running guest to a file, with call stacks
    ///
    /// Any number of recordings may go on at once, beside pcs and prf. Ctrl-C ends one, and closes its file. A file that
    /// was cut off can be reported up to there.
    Record(record::RecordArguments),
    /// Show live where a running guest spends its time
    ///
    /// On a terminal: processes, functions, call stacks, vCPUs; h shows the keys. In a pipe: one plain table
    /// after the other. What is shown is what the guest did in the last seconds.
    Top(top::TopArguments),
    Report(ReportArguments),
    Export(ExportArguments),
    Flamegraph(FlamegraphArguments),
    Html(HtmlArguments),
    Diff(DiffArguments),
    #[command(flatten)]
    Tool(Tool),
    #[command(flatten)]
    Setup(Setup),
}

/// Carries out the command line; the result is the program's exit status.
pub fn main() -> ExitCode {
    start_log();
    let given: Vec<OsString> = std::env::args_os().collect();
    let arguments: Arguments =
        parse(&given).unwrap_or_else(|error| refuse(&error, &Arguments::command(), &given));
    let result = match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Record(arguments) => record::record(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Report(arguments) => done(arguments.execute()),
        Command::Export(arguments) => done(arguments.execute()),
        Command::Flamegraph(arguments) => done(arguments.execute()),
        Command::Html(arguments) => done(arguments.execute()),
        Command::Diff(arguments) => done(arguments.execute()),
        Command::Tool(tool) => tool.execute().map_err(Into::into),
        Command::Setup(setup) => setup
            .execute(&Arguments::command(), &mut io::stdout())
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
    };
    exit::status_of(result, told_as(&given, "kvmprof"))
}

fn done(result: Result<(), CommandError>) -> anyhow::Result<ExitCode> {
    match result {
        // Whoever reads has seen enough.
        Err(CommandError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(ExitCode::SUCCESS)
        }
        other => Ok(other.map(|()| ExitCode::SUCCESS)?),
    }
}

/// Sends warnings to standard error; `RUST_LOG` chooses other levels.
fn start_log() {
    let level = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(level)
        .format(|buffer, record| writeln!(buffer, "kvmprof: {}", record.args()))
        .init();
}
