//! The program's command line.

use std::io::{BufWriter, IntoInnerError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::{Args, Parser, Subcommand};
use kvmprof_cli::command_line::{self, Command, Console, ExitStatus, Program, usage};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_cli::table::{USUAL_ROWS, most_rows};
use kvmprof_cli::text::write_json;
use kvmprof_recording::file::{NewFile, is_recording, write_new_file};
use kvmprof_report::budget::{OutputBudget, too_much};
use kvmprof_report::diff::{self, changes};
use kvmprof_report::graph::{GraphArguments, GraphError, title};
use kvmprof_report::html::{BesideTicks, comparison_page, page};
use kvmprof_report::profile::{
    Label, RowsArguments, TableArguments, TableError, TableStyle, print,
};
use kvmprof_report::symbolize::SourceTexts;
use kvmprof_tools::program::Setup;

use crate::engine::Engine;
use crate::output::{Format, Printer};
use crate::rows;

/// Query the data set of a fleet in SQL, or draw it
///
/// The data set is the folder or the object store into which the sinks of kvmprof-collect of the type parquet write. In SQL it is the table samples, with
/// one row for each window, process, thread, mode and stack. Conditions on date, host and guest choose which files are read. SQL can read nothing
/// else, and can write nothing.
#[derive(Debug, Parser)]
#[command(
    name = "kvmprof-query",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    mut_subcommand("install-links", |links| links.hide(true)),
    after_help = "Exit status: 0; 1 when the data set cannot be read, the SQL is wrong, or nothing was chosen; 2 for wrong options.\n\n\
    Examples:\n  kvmprof-query --data DIR 'SELECT function, sum(ticks) AS ticks FROM samples GROUP BY function ORDER BY ticks DESC LIMIT 10'\n  \
    kvmprof-query --data DIR --where \"guest = 'db-1' AND date = '2026-03-01'\" --as out.kvmprof\n  \
    kvmprof-query flamegraph --data DIR --where \"process = 'postgres'\" --output out.svg"
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Chosen>,
    #[command(flatten)]
    query: QueryArguments,
}

#[derive(Debug, Subcommand)]
enum Chosen {
    Flamegraph(FlamegraphArguments),
    Top(TopArguments),
    Diff(DiffArguments),
    #[command(flatten)]
    Setup(Setup),
}

/// The data set.
#[derive(Args, Debug)]
struct DataArguments {
    /// The data set: a folder, or s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, for which the environment has the keys
    /// (AWS_ACCESS_KEY_ID and similar variables)
    #[arg(long, value_name = "DIR|URL", env = "KVMPROF_DATA")]
    data: Option<String>,
    /// Maximum memory of groups and sorted rows, in MiB; queries that need more use temporary files, or are refused
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(16..))]
    memory_limit: u32,
}

impl DataArguments {
    fn open(&self) -> anyhow::Result<Engine> {
        let place = self.data.as_deref();
        let place = place.ok_or_else(|| {
            usage("Name the data set: --data DIR|URL, or KVMPROF_DATA in the environment")
        })?;
        let memory = usize::try_from(self.room()).unwrap_or(usize::MAX);
        Engine::open(place, memory, Interrupt::on_signals()?)
    }

    /// The memory limit in bytes.
    fn room(&self) -> u64 {
        u64::from(self.memory_limit) << 20
    }

    /// The picture that `draw` makes within the memory limit.
    fn draw(
        &self,
        draw: impl FnOnce(&OutputBudget) -> Result<Vec<u8>, GraphError>,
    ) -> anyhow::Result<Vec<u8>> {
        draw(&OutputBudget::new(self.room())).map_err(|error| match error {
            GraphError::NoSuchLabel { .. } => usage(error),
            GraphError::TooMuch(_) => self.too_large("picture"),
            other => other.into(),
        })
    }

    /// The error that `what` doesn't fit into the memory limit.
    fn too_large(&self, what: &str) -> anyhow::Error {
        anyhow::anyhow!(
            "The {what} would take more than {} bytes: choose less, or allow more by --memory-limit",
            self.room()
        )
    }
}

/// What chooses rows.
#[derive(Args, Debug)]
struct ChoiceArguments {
    /// Choose the rows for which this SQL expression is true; diff has one for the rows before and one for those after
    #[arg(long = "where", id = "condition", value_name = "CONDITION")]
    conditions: Vec<String>,
    /// Choose the rows with this label, such as user=1000; can be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    label: Vec<Label>,
}

impl ChoiceArguments {
    /// SQL expressions, all of which are true for the rows with the labels and for which `conditions` are true.
    fn with(&self, conditions: &[String]) -> Vec<String> {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let label =
            |label: &Label| format!("labels[{}] = {}", quoted(&label.key), quoted(&label.value));
        let labels = self.label.iter().map(label);
        conditions.iter().cloned().chain(labels).collect()
    }

