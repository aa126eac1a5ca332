//! The commands that look at recordings.

mod diff;
mod error;
mod export;
mod flamegraph;
mod html;
mod input;
mod progress;
mod report;

use std::path::Path;

pub use diff::DiffArguments;
pub use error::CommandError;
pub use export::ExportArguments;
pub use flamegraph::FlamegraphArguments;
pub use html::HtmlArguments;
pub use input::InputArguments;
pub use progress::{Interrupt, Part, Progress};
pub use report::ReportArguments;

fn write(path: &Path, bytes: &[u8]) -> Result<(), CommandError> {
    std::fs::write(path, bytes).map_err(|source| CommandError::Write {
        path: path.to_owned(),
        source,
    })
}
