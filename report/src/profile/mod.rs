//! What a recording amounts to: samples summed up by who ran what.

mod collect;
mod folded;
mod functions;
mod json;
mod share;
mod symbols;
mod table;

pub(crate) use collect::task_name;
pub use collect::{Process, Profile, Stack};
pub(crate) use folded::CUT_SHORT;
pub use folded::folded;
pub(crate) use functions::HALTED;
pub use functions::{Function, SortBy, functions};
pub use json::document;
pub use share::Share;
pub use symbols::Symbols;
pub use table::{Look, print};