    fn all(&self) -> Vec<String> {
        self.with(&self.conditions)
    }
}

/// An SQL query, or a recording to write.
#[derive(Args, Debug)]
struct QueryArguments {
    #[command(flatten)]
    data: DataArguments,
    /// The SQL query; put -- before it if it starts with a comment
    #[arg(value_name = "SQL", required_unless_present = "recording", conflicts_with_all = ["condition", "label"])]
    sql: Option<String>,
    /// The format of the answer
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
    /// Write the chosen rows as a recording instead, for kvmprof report and other commands. It has only data that the data set has, that is no addresses,
    /// vCPUs and exact times
    #[arg(long = "as", id = "recording", value_name = "FILE", conflicts_with_all = ["sql", "format"])]
    recording: Option<PathBuf>,
    #[command(flatten)]
    chosen: ChoiceArguments,
}

/// Draw the chosen rows as a flame graph, an SVG file
#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0; 1 when the data set cannot be read, the condition is wrong, or nothing was chosen; 2 for wrong options.\n\n\
    Example: kvmprof-query flamegraph --data DIR --where \"guest = 'db-1'\" --output out.svg"
)]
struct FlamegraphArguments {
    #[command(flatten)]
    data: DataArguments,
    #[command(flatten)]
    chosen: ChoiceArguments,
    /// The file to write; - is standard output; if its name ends in .html, the page of kvmprof html is written
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// The title above it
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    #[command(flatten)]
    graph: GraphArguments,
}

/// Show the tables of kvmprof report for the chosen rows: modes, processes, modules, functions
#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0; 1 when the data set cannot be read, the condition is wrong, or nothing was chosen; 2 for wrong options.\n\n\
    Example: kvmprof-query top --data DIR --where \"kernel = '6.12.1'\" --by user,function --top 10"
)]
struct TopArguments {
    #[command(flatten)]
    data: DataArguments,
    #[command(flatten)]
    chosen: ChoiceArguments,
    #[command(flatten)]
    tables: TableArguments,
}

/// Show which functions' shares changed from one choice to another
///
/// Lists the functions whose share of all ticks changed, the biggest changes first, each with the 95 % confidence interval of ticks that are
/// independent of each other. With --output it draws a differential flame graph.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0; 1 when the data set cannot be read, a condition is wrong, or nothing was chosen; 2 for wrong options.\n\n\
    Example: kvmprof-query diff --data DIR --where \"kernel = '6.12.1'\" --where \"kernel = '6.12.2'\""
)]
struct DiffArguments {
    #[command(flatten)]
    data: DataArguments,
    #[command(flatten)]
    chosen: ChoiceArguments,
    #[command(flatten)]
    rows: RowsArguments,
    /// The SVG file of a differential flame graph; - is standard output; if its name ends in .html, the page of kvmprof diff is written
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["sort", "top", "json"])]
    output: Option<PathBuf>,
    /// The title above it
    #[arg(long, value_name = "TEXT", requires = "output")]
    title: Option<String>,
    /// Draw it upside down: the outermost frames at the top
    #[arg(long, requires = "output")]
    icicle: bool,
}

impl Program for Arguments {
    fn chosen(&self) -> &dyn Command {
        match &self.command {
            Some(Chosen::Flamegraph(arguments)) => arguments,
            Some(Chosen::Top(arguments)) => arguments,
            Some(Chosen::Diff(arguments)) => arguments,
            Some(Chosen::Setup(setup)) => setup,
            None => &self.query,
        }
    }
}

/// Executes the command line. Returns the program's exit status.
pub fn main() -> ExitCode {
    command_line::main::<Arguments>()
}

impl Command for QueryArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let engine = self.data.open()?;
        if let Some(path) = &self.recording {
            let refused = || format!("Cannot write {}", path.display());
            let file = NewFile::create_recording(path).with_context(refused)?;
            let conditions = self.chosen.all();
            let (out, account) = rows::write(&engine, &conditions, BufWriter::new(file))?;
            let file = out.into_inner().map_err(IntoInnerError::into_error);
            file.and_then(|mut file| file.keep())
                .with_context(refused)?;
            console.say(format_args!("{}: {account}", path.display()));
            return Ok(ExitStatus::SUCCESS);
        }
        let answer = engine.ask(self.sql.as_deref().unwrap_or_default())?;
        let mut printer = Printer::new(self.format, console.data());
        let schema = engine.compute(answer, |batch| printer.add(batch))?;
        printer.finish(&schema)?;
        Ok(ExitStatus::SUCCESS)
    }
}

