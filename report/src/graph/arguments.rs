//! Draws profiles by the options of command lines.

use clap::Args;

use super::{Graph, Modules, account, marked};
use crate::budget::{OutputBudget, TooMuch, too_much};
use crate::profile::{Levels, LevelsParser, Profile, labels_in_words};
use crate::text::visible;

/// The options of a flame graph.
#[derive(Clone, Debug, Default, Args)]
pub struct GraphArguments {
    /// What to group by: mode, vcpu, process, thread, or the key of a label of processes; pod,container are levels: processes stand on frames of
    /// their groups, those of the first one at the bottom
    #[arg(long, value_parser = LevelsParser { with_code: false }, value_name = "GROUP,...", hide_possible_values = true)]
    by: Option<Levels>,
    /// Draw it upside down: the outermost frames at the top
    #[arg(long)]
    pub icicle: bool,
}

/// Why a flame graph can't be drawn.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// There is no such label.
    #[error("--by has no label \"{name}\": {labels}")]
    NoSuchLabel {
        /// Its key.
        name: String,
        /// The keys of labels, in words.
        labels: String,
    },
    /// It would be too large.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// There is no sample.
    #[error("There are no samples to draw")]
    NoSamples,
    /// Drawing failed.
    #[error("Cannot draw the flame graph: {0}")]
    Drawing(std::io::Error),
}

impl From<std::io::Error> for GraphError {
    fn from(error: std::io::Error) -> Self {
        too_much(&error).map_or_else(|| Self::Drawing(error), Self::TooMuch)
    }
}

impl GraphArguments {
    /// Whether they need [`Profile::parts`].
    pub fn need_parts(&self) -> bool {
        self.by.as_ref().is_some_and(Levels::need_parts)
    }

    /// The flame graph of `profile` under `title`, an SVG document.
    ///
    /// # Errors
    /// There is no such label or no sample, or it takes more than `budget`.
    pub fn draw(
        &self,
        profile: &Profile,
        title: String,
        budget: &OutputBudget,
    ) -> Result<Vec<u8>, GraphError> {
        let by = self.by.clone().unwrap_or_default();
        if let Some(key) = by.missing_label(profile) {
            return Err(GraphError::NoSuchLabel {
                name: visible(key),
                labels: labels_in_words(profile),
            });
        }
        let graph = Graph {
            title,
            subtitle: account(profile),
            icicle: self.icicle,
            differential: false,
            modules: Modules::of([profile]),
        };
        graph.draw_samples(&marked(profile, &by, budget)?)
    }
}

impl Graph {
    /// Draws `lines` as [`Self::draw`] does.
    ///
    /// # Errors
    /// There are none.
    pub(crate) fn draw_samples(&self, lines: &[String]) -> Result<Vec<u8>, GraphError> {
        if lines.is_empty() {
            return Err(GraphError::NoSamples);
        }
        Ok(self.draw(lines)?)
    }
}
