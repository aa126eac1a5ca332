//! `kvmprof flamegraph`.

use clap::Args;

use super::input::{TaskInput, no_looks, no_samples};
use super::output_limit::OutputLimit;
use super::picture::PictureArguments;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_report::graph::{Graph, GraphArguments, GraphError, title};
use kvmprof_report::tasks;

/// The ending of the picture's name.
const ENDING: &str = "svg";

/// Draw the stacks of recordings as a flame graph, an SVG file
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when the recording cannot be read or has nothing that the options select, or the file cannot \
    be written; 2 for wrong options.\n\n\
    Example: kvmprof flamegraph out.kvmprof --output out.svg"
)]
pub struct FlamegraphArguments {
    #[command(flatten)]
    picture: PictureArguments,
    #[command(flatten)]
    limit: OutputLimit,
    #[command(flatten)]
    graph: GraphArguments,
    /// Draw where the guest's tasks waited that were on no vCPU, by the looks of a recording that was made with --tasks
    #[arg(long, conflicts_with = "by")]
    tasks: bool,
}

impl Command for FlamegraphArguments {
    /// Reads the recordings and draws them in the colours of the page.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        if self.tasks {
            return self.draw_tasks(console);
        }
        let by_parts = self.graph.need_parts().then_some(self.limit);
        let input = self.picture.checked_input(ENDING)?;
        let profile = input.open_grouped(&self.picture.files, by_parts, console)?;
        let title = self.picture.title_or(title(&profile));
        let budget = self.limit.budget(profile.length());
        let svg = self.graph.draw(&profile, title, &budget);
        let svg = svg.map_err(|error| match error {
            GraphError::NoSuchLabel { .. } => usage(error),
            GraphError::NoSamples => no_samples(&self.picture.names()),
            other => other.into(),
        })?;
        self.picture.write(&svg, ENDING, console)?;
        Ok(ExitStatus::SUCCESS)
    }
}

impl FlamegraphArguments {
    fn draw_tasks(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let TaskInput {
            sums,
            resolver,
            title,
            length,
        } = (self.picture.checked_input(ENDING)?).open_tasks(&self.picture.files, console)?;
        let lines = tasks::folded(&sums, &resolver, &self.limit.budget(length))?;
        if lines.is_empty() {
            return Err(no_looks(&self.picture.names()));
        }
        let graph = Graph {
            title: self.picture.title_or(format!("Waiting tasks: {title}")),
            subtitle: format!(
                "{} looks at all tasks; a tick is a task in a look",
                sums.looks
            ),
            icicle: self.graph.icicle,
            ..Graph::default()
        };
        let svg = graph.draw(&lines).map_err(GraphError::from)?;
        self.picture.write(&svg, ENDING, console)?;
        Ok(ExitStatus::SUCCESS)
    }
}