impl Command for FlamegraphArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let engine = self.data.open()?;
        let conditions = self.chosen.all();
        let picture = if is_page(&self.output) {
            let (profile, counts) = rows::timed(&engine, &conditions)?;
            let title = self.title.as_ref().unwrap_or(&profile.contents.info.kernel);
            let seen = vec![(counts, BesideTicks::default())];
            page(&profile, seen, title, &SourceTexts::default()).into_bytes()
        } else {
            let profile = rows::profile(&engine, &conditions, self.data.room())?;
            let title = self.title.clone().unwrap_or_else(|| title(&profile));
            self.data
                .draw(|budget| self.graph.draw(&profile, title, budget))?
        };
        write_to(&self.output, &picture, console)
    }
}

impl Command for TopArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let engine = self.data.open()?;
        let profile = rows::profile(&engine, &self.chosen.all(), self.data.room())?;
        let relatives = self.tables.relatives(&profile);
        let relatives = relatives.map_err(|error| match error {
            TableError::NoSuchTable { .. } => usage(error),
            TableError::NoSuchFunction(_) => error.into(),
        })?;
        let RowsArguments { top, json, .. } = self.tables.rows;
        let top = most_rows(top, USUAL_ROWS, json);
        let budget = OutputBudget::new(self.data.room());
        if json {
            let document = self.tables.document(&profile, &relatives, &budget, top);
            let document = document.map_err(|_| self.data.too_large("tables"))?;
            write_json(console.text(), document)?;
        } else {
            let style = TableStyle::for_terminal(console.is_terminal());
            let layout = self.tables.layout(top, style);
            let printed = print(&profile, &layout, &relatives, &budget, console.text());
            printed.map_err(|error| match too_much(&error) {
                Some(_) => self.data.too_large("tables"),
                None => error.into(),
            })?;
        }
        Ok(ExitStatus::SUCCESS)
    }
}

impl Command for DiffArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let [before, after] = self.chosen.conditions.as_slice() else {
            return Err(usage(
                "A comparison has two conditions: --where BEFORE --where AFTER",
            ));
        };
        let engine = self.data.open()?;
        let mut counts = Vec::new();
        let mut side = |condition| -> anyhow::Result<_> {
            let conditions = self.chosen.with(std::slice::from_ref(condition));
            let mut profile = if self.output.as_deref().is_some_and(is_page) {
                let (profile, own) = rows::timed(&engine, &conditions)?;
                counts.push(own);
                profile
            } else {
                rows::profile(&engine, &conditions, self.data.room())?
            };
            profile.file = conditions.join(" AND ");
            let info = &mut profile.contents.info;
            info.kernel = format!("{}, {}", info.kernel, profile.file);
            Ok(profile)
        };
        let (before, after) = (side(before)?, side(after)?);
        let sides = [&before, &after];
        let [earlier, later] = sides.map(|profile| profile.contents.info.hz);
        ensure!(
            earlier == later,
            "Ticks before are of {earlier} Hz and after of {later} Hz: they stand for different times"
        );
        if let Some(output) = &self.output {
            let against = || format!("{} against {}", after.file, before.file);
            let title = self.title.clone().unwrap_or_else(against);
            let picture = if is_page(output) {
                comparison_page(before, after, counts, &title).into_bytes()
            } else {
                let draw = |budget: &_| diff::draw(sides, title, self.icicle, budget);
                self.data.draw(draw)?
            };
            return write_to(output, &picture, console);
        }
        let RowsArguments { sort, top, json } = self.rows;
        let top = most_rows(top, USUAL_ROWS, json);
        // The rows don't say when their ticks were.
        let changes = changes((&before, None), (&after, None), sort);
        if json {
            let document = diff::document(&changes, sides, sort, top);
            write_json(console.text(), document)?;
        } else {
            let colours = TableStyle::for_terminal(console.is_terminal()).colours;
            diff::print(&changes, sides, top, colours, console.text())?;
        }
        Ok(ExitStatus::SUCCESS)
    }
}

/// Whether the file of this name is an HTML page, and not an SVG file.
fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "html")
}

/// Writes a picture to standard output, or to a file that is complete or not there, and that takes the place of no recording.
fn write_to(path: &Path, picture: &[u8], console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
    if path == Path::new("-") {
        console.data().write_all(picture)?;
        return Ok(ExitStatus::SUCCESS);
    }
    if is_recording(path) {
        bail!(
            "{} is a recording: name another file with --output",
            path.display()
        );
    }
    write_new_file(path, picture).with_context(|| format!("Cannot write {}", path.display()))?;
    Ok(ExitStatus::SUCCESS)
}
