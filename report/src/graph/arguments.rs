//! Draws profiles by the options of command lines.

use clap::Args;

use super::{Graph, account, marked};
use crate::budget::{OutputBudget, TooMuch, too_much};
use crate::profile::{Profile, label_keys, labels_in_words};
use crate::text::visible;

/// The options of a flame graph.
#[derive(Clone, Debug, Default, Args)]
pub struct GraphArguments {
    /// Keys of labels of processes, such as container or pod,container: processes stand on frames of their values, those of the first key
    /// at the bottom
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    by: Vec<String>,
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
        let keys = label_keys(profile);
        if let Some(key) = self.by.iter().find(|key| !keys.contains(key.as_str())) {
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
        };
        graph.draw_samples(&marked(profile, &self.by, budget)?)
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
