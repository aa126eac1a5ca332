//! The commands that read recordings.

mod debuginfod;
mod diff;
mod export;
mod faults;
mod flamegraph;
mod html;
mod input;
mod output;
mod output_limit;
mod picture;
mod progress;
mod report;
mod source;
mod stalls;
mod view;

pub use diff::DiffArguments;
pub use export::ExportArguments;
pub use flamegraph::FlamegraphArguments;
pub use html::{HtmlArguments, write_page};
pub use input::InputArguments;
pub use output::{NO_OUTPUT, Naming, check_output, is_standard, refuse_recording, write_picture};
pub use output_limit::OutputLimit;
pub use progress::{Progress, ProgressPart};
pub use report::ReportArguments;
pub use stalls::StallsArguments;
pub use view::ViewArguments;
