//! The options of command lines that say what is shown of a profile.

use clap::Args;
use kvmprof_recording::Mode;
use serde_json::{Map, Value};

use super::json::levels_document;
use super::{
    Grouping, Layout, Levels, LevelsParser, Profile, Relation, Relatives, SortBy, TableStyle,
    document, functions, labels_in_words, lines, modules, relatives_document,
};
use crate::budget::{OutputBudget, TooMuch};
use crate::text::visible;

/// The options of the rows of tables.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct RowsArguments {
    /// Order and compare functions, modules and lines by their own samples, or by all samples with them on the stack
    #[arg(long, value_enum, default_value = "self", value_name = "ORDER")]
    pub sort: SortBy,
    /// Maximum number of rows of a table, or of a row's own rows [default: 20; all of a JSON document's]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Print a JSON document instead
    #[arg(long)]
    pub json: bool,
}

/// The options of tables.
#[derive(Clone, Debug, Default, Args)]
pub struct TableArguments {
    /// A table to show (more than once: in this order); also the key of a label of processes, such as user; container,function are levels: a row for
    /// each container has the rows of its functions below it [default: all tables that have rows, but those of labels]
    #[arg(long, value_parser = LevelsParser { with_code: true }, value_name = "TABLE,...")]
    by: Vec<Levels>,
    /// The options of their rows.
    #[command(flatten)]
    pub rows: RowsArguments,
    /// Show what calls this function, instead of the tables
    #[arg(long, value_name = "FUNCTION")]
    callers: Option<String>,
    /// Show what this function calls, instead of the tables
    #[arg(long, value_name = "FUNCTION")]
    callees: Option<String>,
}

/// Why tables can't be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// There is no such table.
    #[error("--by has neither a table nor a label \"{name}\": tables are {tables}, and {labels}")]
    NoSuchTable {
        /// Its name.
        name: String,
        /// The names of tables.
        tables: String,
        /// The names of labels.
        labels: String,
    },
    /// No sample has the requested function.
    #[error("No sample has a function called {0} on its stack: --sort total lists them")]
    NoSuchFunction(String),
}

/// The version of the JSON document's form. It stays the same when members are added.
pub const SCHEMA: u32 = 1;

/// The tables and their members of the JSON document.
const TABLES: [(Grouping, &str); 7] = [
    (Grouping::Mode, "modes"),
    (Grouping::Vcpu, "vcpus"),
    (Grouping::Process, "processes"),
    (Grouping::Thread, "threads"),
    (Grouping::Module, "modules"),
    (Grouping::Function, "functions"),
    (Grouping::Line, "lines"),
];

/// The samples in each mode.
fn modes(profile: &Profile) -> Value {
    let counts = Mode::ALL.into_iter().zip(profile.by_mode());
    let counts = counts.map(|(mode, count)| (mode.name().to_owned(), count.into()));
    Value::Object(counts.collect())
}

impl TableArguments {
    /// The contents and the style of the tables, with at most `top` rows each.
    pub fn layout(&self, top: usize, style: TableStyle) -> Layout {
        Layout {
            tables: self.by.clone(),
            sort: self.rows.sort,
            top,
            style,
        }
    }

    /// Whether they need [`Profile::parts`].
    pub fn need_parts(&self) -> bool {
        let mut tables = self.by.iter();
        tables.any(|levels| levels.groupings().len() > 1 && levels.need_parts())
    }

    /// The requested callers and callees in `profile`.
    ///
    /// # Errors
    /// There is no such function, or no such table.
    pub fn relatives(&self, profile: &Profile) -> Result<Vec<Relatives>, TableError> {
        self.check_labels(profile)?;
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
                    .ok_or_else(|| TableError::NoSuchFunction(function.clone()))
            })
            .collect()
    }

    /// Checks that each key of a label is one of the sampled processes'.
    fn check_labels(&self, profile: &Profile) -> Result<(), TableError> {
        let mut tables = self.by.iter();
        match tables.find_map(|levels| levels.missing_label(profile)) {
            Some(key) => Err(TableError::NoSuchTable {
                name: visible(key),
                tables: Grouping::ALL.map(|(_, name, _)| name).join(", "),
                labels: labels_in_words(profile),
            }),
            None => Ok(()),
        }
    }

    /// Whether there is a table of `grouping` alone, or of everything.
    fn wants(&self, grouping: &Grouping) -> bool {
        let is_it = |levels: &Levels| levels.groupings() == std::slice::from_ref(grouping);
        self.by.is_empty() || self.by.iter().any(is_it)
    }

    /// `profile` and `relatives` as one JSON object, with the requested tables, of at most `top` rows each.
    ///
    /// # Errors
    /// Levels don't fit into `budget`.
    pub fn document(
        &self,
        profile: &Profile,
        relatives: &[Relatives],
        budget: &OutputBudget,
        top: usize,
    ) -> Result<Value, TooMuch> {
        let sort = self.rows.sort;
        let mut document = document(profile, sort, top);
        document["schema"] = SCHEMA.into();
        for relatives in relatives {
            document[relatives.relation.name()] = relatives_document(relatives, top);
        }
        let mut left_out = Map::new();
        for (grouping, key) in TABLES {
            if !self.wants(&grouping) {
                if let Value::Object(document) = &mut document {
                    document.remove(key);
                }
                continue;
            }
            let rows = match &grouping {
                Grouping::Mode => {
                    document[key] = modes(profile);
                    continue;
                }
                // These tables have all rows.
                Grouping::Vcpu | Grouping::Process | Grouping::Thread | Grouping::Label(_) => {
                    continue;
                }
                Grouping::Module => modules(profile, sort).len(),
                Grouping::Function => functions(profile, sort).len(),
                Grouping::Line => lines(profile, sort).len(),
            };
            left_out.insert(key.to_owned(), rows.saturating_sub(top).into());
        }
        document["rows_left_out"] = left_out.into();
        self.keep_labels(&mut document);
        let tables = self.by.iter();
        let tables = tables.filter(|levels| levels.groupings().len() > 1);
        let tables = tables.map(|levels| levels_document(profile, levels, sort, top, budget));
        let tables: Vec<Value> = tables.collect::<Result<_, _>>()?;
        if !tables.is_empty() {
            document["levels"] = tables.into();
        }
        Ok(document)
    }

    /// Leaves only the requested tables of labels in `document`, if any tables are requested.
    fn keep_labels(&self, document: &mut Value) {
        if let Some(Value::Object(labels)) = document.get_mut("labels") {
            labels.retain(|key, _| self.wants(&Grouping::Label(key.clone())));
        }
    }
}
