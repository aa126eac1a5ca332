//! The program's command line.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use kvmprof_cli::command_line::{self, Command, Console, ExitStatus, Program, usage};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_cli::table::{USUAL_ROWS, most_rows};
use kvmprof_cli::text::{self, write_json};
use kvmprof_recording::file::{NewFile, is_recording};
use kvmprof_report::diff::{self, changes};
use kvmprof_report::profile::{Layout, Section, SortBy, TableStyle, document, print};
use kvmprof_tools::program::Setup;

use crate::engine::Engine;
use crate::output::{Format, Printer};
use crate::picture::{self, Style};
use crate::recording;

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
}

/// An SQL query, or a recording to write.
#[derive(Args, Debug)]
struct QueryArguments {
    #[command(flatten)]
    data: DataArguments,
    /// The SQL query; put -- before it if it starts with a comment
    #[arg(value_name = "SQL", required_unless_present = "recording")]
    sql: Option<String>,
    /// The format of the answer
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
    /// Write the rows that --where chooses as a recording instead, for kvmprof report and other commands. It has only data that the data set has, that is
    /// no addresses, vCPUs and exact times
    #[arg(long = "as", id = "recording", value_name = "FILE", conflicts_with_all = ["sql", "format"])]
    recording: Option<PathBuf>,
    /// With --as: choose the rows for which this SQL expression is true
    #[arg(long = "where", value_name = "CONDITION", conflicts_with = "sql")]
    condition: Option<String>,
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
    chosen: ConditionArguments,
    /// The file to write; - is standard output; if its name ends in .html, the page of kvmprof html is written
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    #[command(flatten)]
    style: StyleArguments,
}

/// Options of a flame graph.
#[derive(Args, Debug)]
struct StyleArguments {
    /// Draw the flame graph upside down: the outermost frames at the top
    #[arg(long, requires = "output")]
    icicle: bool,
    /// The flame graph's title
    #[arg(long, value_name = "TEXT", requires = "output")]
    title: Option<String>,
}

impl StyleArguments {
    fn style(&self) -> Style {
        Style {
            title: self.title.clone(),
            icicle: self.icicle,
        }
    }
}

/// The condition that chooses rows.
#[derive(Args, Debug)]
struct ConditionArguments {
    /// Choose the rows for which this SQL expression is true
    #[arg(long = "where", value_name = "CONDITION")]
    condition: Option<String>,
}

/// Show the tables of kvmprof report for the chosen rows: modes, processes, functions
#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0; 1 when the data set cannot be read, the condition is wrong, or nothing was chosen; 2 for wrong options.\n\n\
    Example: kvmprof-query top --data DIR --where \"kernel = '6.12.1'\" --by function --top 10"
)]
struct TopArguments {
    #[command(flatten)]
    data: DataArguments,
    #[command(flatten)]
    chosen: ConditionArguments,
    /// The tables, in this order
    #[arg(long, value_name = "TABLE", value_delimiter = ',', default_values = ["mode", "process", "function"], value_parser = section())]
    by: Vec<Section>,
    #[command(flatten)]
    rows: RowsArguments,
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
    /// Choose the rows for which this SQL expression is true; given twice, first for the rows before, then for those after
    #[arg(long = "where", value_name = "CONDITION", required = true)]
    conditions: Vec<String>,
    #[command(flatten)]
    rows: RowsArguments,
    /// The SVG file of a differential flame graph; - is standard output; if its name ends in .html, the page of kvmprof diff is written
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["sort", "top", "json"])]
    output: Option<PathBuf>,
    #[command(flatten)]
    style: StyleArguments,
}

/// Options of tables.
#[derive(Args, Debug)]
struct RowsArguments {
    /// Order and compare functions by their own samples, or by all samples with them on the stack
    #[arg(long, value_enum, default_value = "self", value_name = "ORDER")]
    sort: SortBy,
    /// Maximum number of rows of a table [default: 20; all of a JSON document's]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print a JSON document instead
    #[arg(long)]
    json: bool,
}

/// Parses the name of a table. Only tables are possible for which a data set has the data.
fn section() -> impl TypedValueParser<Value = Section> {
    PossibleValuesParser::new(["mode", "process", "thread", "module", "function"]).map(|name| {
        match name.as_str() {
            "mode" => Section::Mode,
            "process" => Section::Process,
            "thread" => Section::Thread,
            "module" => Section::Module,
            _ => Section::Function,
        }
    })
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
    let level = env_logger::Env::default().default_filter_or("error");
    env_logger::Builder::from_env(level)
        .format(|buffer, record| {
            let message = text::message(&record.args().to_string());
            writeln!(buffer, "kvmprof-query: {message}")
        })
        .init();
    command_line::main::<Arguments>()
}

impl Command for QueryArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let engine = self.data.open()?;
        if let Some(path) = &self.recording {
            let account = recording::write_file(&engine, self.condition.as_deref(), path)?;
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
        let condition = self.chosen.condition.as_deref();
        let style = self.style.style();
        let picture = if is_page(&self.output) {
            picture::page(&engine, condition, &style)?
        } else {
            picture::flame_graph(&engine, condition, &style, self.data.room())?
        };
        write_to(&self.output, &picture, console)
    }
}

impl Command for TopArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let engine = self.data.open()?;
        let condition = self.chosen.condition.as_deref();
        let profile = picture::profile(&engine, condition, self.data.room())?;
        let RowsArguments { sort, json, .. } = self.rows;
        let top = most_rows(self.rows.top, USUAL_ROWS, json);
        if json {
            write_json(console.text(), document(&profile, sort, top))?;
            return Ok(ExitStatus::SUCCESS);
        }
        let layout = Layout {
            sections: self.by.clone(),
            sort,
            top,
            style: TableStyle::for_terminal(console.is_terminal()),
        };
        print(&profile, &layout, &[], console.text())?;
        Ok(ExitStatus::SUCCESS)
    }
}

impl Command for DiffArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let [before, after] = self.conditions.as_slice() else {
            return Err(usage(
                "A comparison has two conditions: --where BEFORE --where AFTER",
            ));
        };
        let engine = self.data.open()?;
        if let Some(output) = self.output.as_deref().filter(|path| is_page(path)) {
            let page = picture::changes_page(&engine, [before, after], &self.style.style())?;
            return write_to(output, &page, console);
        }
        let room = self.data.room();
        let side = |condition: &str| -> anyhow::Result<_> {
            let mut profile = picture::profile(&engine, Some(condition), room)?;
            condition.clone_into(&mut profile.file);
            profile.contents.info.kernel = format!("{}, {condition}", profile.contents.info.kernel);
            Ok(profile)
        };
        let (before, after) = (side(before)?, side(after)?);
        let sides = [&before, &after];
        picture::check_rates(sides)?;
        if let Some(output) = &self.output {
            let style = self.style.style();
            let picture = picture::changes_graph(sides, &style, room)?;
            return write_to(output, &picture, console);
        }
        let RowsArguments { sort, json, .. } = self.rows;
        let top = most_rows(self.rows.top, USUAL_ROWS, json);
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
    let mut file =
        NewFile::create(path).with_context(|| format!("Cannot write {}", path.display()))?;
    file.write_all(picture)
        .and_then(|()| file.keep())
        .with_context(|| format!("Cannot write {}", path.display()))?;
    Ok(ExitStatus::SUCCESS)
}
