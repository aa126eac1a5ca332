//! `kvmprof boot`.

mod document;
mod runs;
mod tables;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use kvmprof_introspection::GuestKnowledge;
use kvmprof_report::boot::{Boot, INITCALL_PREFIX, Levels, Summary, compare};
use kvmprof_report::export::Source;
use kvmprof_tools::command_line::{Command, Console, ExitStatus, value};

use super::guest::{GuestOptions, parse_console_text, with_kernel};
use super::recordings::CommandError;
use runs::Runs;

/// The heading of the options that only guests have which are started.
const STARTED: &str = "Options of the guests (see kvmprof run)";
/// Ticks a second, if not chosen otherwise: initcalls take milliseconds.
const HZ: &str = "1000";
/// Longest kernel image, in bytes.
const IMAGE_MAX: u64 = 1 << 30;

/// Show where a Linux kernel's boot takes its time: phases, and each initcall
///
/// Boots the kernel, more than once for confidence, and records each boot from the first instruction; or takes recordings that are there.
/// Nothing in the guest is changed. A time is as exact as the ticks of the clock are close (--hz).
#[derive(Debug, Args)]
#[command(
    mut_args(with_kernel(STARTED)),
    mut_arg("hz", |option| option.default_value(HZ)),
    mut_arg("console", |option| option.default_value("none")),
    after_help = "The mean of several boots comes with its 95 % confidence interval, and a change with the probability that it is chance \
    (Welch's t-test, corrected for as many comparisons as there are rows).\n\n\
    Exit status: 0; 1 when a recording cannot be read or has no boot of Linux in it; 2 for wrong options. With --kernel also as kvmprof \
    run.\n\n\
    Examples:\n  kvmprof boot --kernel vmlinuz --initrd initrd.img --runs 5 --until \"login:\" --output before\n  \
    kvmprof boot before/*.kvmprof\n  kvmprof boot after/*.kvmprof --against before"
)]
pub struct BootArguments {
    /// Recordings of the same guest's boots, made by kvmprof boot --output or kvmprof run --record; of a folder, all that end in .kvmprof
    #[arg(
        value_name = "FILE",
        conflicts_with = "kernel",
        required_unless_present = "kernel"
    )]
    files: Vec<PathBuf>,
    /// Compare with these recordings, which were made before a change; of a folder, all that end in .kvmprof
    #[arg(long, value_name = "FILE")]
    against: Vec<PathBuf>,
    /// Print a JSON document
    #[arg(long)]
    json: bool,
    /// The most initcalls that are printed
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Boot this kernel, a Linux bzImage or an ELF file
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// How often to boot it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = STARTED)]
    runs: u16,
    /// A boot ends when the guest's console says this; if not given, when the guest ends
    #[arg(long, value_name = "TEXT", value_parser = parse_console_text, help_heading = STARTED)]
    until: Option<String>,
    /// How long a boot takes at most, in seconds
    #[arg(long, value_name = "N", value_parser = value::seconds, help_heading = STARTED)]
    seconds: Option<Duration>,
    /// Keep the recordings in this folder, as boot-1.kvmprof and so on; it is made if it isn't there
    #[arg(short, long, value_name = "DIR", help_heading = STARTED)]
    output: Option<PathBuf>,
    #[command(flatten, next_help_heading = STARTED)]
    guest: GuestOptions,
}

impl Command for BootArguments {
    /// Boots the guest, if a kernel is given, and prints what its boots took.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let against = recordings_of(&self.against)?;
        let (status, boots, levels) = match &self.kernel {
            None => (
                ExitStatus::SUCCESS,
                read_all(&recordings_of(&self.files)?, &Levels::default())?,
                Levels::default(),
            ),
            Some(kernel) => match Runs::new(self, kernel)?.make(console)? {
                runs::Outcome::Ended(status) => return Ok(status),
                runs::Outcome::Made { status, recordings } => {
                    let levels = levels_of(kernel)?;
                    (status, read_all(&recordings.paths, &levels)?, levels)
                }
            },
        };
        let after = Summary::new(&boots, &levels);
        let text = if against.is_empty() {
            match self.json {
                true => document::of_summary(&after),
                false => tables::of_summary(&after, self.top),
            }
        } else {
            let before = Summary::new(&read_all(&against, &levels)?, &levels);
            let (phases, calls) = compare(&before, &after);
            match self.json {
                true => document::of_comparison((&before, &after), &phases, &calls),
                false => tables::of_comparison((&before, &after), &phases, &calls, self.top),
            }
        };
        let written = console.output.write_all(text.as_bytes());
        written.map_err(CommandError::Output)?;
        Ok(status)
    }
}

/// The recordings that are named, also by the folder that they are in.
fn recordings_of(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut recordings = Vec::new();
    for path in paths {
        if !path.is_dir() {
            recordings.push(path.clone());
            continue;
        }
        let reading = || format!("Cannot read the folder {}", path.display());
        let mut found = Vec::new();
        for entry in path.read_dir().with_context(reading)? {
            let path = entry.with_context(reading)?.path();
            if path.extension().is_some_and(|end| end == "kvmprof") {
                found.push(path);
            }
        }
        if found.is_empty() {
            anyhow::bail!("There is no recording (*.kvmprof) in {}", path.display());
        }
        found.sort();
        recordings.extend(found);
    }
    Ok(recordings)
}

fn read_all(paths: &[PathBuf], levels: &Levels) -> anyhow::Result<Vec<Boot>> {
    let read = |path: &PathBuf| {
        let source = Source::open(path, &[])?;
        Boot::read(&source, levels).with_context(|| path.display().to_string())
    };
    paths.iter().map(read).collect()
}

/// The levels of the kernel's initcalls, which its image has.
fn levels_of(kernel: &Path) -> anyhow::Result<Levels> {
    let reading = || format!("Cannot read the kernel {}", kernel.display());
    let length = kernel.metadata().with_context(reading)?.len();
    if length > IMAGE_MAX {
        anyhow::bail!("{} is too long for a kernel", kernel.display());
    }
    let image = std::fs::read(kernel).with_context(reading)?;
    let knowledge = GuestKnowledge::from_image(&image).with_context(reading)?;
    let symbols = knowledge.symbols();
    let names = symbols.map(|symbols| symbols.names_with(INITCALL_PREFIX));
    Ok(Levels::from_symbols(names.into_iter().flatten()))
}
