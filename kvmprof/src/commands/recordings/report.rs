//! `kvmprof report`.

use std::path::PathBuf;

use clap::Args;
use kvmprof_recording::Mode;
use serde_json::{Map, Value};

use super::input::TaskInput;
use super::output_limit::within;
use super::{CommandError, InputArguments, OutputLimit};
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_cli::table::{USUAL_ROWS, most_rows};
use kvmprof_cli::text::write_json;
use kvmprof_report::profile::{
    Layout, Profile, Relation, Relatives, Section, SectionParser, SortBy, TableStyle, document,
    functions, label_keys, labels_in_words, lines, modules, print, relatives_document,
};
use kvmprof_report::tasks;
use kvmprof_report::text::visible;

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
    Examples: kvmprof report out.kvmprof --by process,function --top 10\n          \
    kvmprof report monday.kvmprof tuesday.kvmprof --grep '^tcp_' --mode kernel"
)]
pub struct ReportArguments {
    /// The recordings, which are counted together; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    input: InputArguments,
    #[command(flatten)]
    limit: OutputLimit,
    /// The tables to show, in this order; also the key of a label of processes, such as user [default: all that have rows, but those of labels]
    #[arg(long, value_parser = SectionParser, value_name = "TABLE", value_delimiter = ',')]
    by: Vec<Section>,
    /// The order of modules, functions and lines: by their own samples, or by all samples with them on the stack
    #[arg(long, value_enum, default_value = "self", value_name = "ORDER")]
    sort: SortBy,
    /// Maximum number of rows of a table [default: 20; all of a JSON document's]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Show what calls this function, instead of the tables
    #[arg(long, value_name = "FUNCTION")]
    callers: Option<String>,
    /// Show what this function calls, instead of the tables
    #[arg(long, value_name = "FUNCTION")]
    callees: Option<String>,
    /// Show the recorded looks at the guest's tasks instead of the tables: which tasks wait, for what, and which for a vCPU
    ///
    /// This needs a recording made with --tasks. A task that is seen in ten looks counts ten times. LONGEST is how long a task did not
    /// run, as far as the looks show it: the time from the first to the last of the looks between which it never ran.
    #[arg(long, conflicts_with_all = ["by", "sort", "callers", "callees"])]
    tasks: bool,
    /// Print a JSON document instead, with the tables of --by, or all tables
    #[arg(long)]
    json: bool,
}

/// The version of the JSON document's form. It stays the same when members are added.
const SCHEMA: u32 = 1;

/// The tables and their members of the JSON document.
const TABLES: [(Section, &str); 7] = [
    (Section::Mode, "modes"),
    (Section::Vcpu, "vcpus"),
    (Section::Process, "processes"),
    (Section::Thread, "threads"),
    (Section::Module, "modules"),
    (Section::Function, "functions"),
    (Section::Line, "lines"),
];

/// The samples in each mode.
fn modes(profile: &Profile) -> Value {
    let count = |mode: Mode| -> u64 {
        let processes = profile.all_processes();
        let counts = processes.map(|(_, _, process)| process.modes[mode.index()]);
        counts.fold(0, u64::saturating_add)
    };
    let counts = Mode::ALL.map(|mode| (mode.name().to_owned(), count(mode).into()));
    Value::Object(counts.into_iter().collect())
}

impl Command for ReportArguments {
    /// Reads the recording and prints the report to standard output, with bars and colours on a terminal.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        if self.tasks {
            return self.show_tasks(console);
        }
        let (profile, _) = self.input.open_all::<()>(&self.files, console)?;
        self.check_labels(&profile)?;
        let relatives = self.relatives(&profile)?;
        let budget = self.limit.budget(profile.length());
        let style = TableStyle::for_terminal(console.is_terminal());
        within(&budget, console, |out| {
            if self.json {
                return write_json(out, self.document(&profile, &relatives));
            }
            let layout = Layout {
                sections: self.by.clone(),
                sort: self.sort,
                top: self.most_rows(),
                style,
            };
            print(&profile, &layout, &relatives, out)
        })
    }
}

impl ReportArguments {
    fn most_rows(&self) -> usize {
        most_rows(self.top, USUAL_ROWS, self.json)
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
        if !self.json {
            return within(&budget, console, |out| {
                tasks::print(&sums, &resolver, self.most_rows(), out)
            });
        }
        let mut document = tasks::document(&sums, &resolver, self.most_rows(), &budget)?;
        document["schema"] = SCHEMA.into();
        within(&budget, console, |out| write_json(out, document))
    }

    /// The report as one JSON object, with the requested tables.
    fn document(&self, profile: &Profile, relatives: &[Relatives]) -> Value {
        let mut document = document(profile, self.sort, self.most_rows());
        document["schema"] = SCHEMA.into();
        for relatives in relatives {
            let key = match relatives.relation {
                Relation::Callers => "callers",
                Relation::Callees => "callees",
            };
            document[key] = relatives_document(relatives, self.most_rows());
        }
        let mut left_out = Map::new();
        for (section, key) in TABLES {
            if !self.by.is_empty() && !self.by.contains(&section) {
                if let Value::Object(document) = &mut document {
                    document.remove(key);
                }
                continue;
            }
            let rows = match &section {
                Section::Mode => {
                    document[key] = modes(profile);
                    continue;
                }
                // These sections have all rows.
                Section::Vcpu | Section::Process | Section::Thread | Section::Label(_) => continue,
                Section::Module => modules(profile, self.sort).len(),
                Section::Function => functions(profile, self.sort).len(),
                Section::Line => lines(profile, self.sort).len(),
            };
            left_out.insert(key.to_owned(), rows.saturating_sub(self.most_rows()).into());
        }
        document["rows_left_out"] = left_out.into();
        self.keep_labels(&mut document);
        document
    }

    /// Leaves only the requested tables of labels in `document`, if any are requested.
    fn keep_labels(&self, document: &mut Value) {
        if let Some(Value::Object(labels)) = document.get_mut("labels")
            && !self.by.is_empty()
        {
            labels.retain(|key, _| self.by.contains(&Section::Label(key.clone())));
        }
    }

    /// Checks that each key of a label is one of the sampled processes'.
    fn check_labels(&self, profile: &Profile) -> anyhow::Result<()> {
        let keys = label_keys(profile);
        for section in &self.by {
            if let Section::Label(key) = section
                && !keys.contains(key.as_str())
            {
                let tables = Section::ALL.map(|(_, name, _)| name).join(", ");
                let labels = labels_in_words(profile);
                return Err(usage(format_args!(
                    "--by has neither a table nor a label \"{}\": tables are {tables}, and {labels}",
                    visible(key)
                )));
            }
        }
        Ok(())
    }

    fn relatives(&self, profile: &Profile) -> Result<Vec<Relatives>, CommandError> {
        let wanted = [
            (&self.callers, Relation::Callers),
            (&self.callees, Relation::Callees),
        ];
        let wanted = wanted
            .into_iter()
            .filter_map(|(function, relation)| Some((function.as_ref()?, relation)));
        wanted
            .map(|(function, relation)| {
                Relatives::new(profile, function, relation)
                    .ok_or_else(|| CommandError::NoSuchFunction(function.clone()))
            })
            .collect()
    }
}
