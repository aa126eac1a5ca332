//! `kvmprof boot`.

mod document;
mod flames;
mod reading;
mod runs;
mod tables;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_cli::text::write_json;
use kvmprof_recording::file::Unobserved;
use kvmprof_report::boot::{Boot, Levels, Summary, compare};
use tempfile::TempDir;

use super::guest::{GuestOptions, parse_console_text, with_kernel};
use super::recordings::{NO_OUTPUT, OutputLimit, Progress};
use flames::Flames;
use reading::{levels_of, read_all, recordings_of};
use runs::{Outcome, RecordedBoots, Runs};

/// The heading of the options that apply only to guests that are started.
const STARTED: &str = "Options of the guests (see kvmprof run)";
/// Default number of ticks a second, because initcalls take milliseconds.
const HZ: &str = "1000";

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
    (by t-tests, with the rounding to ticks, corrected for as many comparisons as there are rows).\n\n\
    Exit status: 0; 1 when a recording cannot be read or has no boot of Linux in it, or a boot hasn't come to its end; 2 for wrong \
    options. With --kernel also as kvmprof \
    run.\n\n\
    Examples:\n  kvmprof boot --kernel vmlinuz --initrd initrd.img --runs 5 --until \"login:\" --output before\n  \
    kvmprof boot before --flamegraphs pictures\n  kvmprof boot after --against before"
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
    /// Draw a flame graph of each phase of each boot, an SVG file in this folder; it is made if it isn't there
    #[arg(long, value_name = "DIR")]
    flamegraphs: Option<PathBuf>,
    #[command(flatten)]
    limit: OutputLimit,
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
    /// Boots the guest, if a kernel is given, and prints the times of its boots.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let against = recordings_of(&self.against)?;
        let flames = self.flamegraphs.as_deref();
        let flames = flames.map(|folder| Flames::new(folder, self.limit));
        let flames = flames.transpose()?;
        let boots = match &self.kernel {
            None => self.read(&against)?,
            Some(kernel) => match self.make(kernel, &against, console)? {
                Ok(boots) => boots,
                Err(status) => return Ok(status),
            },
        };
        let after = Summary::new(&boots.after, &boots.levels);
        let out = console.text();
        let written = if against.is_empty() {
            match self.json {
                true => write_json(out, document::of_summary(&after)),
                false => out.write_all(tables::of_summary(&after, self.top).as_bytes()),
            }
        } else {
            let before = Summary::new(&boots.before, &boots.levels);
            let (phases, calls) = compare(&before, &after);
            if self.json {
                let document = document::of_comparison(&before, &after, &phases, &calls);
                write_json(out, document)
            } else {
                let text = tables::of_comparison(&before, &after, &phases, &calls, self.top);
                out.write_all(text.as_bytes())
            }
        };
        written.context(NO_OUTPUT)?;
        if let Some(flames) = flames {
            flames.draw(&boots.after, &boots.paths, console)?;
        }
        Ok(boots.status)
    }
}

/// The boots that were read.
struct Boots {
    /// The boots to compare others with.
    before: Vec<Boot>,
    after: Vec<Boot>,
    /// The recordings of `after`.
    paths: Vec<PathBuf>,
    /// Their folder, if they are temporary.
    _folder: Option<TempDir>,
    levels: Levels,
    /// The status of the first guest that has failed, if there is one.
    status: ExitStatus,
}

impl BootArguments {
    /// Reads the given recordings, and those `against` which they are compared.
    fn read(&self, against: &[PathBuf]) -> anyhow::Result<Boots> {
        let levels = Levels::default();
        let files = recordings_of(&self.files)?;
        let progress = Progress::for_terminal();
        let read =
            |paths: &[PathBuf]| read_all(paths, &levels, self.limit, |step| progress.of(step));
        Ok(Boots {
            before: read(against)?,
            after: read(&files)?,
            paths: files,
            _folder: None,
            status: ExitStatus::SUCCESS,
            levels,
        })
    }

    /// Boots the `kernel`, and reads the recordings. Checks everything else before, because the boots may take hours.
    /// Returns only a status if there is nothing to print.
    fn make(
        &self,
        kernel: &Path,
        against: &[PathBuf],
        console: &mut Console<'_>,
    ) -> anyhow::Result<Result<Boots, ExitStatus>> {
        let levels = levels_of(kernel)?;
        // No thread that catches signals may exist yet, so signals end the program.
        let before = read_all(against, &levels, self.limit, |_| Unobserved)?;
        let RecordedBoots {
            status,
            paths,
            folder,
        } = match Runs::new(self, kernel)?.make(console)? {
            Outcome::Ended(status) => return Ok(Err(status)),
            Outcome::RecordedBoots(made) => made,
        };
        let progress = Progress::for_terminal();
        let after = read_all(&paths, &levels, self.limit, |step| progress.of(step))?;
        Ok(Ok(Boots {
            before,
            after,
            paths,
            _folder: folder,
            levels,
            status,
        }))
    }
}
