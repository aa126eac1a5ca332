//! `kvmprof report`.

use std::path::PathBuf;

use clap::Args;

use super::faults::{self, Shown};
use super::input::TaskInput;
use super::output_limit::within;
use super::{InputArguments, OutputLimit};
use crate::commands::exits::{self, Part, Sort};
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_cli::table::{USUAL_ROWS, most_rows};
use kvmprof_cli::text::write_json;
use kvmprof_report::profile::{
    RowsArguments, SCHEMA, Symbols, TableArguments, TableError, TableStyle, folded, print,
    print_accounts, print_tree,
};
use kvmprof_report::tasks;

/// Show what a recording has: modes, vCPUs, processes, modules, functions
///
/// Shares are relative to all ticks that were sampled or counted as idle, with 95 % confidence intervals. SELF counts samples
/// with the program counter in a function, TOTAL counts samples with the function anywhere on the stack.
///
/// Several recordings are counted together; their ticks have to come from the same --hz or --event. Functions are added up by
/// their names and modules, and vCPUs by their numbers. Processes and threads are counted separately for each recording, with
/// its number beside them.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when the recording cannot be read or has nothing that the options select, or the report cannot \
    be written; 2 for wrong options.\n\n\
    Examples: kvmprof report out.kvmprof --by container,function --top 10\n          \
    kvmprof report --tree\n          \
    kvmprof report monday.kvmprof tuesday.kvmprof --grep '^tcp_' --mode kernel"
)]
pub struct ReportArguments {
    /// The recordings, which are counted together; - is standard input
    #[arg(value_name = "FILE", default_value = "out.kvmprof")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    limit: OutputLimit,
    #[command(flatten)]
    tables: TableArguments,
    /// Show the recorded looks at the guest's tasks instead of the tables: which tasks wait, for what, and which for a vCPU
    ///
    /// This needs a recording made with --tasks. A task that is seen in ten looks counts ten times. LONGEST is how long a task did not
    /// run, as far as the looks show it: the time from the first to the last of the looks between which it never ran.
    #[arg(long, conflicts_with_all = ["by", "sort", "callers", "callees"])]
    tasks: bool,
    /// Show the recorded exits instead of the tables: why the guest exits, how long that takes, and who takes its vCPUs' time
    ///
    /// This needs a recording made with --exits, and prints what kvmprof exits does. They were counted for each second: --time selects
    /// those of which the middle is in it.
    #[arg(long, conflicts_with_all = ["by", "sort", "callers", "callees", "tasks"])]
    exits: bool,
    /// Show the faults of guest memory instead of the tables: what they were, how long they took, who made them, and the pages that were touched
    ///
    /// This needs a recording with --event page-faults:N of a guest of another VMM. Of several recordings each has tables of its own, and the
    /// pages that it has in common with the first one are counted.
    #[arg(long, conflicts_with_all = ["by", "sort", "callers", "callees", "tasks", "exits"])]
    faults: bool,
    /// Show the call tree instead of the tables, from the processes inwards; frames with less than 1 % are left out
    #[arg(long, conflicts_with_all = ["by", "sort", "callers", "callees", "json", "top", "tasks", "exits", "faults"])]
    tree: bool,
}

impl Command for ReportArguments {
    /// Reads the recording and prints the report to standard output, with bars and colours on a terminal.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        if self.tasks {
            return self.show_tasks(console);
        }
        if self.exits {
            return self.show_exits(console);
        }
        if self.faults {
            let shown = Shown {
                rows: self.most_rows(),
                json: self.tables.rows.json,
            };
            return faults::show(&self.input, &self.files, self.limit, &shown, console);
        }
        let by_parts = self.tables.need_parts().then_some(self.limit);
        let profile = self.input.open_grouped(&self.files, by_parts, console)?;
        let relatives = self.tables.relatives(&profile);
        let relatives = relatives.map_err(|error| match error {
            TableError::NoSuchTable { .. } => usage(error),
            TableError::NoSuchFunction(_) => error.into(),
        })?;
        let budget = self.limit.budget(profile.length());
        let style = TableStyle::for_terminal(console.is_terminal());
        if self.tree {
            let stacks = folded(&profile, &budget)?;
            return within(&budget, console, |out| {
                print_accounts(&profile, out)?;
                print_tree(&stacks, style, out)
            });
        }
        let top = self.most_rows();
        within(&budget, console, |out| {
            if self.tables.rows.json {
                let document = self.tables.document(&profile, &relatives, &budget, top)?;
                return write_json(out, document);
            }
            let layout = self.tables.layout(top, style);
            print(&profile, &layout, &relatives, &budget, out)
        })
    }
}

impl ReportArguments {
    fn most_rows(&self) -> usize {
        let RowsArguments { top, json, .. } = self.tables.rows;
        most_rows(top, USUAL_ROWS, json)
    }

    /// Prints the sums of the looks at the guest's tasks.
    fn show_tasks(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let TaskInput {
            sums,
            resolver,
            length,
            ..
        } = self.input.open_tasks(&self.files, console)?;
        let budget = self.limit.budget(length);
        if !self.tables.rows.json {
            return within(&budget, console, |out| {
                tasks::print(&sums, &resolver, self.most_rows(), out)
            });
        }
        let mut document = tasks::document(&sums, &resolver, self.most_rows(), &budget)?;
        document["schema"] = SCHEMA.into();
        within(&budget, console, |out| write_json(out, document))
    }

    /// Prints the exits of the selected time.
    fn show_exits(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let (interval, contents) = self.input.open_exits(&self.files)?;
        let symbols = Symbols::parse(&contents.symbols);
        let part = Part {
            interval: &interval,
            symbols: (!contents.symbols.is_empty()).then_some(&symbols),
            by: None,
            sort: Sort::default(),
            rows: self.most_rows(),
        };
        let budget = self.limit.budget(contents.symbols.len());
        within(&budget, console, |out| {
            if !self.tables.rows.json {
                return exits::write_tables(&part, out);
            }
            let mut document = exits::document(&part);
            document["schema"] = SCHEMA.into();
            write_json(out, document)
        })
    }
}
