//! getpc: gathers samples from pcs into a stream (see [`kvmprof_abi::stream`]).

mod arguments;
mod command;
mod deblock;
mod names;
mod plan;
mod run;

pub use arguments::{Arguments, FormatName};
pub use deblock::{BadBuffer, Deblocker};
pub use names::{fetch_names, own_names};
pub use plan::Plan;
pub use run::{GetpcError, Names, Summary, run};
