//! `kvmprof report`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;

use super::{CommandError, InputArguments};
use crate::profile::{
    Layout, Look, Profile, Relation, Relatives, Section, SortBy, document, print,
    relatives_document,
};

/// Show what a recording has: modes, vCPUs, processes, modules, functions
///
/// Shares are of all ticks that were sampled or reckoned idle, with 95 % confidence intervals. SELF is where the
/// program counter was, TOTAL what was somewhere on the stack.
#[derive(Debug, Args)]
pub struct ReportArguments {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    input: InputArguments,
    /// Which tables, in which order; those that tell something if not given
    #[arg(long, value_enum, value_name = "TABLE", value_delimiter = ',')]
    by: Vec<Section>,
    /// Modules, functions and lines by their own samples, or by all in which they are on the stack
    #[arg(long, value_enum, default_value = "self", value_name = "ORDER")]
    sort: SortBy,
    /// How many rows each table has at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// What calls this function, instead of the tables
    #[arg(long, value_name = "FUNCTION")]
    callers: Option<String>,
    /// What this function calls, instead of the tables
    #[arg(long, value_name = "FUNCTION")]
    callees: Option<String>,
    /// Print a JSON document: all tables, whatever --by says
    #[arg(long)]
    json: bool,
}

impl ReportArguments {
    /// Reads the recording and prints the report to standard output: with bars and colours on a terminal.
    ///
    /// # Errors
    /// The recording can't be read, or has no function of that name, or the report can't be written.
    pub fn execute(&self) -> Result<(), CommandError> {
        let (_, profile) = self.input.open(&self.file)?;
        let relatives = self.relatives(&profile)?;
        let mut out = std::io::stdout().lock();
        let result = if self.json {
            let mut document = document(&profile, self.sort, self.top);
            for relatives in &relatives {
                let key = match relatives.relation {
                    Relation::Callers => "callers",
                    Relation::Callees => "callees",
                };
                document[key] = relatives_document(relatives, self.top);
            }
            writeln!(out, "{document}")
        } else {
            let layout = Layout {
                sections: self.by.clone(),
                sort: self.sort,
                top: self.top,
                look: Look::of_terminal(out.is_terminal()),
            };
            print(&profile, &layout, &relatives, &mut out)
        };
        result.map_err(CommandError::Output)
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
                Relatives::of(profile, function, relation)
                    .ok_or_else(|| CommandError::NoSuchFunction(function.clone()))
            })
            .collect()
    }
}
