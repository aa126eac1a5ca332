//! The program's commands: arguments in, exit status out.

mod attach;
mod bar;
mod boot;
mod browser;
mod clock;
mod collect;
mod config;
mod control;
mod demo;
mod exit;
mod guest;
mod list;
mod live_line;
mod other_program;
mod pmc;
mod profil;
mod query;
mod record;
mod record_limit;
mod recorder;
pub mod recordings;
mod root;
mod run;
mod sandbox;
mod separate_process;
mod status;
mod thread_panics;
mod top;
mod units;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use crate::jail::JailArguments;
use clap::{CommandFactory, Parser, Subcommand};
use kvmprof_cli::command_line::{self, Program, usage, usage_error};
use kvmprof_cli::text::visible_lines;
use kvmprof_tools::program::{Setup, Tool};
use profil::{PcsampleArguments, ProfilArguments};
use recordings::{
    DiffArguments, ExportArguments, FlamegraphArguments, HtmlArguments, ReportArguments,
    StallsArguments, ViewArguments,
};
pub(crate) use sandbox::options_of_jail;

/// A profiler that looks at a guest from the hypervisor
///
/// kvmprof run starts a guest under a profiling clock and listens at a socket, which the other commands take as --socket
/// (or KVMPROF_SOCKET). Called by the name of a tool, through a link (see install-links), the program is that tool.
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
    /// Boots an unmodified Linux bzImage, or another kernel in an ELF file. The clock runs only while pcs is open, a minor
    /// of prf is on, or a recording is made.
    Run(Box<run::RunArguments>),
    /// Profile a guest that another program runs, such as QEMU
    ///
    /// Serves the same socket as kvmprof run, but profil, pmc and control, without the guest's or the VMM's help. Each vCPU's thread
    /// is stopped at each tick by ptrace(2). The guest and its VMM go on when kvmprof ends, however it does.
    Attach(attach::AttachArguments),
    /// Run a guest as kvmprof run does, in namespaces, a folder and limits of its own and as another user
    ///
    /// For guests that are distrusted, and hosts where no other program puts kvmprof into a container.
    Jail(JailArguments),
    /// Run the embedded guest and compare who used the time with what the guest itself counted
    Demo(demo::DemoArguments),
    /// List the KVM guests of this host, whatever program runs them
    ///
    /// Each with its VMM's process, its name, its memory, and the threads of its vCPUs. Memory and threads of guests that
    /// kvmprof did not start come from the host's kernel, by eBPF: that needs CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or root.
    List(list::ListArguments),
    /// Show the machine, the clock and where every tick went
    ///
    /// All counts are ticks of the clock, since the guest was started or since a consumer began. In each equation the
    /// terms on the right add up to the number on the left.
    Status(status::StatusArguments),
    Control(control::ControlArguments),
    Collect(collect::CollectArguments),
    Query(query::QueryArguments),
    /// Record every tick of a running guest to a file, with call stacks
    ///
    /// Any number of recordings can run at once, beside pcs and prf. Ctrl-C ends the recording and closes its file. A file
    /// that was cut off can be read up to that point.
    Record(Box<record::RecordArguments>),
    Boot(Box<boot::BootArguments>),
    Pmc(pmc::PmcArguments),
    /// Show live where a running guest spends its time
    ///
    /// A terminal shows processes, functions, call stacks and vCPUs over the last seconds; the key h lists the keys. A pipe
    /// gets plain tables, one after the other.
    Top(top::TopArguments),
    Profil(ProfilArguments),
    Pcsample(PcsampleArguments),
    Report(ReportArguments),
    Stalls(StallsArguments),
    Export(ExportArguments),
    Flamegraph(FlamegraphArguments),
    Html(HtmlArguments),
    View(ViewArguments),
    Diff(DiffArguments),
    #[command(flatten)]
    Tool(Tool),
    #[command(flatten)]
    Setup(Setup),
}

impl Program for Arguments {
    fn expand(arguments: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
        config::expand(&Self::command(), arguments)
    }

    fn chosen(&self) -> &dyn command_line::Command {
        match &self.command {
            Command::Run(arguments) => arguments.as_ref(),
            Command::Attach(arguments) => arguments,
            Command::Jail(arguments) => arguments,
            Command::Demo(arguments) => arguments,
            Command::List(arguments) => arguments,
            Command::Status(arguments) => arguments,
            Command::Control(arguments) => arguments,
            Command::Collect(arguments) => arguments,
            Command::Query(arguments) => arguments,
            Command::Record(arguments) => arguments.as_ref(),
            Command::Boot(arguments) => arguments.as_ref(),
            Command::Pmc(arguments) => arguments,
            Command::Top(arguments) => arguments,
            Command::Profil(arguments) => arguments,
            Command::Pcsample(arguments) => arguments,
            Command::Report(arguments) => arguments,
            Command::Stalls(arguments) => arguments,
            Command::Export(arguments) => arguments,
            Command::Flamegraph(arguments) => arguments,
            Command::Html(arguments) => arguments,
            Command::View(arguments) => arguments,
            Command::Diff(arguments) => arguments,
            Command::Tool(tool) => tool.chosen(),
            Command::Setup(setup) => setup,
        }
    }
}

/// The options of `kvmprof run` in `words`, which begin with `run`, as on its own command line.
///
/// # Errors
/// The options are wrong, or it is another command.
pub(crate) fn parse_run(words: &[OsString]) -> anyhow::Result<Box<run::RunArguments>> {
    let arguments: Vec<OsString> = [OsString::from("kvmprof")]
        .into_iter()
        .chain(words.iter().cloned())
        .collect();
    let arguments = Arguments::expand(arguments)?;
    let parsed = Arguments::try_parse_from(&arguments).map_err(|error| {
        let message = usage_error(&error, &Arguments::command(), &arguments);
        usage(
            message.unwrap_or_else(|| "behind -- there has to be run with its options".to_owned()),
        )
    })?;
    match parsed.command {
        Command::Run(arguments) => Ok(arguments),
        _ => Err(usage("A jail is for kvmprof run: -- run OPTION...")),
    }
}

/// Executes the command line. Returns the program's exit status.
pub fn main() -> ExitCode {
    start_log();
    let status = command_line::main::<Arguments>();
    thread_panics::status().map_or(status, ExitCode::from)
}

/// Parses a command line as [`main`] does, with the program's name first, and executes nothing. Doesn't read files of
/// `--config`.
///
/// # Errors
/// The command line is wrong, or requests help.
pub fn check(arguments: &[OsString]) -> Result<(), clap::Error> {
    command_line::parse::<Arguments>(arguments).map(drop)
}

/// Sends warnings to standard error; `RUST_LOG` chooses other levels.
fn start_log() {
    let level = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(level)
        .format(|buffer, record| {
            let message = visible_lines(&record.args().to_string());
            writeln!(buffer, "kvmprof: {message}")
        })
        .init();
}
