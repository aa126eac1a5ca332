//! `kvmprof flamegraph`.

use clap::Args;

use super::CommandError;
use super::input::TaskInput;
use super::output_limit::OutputLimit;
use super::picture::PictureArguments;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_report::graph::{Graph, account, marked};
use kvmprof_report::profile::{label_keys, labels_in_words};
use kvmprof_report::tasks;
use kvmprof_report::text::visible;

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
    /// The key of a label of processes, such as user: processes stand on frames of its values
    #[arg(long, value_name = "KEY", conflicts_with = "tasks")]
    by: Option<String>,
    /// Draw it upside down: the outermost frames at the top
    #[arg(long)]
    icicle: bool,
    /// Draw where the guest's tasks waited that were on no vCPU, by the looks of a recording that was made with --tasks
    #[arg(long)]
    tasks: bool,
}

impl Command for FlamegraphArguments {
    /// Reads the recordings and draws them in the colours of the page.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        if self.tasks {
            return self.draw_tasks(console);
        }
        let (profile, _) = self.picture.open::<()>(console)?;
        if let Some(key) = &self.by
            && !label_keys(&profile).contains(key.as_str())
        {
            return Err(usage(format_args!(
                "--by has no label \"{}\": {}",
                visible(key),
                labels_in_words(&profile)
            )));
        }
        let lines = marked(
            &profile,
            self.by.as_deref(),
            &self.limit.budget(profile.length()),
        )?;
        if lines.is_empty() {
            return Err(CommandError::NoSamples(self.picture.names()).into());
        }
        let graph = Graph {
            title: self.picture.title(&profile),
            subtitle: account(&profile),
            icicle: self.icicle,
            differential: false,
        };
        self.draw(&graph, &lines, console)
    }
}

impl FlamegraphArguments {
    fn draw_tasks(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let TaskInput {
            sums,
            resolver,
            title,
            length,
        } = self.picture.open_tasks(console)?;
        let lines = tasks::folded(&sums, &resolver, &self.limit.budget(length))?;
        if lines.is_empty() {
            return Err(CommandError::NoLooks(self.picture.names()).into());
        }
        let graph = Graph {
            title: self.picture.title_or(format!("Waiting tasks: {title}")),
            subtitle: format!(
                "{} looks at all tasks; a tick is a task in a look",
                sums.looks
            ),
            icicle: self.icicle,
            differential: false,
        };
        self.draw(&graph, &lines, console)
    }

    fn draw(
        &self,
        graph: &Graph,
        lines: &[String],
        console: &mut Console<'_>,
    ) -> anyhow::Result<ExitStatus> {
        let svg = graph.draw(lines);
        let svg = svg.map_err(|error| CommandError::Drawing(error.to_string()))?;
        self.picture.write(&svg, console)?;
        Ok(ExitStatus::SUCCESS)
    }
}
