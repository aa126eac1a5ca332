//! `kvmprof diff`.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{ArgGroup, Args};

use super::input::no_samples;
use super::output::{Naming, check_output, is_standard, write_picture};
use super::output_limit::OutputLimit;
use super::{InputArguments, NO_OUTPUT};
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_cli::table::{USUAL_ROWS, most_rows};
use kvmprof_cli::text::write_json;
use kvmprof_report::diff::{changes, document, draw, print};
use kvmprof_report::html::{Counts, comparison_page};
use kvmprof_report::profile::{Profile, RowsArguments, TableStyle, Weight};

/// Show what changed from one recording to another, or from one time of a recording to another
///
/// Lists the functions whose share of all ticks changed, the biggest changes first, each with a 95 % confidence interval; those
/// that may be chance, as so many were compared, are marked.
///
/// With --html it writes the page of kvmprof html with two columns, and a flame graph coloured by the change of the total share;
/// with --output a differential flame graph as wide as in AFTER, red where a function's own share grew, blue where it shrank. The
/// colours of both have the same steps in each picture: 0.1, 1 and 5 % of all ticks.
///
/// Processes are matched by their names. Addresses without a name can't be matched: they count as one.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("picture").args(["output", "html"]).conflicts_with_all(["sort", "top", "json"]),
    after_help = "Exit status: 0; 1 when the recording cannot be read or has nothing that the options select, or the file cannot \
    be written; 2 for wrong options.\n\n\
    Examples:\n  kvmprof diff before.kvmprof after.kvmprof\n  \
    kvmprof diff before.kvmprof after.kvmprof --html diff.html\n  \
    kvmprof diff out.kvmprof --time 0:10 --time 10:20"
)]
pub struct DiffArguments {
    /// The earlier recording; - is standard input
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The later recording, which is compared with the earlier one; without it, two times of BEFORE are compared, by two --time
    #[arg(value_name = "AFTER")]
    after: Option<PathBuf>,
    #[command(flatten)]
    input: InputArguments,
    /// The SVG file of a differential flame graph; - is standard output; it is compressed by gzip if its name ends in .gz
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// The file of a page with both recordings; - is standard output; it is compressed by gzip if its name ends in .gz
    #[arg(long, value_name = "PATH")]
    html: Option<PathBuf>,
    /// Replace the output file even if it is a recording
    #[arg(long, requires = "picture")]
    force: bool,
    #[command(flatten)]
    rows: RowsArguments,
    /// Draw the flame graph upside down: the outermost frames at the top
    #[arg(long, requires = "output")]
    icicle: bool,
    #[command(flatten)]
    limit: OutputLimit,
    /// The title above the flame graph or the page
    #[arg(long, value_name = "TEXT", requires = "picture")]
    title: Option<String>,
}

/// A recording, its compared part, and its name.
struct ComparedRecording<'a> {
    path: &'a Path,
    input: InputArguments,
    name: String,
}

impl Command for DiffArguments {
    /// Reads both recordings, and prints the changes to standard output, or draws them.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let sides = self.sides()?;
        let inputs = [sides[0].path, sides[1].path];
        if is_standard(inputs[0]) && is_standard(inputs[1]) {
            return Err(usage(
                "Only one of the two recordings can come from standard input, and only once",
            ));
        }
        let options = [("--output", &self.output), ("--html", &self.html)];
        for (option, output) in options {
            let force = Some(self.force);
            if let Some(output) = output {
                check_output(output, &inputs, Naming { option, force })?;
            }
        }
        let mut counts = Vec::new();
        let mut profiles = Vec::new();
        for side in &sides {
            let mut own = Counts::default();
            let mut profile = if self.output.is_some() {
                side.input.open(side.path, console)?.profile
            } else {
                let input = side.input.open_with(side.path, console, &mut own);
                input?.profile
            };
            if profile.samples() == 0 {
                return Err(no_samples(&side.name));
            }
            profile.file = side.path.display().to_string();
            profiles.push(profile);
            counts.push(own);
        }
        let (Some(after), Some(before)) = (profiles.pop(), profiles.pop()) else {
            return Ok(ExitStatus::SUCCESS);
        };
        let [kind, other] =
            [&before, &after].map(|one| Weight::of_tick(&one.contents.info).quantity);
        if kind != other {
            bail!(
                "The recordings were sampled by different events, or one of them by the clock: compare recordings of the same --event"
            );
        }
        if let Some(output) = &self.html {
            let page = comparison_page(before, after, counts, &self.title(&sides));
            write_picture(output, page.as_bytes(), console)?;
        } else if let Some(output) = &self.output {
            let length = before.length().saturating_add(after.length());
            let (title, budget) = (self.title(&sides), self.limit.budget(length));
            let svg = draw([&before, &after], title, self.icicle, &budget)?;
            write_picture(output, &svg, console)?;
        } else {
            self.print([&before, &after], &counts, console)?;
        }
        Ok(ExitStatus::SUCCESS)
    }
}

impl DiffArguments {
    /// The two sides of the comparison.
    fn sides(&self) -> anyhow::Result<[ComparedRecording<'_>; 2]> {
        let times = self.input.times();
        let after = self.after.as_deref();
        let both = [&*self.before, after.unwrap_or(&self.before)];
        let side = |number: usize| {
            let path = both[number];
            let name = path.display();
            match times.get(number) {
                Some(time) if times.len() > 1 => ComparedRecording {
                    path,
                    input: self.input.with_time(*time),
                    name: format!("{name} {time}"),
                },
                _ => ComparedRecording {
                    path,
                    input: self.input.clone(),
                    name: name.to_string(),
                },
            }
        };
        match (after, times.len()) {
            (Some(_), 0..=2) | (None, 2) => Ok([side(0), side(1)]),
            (Some(_), _) => Err(usage(
                "Two recordings have two times at most: one --time for each, or one for both",
            )),
            (None, _) => Err(usage(
                "There is nothing to compare with: name two recordings, or one and two times, such as --time 0:10 --time 10:20",
            )),
        }
    }

    fn title(&self, [before, after]: &[ComparedRecording<'_>; 2]) -> String {
        let default_title = || format!("{} against {}", after.name, before.name);
        self.title.clone().unwrap_or_else(default_title)
    }

    fn print(
        &self,
        profiles: [&Profile; 2],
        counts: &[Counts],
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        let [before, after] = [0, 1].map(|side: usize| (profiles[side], counts.get(side)));
        let RowsArguments { sort, top, json } = self.rows;
        let changes = changes(before, after, sort);
        let top = most_rows(top, USUAL_ROWS, json);
        let printed = if json {
            let document = document(&changes, profiles, sort, top);
            write_json(console.text(), document)
        } else {
            let colours = TableStyle::for_terminal(console.is_terminal()).colours;
            print(&changes, profiles, top, colours, console.text())
        };
        printed.context(NO_OUTPUT)
    }
}
