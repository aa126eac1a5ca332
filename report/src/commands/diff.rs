//! `kvmprof diff`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;

use super::CommandError;
use crate::diff::{changes, folded_changes, print};
use crate::graph::Graph;
use crate::profile::{Profile, SortBy};

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
        let before = Profile::of_file(&self.before, &[])?;
        let after = Profile::of_file(&self.after, &[])?;
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
                let is_terminal = out.is_terminal();
                // https://no-color.org
                let colours = is_terminal
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
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
