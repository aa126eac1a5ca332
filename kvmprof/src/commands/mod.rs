//! The program's commands: arguments in, exit status out.

mod attach;
mod bar;
mod boot;
mod browser;
mod config;
mod control;
mod demo;
mod dump;
mod exit;
mod exits;
mod guest;
mod jail;
mod list;
mod live_line;
mod other_program;
mod pmc;
mod processes;
mod profil;
mod profiling;
mod record;
mod record_limit;
mod recorder;
pub mod recordings;
mod root;
mod run;
mod sandbox;
mod separate_process;
mod status;
mod targets;
mod thread_panics;
mod top;
mod units;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use crate::commands::jail::JailArguments;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use kvmprof_cli::command_line::{self, Program, is_called_as_tool, parse, usage, usage_error};
use kvmprof_cli::text;
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
#[derive(Debug, Args)]
#[command(
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct WithoutCommands {}

/// The option that asks for the program's version.
const VERSION: &str = "--version";

/// The command line of one command.
fn part<T: Args>(name: &'static str) -> clap::Command {
    let part = T::augment_args(clap::Command::new(name));
    match name {
        "record" => record::with_groups(part),
        _ => part,
    }
}

/// Defines [`Arguments`] by the commands' names and arguments.
macro_rules! commands {
    ($($name:literal => $variant:ident($arguments:ty),)*) => {
        /// The command line: a command with its arguments.
        #[derive(Debug)]
        enum Arguments {
            $($variant(Box<$arguments>),)*
            Tool(Tool),
            Setup(Setup),
        }

        impl Arguments {
            /// The names of the commands that this program alone has.
            const NAMES: &[&str] = &[$($name),*];

            /// The program's command line with all its commands, or with only the one that is named: to build them all takes a
            /// millisecond, which the start of a guest shouldn't wait for.
            fn build(only: Option<&str>) -> clap::Command {
                let program = clap::Command::new("kvmprof");
                let program = match only {
                    Some(VERSION) => program,
                    $(Some($name) => {
                        program.subcommand(part::<$arguments>($name))
                    })*
                    _ => {
                        $(let program = program.subcommand(part::<$arguments>($name));)*
                        Setup::augment_subcommands(Tool::augment_subcommands(program))
                    }
                };
                // This comes last: parts describe themselves as if they were the program.
                WithoutCommands::augment_args(program)
            }

            fn of_command(name: &str, matches: &mut ArgMatches) -> Result<Self, clap::Error> {
                match name {
                    $($name => Ok(Self::$variant(FromArgMatches::from_arg_matches_mut(matches)?)),)*
                    _ => Err(clap::Error::new(ErrorKind::InvalidSubcommand)),
                }
            }
        }

        impl Program for Arguments {
            fn expand(program: &clap::Command, arguments: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
                config::expand(program, arguments)
            }

            fn command_for(arguments: &[OsString]) -> clap::Command {
                let first = arguments.get(1).and_then(|word| word.to_str());
                let only = first.filter(|name| *name == VERSION || Self::NAMES.contains(name));
                Self::build(only.filter(|_| !is_called_as_tool(arguments)))
            }

            fn chosen(&self) -> &dyn command_line::Command {
                match self {
                    $(Self::$variant(arguments) => arguments.as_ref(),)*
                    Self::Tool(tool) => tool.chosen(),
                    Self::Setup(setup) => setup,
                }
            }
        }
    };
}

commands! {
    "run" => Run(run::RunArguments),
    "attach" => Attach(attach::AttachArguments),
    "dump" => Dump(dump::DumpArguments),
    "jail" => Jail(JailArguments),
    "demo" => Demo(demo::DemoArguments),
    "exits" => Exits(exits::ExitsArguments),
    "list" => List(list::ListArguments),
    "status" => Status(status::StatusArguments),
    "control" => Control(control::ControlArguments),
    "collect" => Collect(other_program::CollectArguments),
    "query" => Query(other_program::QueryArguments),
    "processes" => Processes(processes::ProcessesArguments),
    "record" => Record(record::RecordArguments),
    "boot" => Boot(boot::BootArguments),
    "pmc" => Pmc(pmc::PmcArguments),
    "top" => Top(top::TopArguments),
    "profil" => Profil(ProfilArguments),
    "pcsample" => Pcsample(PcsampleArguments),
    "report" => Report(ReportArguments),
    "stalls" => Stalls(StallsArguments),
    "export" => Export(ExportArguments),
    "flamegraph" => Flamegraph(FlamegraphArguments),
    "html" => Html(HtmlArguments),
    "view" => View(ViewArguments),
    "diff" => Diff(DiffArguments),
}

impl Parser for Arguments {}

impl CommandFactory for Arguments {
    fn command() -> clap::Command {
        Self::build(None)
    }

    fn command_for_update() -> clap::Command {
        Self::build(None)
    }
}

impl FromArgMatches for Arguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let name = matches.subcommand_name().unwrap_or_default();
        if Tool::has_subcommand(name) {
            return Tool::from_arg_matches_mut(matches).map(Self::Tool);
        }
        if Setup::has_subcommand(name) {
            return Setup::from_arg_matches_mut(matches).map(Self::Setup);
        }
        match matches.remove_subcommand() {
            Some((name, mut matches)) => Self::of_command(&name, &mut matches),
            None => Err(clap::Error::new(ErrorKind::MissingSubcommand)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
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
    let program = Arguments::command_for(&arguments);
    let arguments = Arguments::expand(&program, arguments)?;
    let parsed: Arguments = parse(&program, &arguments).map_err(|error| {
        let message = usage_error(&error, &program, &arguments);
        usage(
            message.unwrap_or_else(|| "behind -- there has to be run with its options".to_owned()),
        )
    })?;
    match parsed {
        Arguments::Run(arguments) => Ok(arguments),
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
    let program = Arguments::command_for(arguments);
    parse::<Arguments>(&program, arguments).map(drop)
}

/// Sends warnings to standard error; `RUST_LOG` chooses other levels.
fn start_log() {
    let level = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(level)
        .format(|buffer, record| {
            let message = text::message(&record.args().to_string());
            writeln!(buffer, "kvmprof: {message}")
        })
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_alone_is_the_same_as_among_all() {
        let all = Arguments::command();
        all.clone().debug_assert();
        let about = all.get_about().map(ToString::to_string);
        assert!(about.is_some_and(|about| about.starts_with("A profiler")));
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let said = |program: clap::Command, words: &[OsString]| {
            let refused = program.try_get_matches_from(words).err();
            refused.map(|error| error.render().to_string())
        };
        for name in Arguments::NAMES {
            for option in ["--help", "--no-such-option"] {
                let words = words(&["kvmprof", name, option]);
                let alone = said(Arguments::command_for(&words), &words);
                assert_eq!(alone, said(all.clone(), &words), "{words:?}");
            }
        }
        let commands = |words: &[OsString]| {
            let program = Arguments::command_for(words);
            program.get_subcommands().count()
        };
        assert_eq!(commands(&words(&["kvmprof", "run"])), 1);
        assert_eq!(commands(&words(&["kvmprof", "--version"])), 0);
        for arguments in [
            &["kvmprof", "man"][..],
            &["kvmprof"],
            &["/bin/getpc", "run"],
        ] {
            let words = words(arguments);
            assert_eq!(commands(&words), all.get_subcommands().count());
        }
    }
}
