//! `kvmprof diff`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;

use super::{CommandError, InputArguments};
use crate::diff::{changes, folded_changes, print};
use crate::graph::Graph;
use crate::profile::{Look, Profile, SortBy};

/// Show what changed from one recording to another
///
/// Lists the functions whose share of all ticks changed, the biggest changes first, each with a 95 %
/// confidence interval; those that may be chance are marked. With --output it draws a differential flame
/// graph instead: as wide as in AFTER, red where the share grew, blue where it shrank.
///
/// Processes are matched by their names. Addresses without a name can't be matched: they count as one.
#[derive(Debug, Args)]
pub struct DiffArguments {
    /// The recording that is compared with
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The recording that is looked at
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    #[command(flatten)]
    input: InputArguments,
    /// The SVG file of a differential flame graph
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Functions by their own samples, or by all in which they are on the stack
    #[arg(
        long,
        value_enum,
        default_value = "self",
        value_name = "ORDER",
        conflicts_with = "output"
    )]
    sort: SortBy,
    /// How many rows the table has at most
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        conflicts_with = "output"
    )]
    top: usize,
    /// Let the flame graph hang from the top, outermost frames first
    #[arg(long, requires = "output")]
    icicle: bool,
    /// What is written above the flame graph
    #[arg(long, value_name = "TEXT", requires = "output")]
    title: Option<String>,
}

impl DiffArguments {
    /// Reads both recordings; prints the changes to standard output, or draws them.
    ///
    /// # Errors
    /// A recording can't be read, or the result written, or there is nothing to compare.
    pub fn execute(&self) -> Result<(), CommandError> {
        let (_, before) = self.input.open(&self.before)?;
        let (_, after) = self.input.open(&self.after)?;
        for (profile, path) in [(&before, &self.before), (&after, &self.after)] {
            if profile.samples() == 0 {
                return Err(CommandError::NoSamples(path.clone()));
            }
        }
        match &self.output {
            Some(output) => {
                let svg = self
                    .draw(&before, &after)
                    .map_err(|error| CommandError::Drawing(error.to_string()))?;
                super::write(output, &svg)
            }
            None => {
                let mut out = std::io::stdout().lock();
                let colours = Look::of_terminal(out.is_terminal()).colours;
                let changes = changes(&before, &after, self.sort);
                print(&changes, [&before, &after], self.top, colours, &mut out)
                    .map_err(CommandError::Output)
            }
        }
    }

    fn draw(&self, before: &Profile, after: &Profile) -> std::io::Result<Vec<u8>> {
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
        graph.draw(&folded_changes(before, after)?)
    }
}
