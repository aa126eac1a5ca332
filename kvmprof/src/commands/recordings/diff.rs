//! `kvmprof diff`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;

use super::output::{check_output, is_packed_name, is_standard, write_to};
use super::output_limit::OutputLimit;
use super::{CommandError, InputArguments};
use kvmprof_report::diff::{changes, folded_changes, print};
use kvmprof_report::graph::Graph;
use kvmprof_report::profile::{Look, Profile, SortBy, Weight};
use kvmprof_report::room::Room;
use kvmprof_tools::command_line::{Command, Console, ExitStatus, usage};

/// Show what changed from one recording to another
///
/// Lists the functions whose share of all ticks changed, the biggest changes first, each with a 95 %
/// confidence interval; those that may be chance are marked. With --output it draws a differential flame
/// graph instead: as wide as in AFTER, red where the share grew, blue where it shrank.
///
/// Processes are matched by their names. Addresses without a name can't be matched: they count as one.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when the recording cannot be read or has nothing of what was chosen, or the file cannot \
    be written; 2 for wrong options.\n\n\
    Example: kvmprof diff before.kvmprof after.kvmprof"
)]
pub struct DiffArguments {
    /// The earlier recording; - is standard input
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The later recording, which is compared with the earlier one; - is standard input
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    #[command(flatten)]
    input: InputArguments,
    /// The SVG file of a differential flame graph; - is standard output; a name that ends in .gz has it packed by gzip
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Replace the output file even if it is a recording
    #[arg(long, requires = "output")]
    force: bool,
    /// Compare functions by their own samples, or by all samples with the function on the stack
    #[arg(
        long,
        value_enum,
        default_value = "self",
        value_name = "ORDER",
        conflicts_with = "output"
    )]
    sort: SortBy,
    /// The most rows that the table has
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        conflicts_with = "output"
    )]
    top: usize,
    /// Draw the flame graph upside down: the outermost frames at the top
    #[arg(long, requires = "output")]
    icicle: bool,
    #[command(flatten)]
    limit: OutputLimit,
    /// The title above the flame graph
    #[arg(long, value_name = "TEXT", requires = "output")]
    title: Option<String>,
}

impl Command for DiffArguments {
    /// Reads both recordings; prints the changes to standard output, or draws them.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        if is_standard(&self.before) && is_standard(&self.after) {
            return Err(usage(
                "Only one of the two recordings can come from standard input",
            ));
        }
        if let Some(output) = &self.output {
            check_output(output, &[&self.before, &self.after], self.force)?;
        }
        let before = self.input.open(&self.before, console)?;
        let after = self.input.open(&self.after, console)?;
        let length = before.recording.length();
        let room = self
            .limit
            .room(length.saturating_add(after.recording.length()));
        let (before, after) = (before.profile, after.profile);
        for (profile, path) in [(&before, &self.before), (&after, &self.after)] {
            if profile.samples() == 0 {
                return Err(CommandError::NoSamples(path.display().to_string()).into());
            }
        }
        let [kind, other] =
            [&before, &after].map(|one| Weight::of_tick(&one.contents.info).quantity);
        if kind != other {
            return Err(CommandError::DifferentEvents.into());
        }
        match &self.output {
            Some(output) => {
                let svg = self.draw(&before, &after, &room);
                let svg = svg.map_err(|error| CommandError::Drawing(error.to_string()))?;
                write_to(output, is_packed_name(output), console.output, |out| {
                    out.write_all(&svg).map_err(CommandError::Output)
                })?;
            }
            None => {
                let colours = Look::for_terminal(std::io::stdout().is_terminal()).colours;
                let changes = changes(&before, &after, self.sort);
                print(
                    &changes,
                    [&before, &after],
                    self.top,
                    colours,
                    console.output,
                )
                .map_err(CommandError::Output)?;
            }
        }
        Ok(ExitStatus::SUCCESS)
    }
}

impl DiffArguments {
    fn draw(&self, before: &Profile, after: &Profile, room: &Room) -> std::io::Result<Vec<u8>> {
        let default_title =
            || format!("{} against {}", self.after.display(), self.before.display());
        let graph = Graph {
            title: self.title.clone().unwrap_or_else(default_title),
            subtitle: format!(
                "{} ticks against {}: red where the share grew, blue where it shrank",
                after.samples(),
                before.samples()
            ),
            icicle: self.icicle,
            differential: true,
        };
        graph.draw(&folded_changes(before, after, room)?)
    }
}
