//! Sums of a recording's samples, and the tables made from them.

mod accounts;
mod arguments;
mod collect;
mod filter;
mod folded;
mod functions;
mod json;
mod merge;
mod modes;
mod names;
mod pattern;
mod relatives;
mod selection;
mod share;
mod stacks;
mod sums;
mod table;
mod weight;

pub use crate::symbolize::Symbols;
pub(crate) use accounts::{emptiness, loss, loss_of_one, print as print_accounts, restarts};
pub use arguments::{SelectionArguments, SeveralTimes};
pub(crate) use collect::outermost_of_guest;
#[cfg(test)]
pub(crate) use collect::testing;
pub use collect::{Process, Profile, Selected, Stack, StackFrame, Thread, Watcher};
pub use filter::Filter;
pub use folded::folded;
pub(crate) use folded::{CUT_SHORT, KERNEL_MARK, mark, plain, root, without_mark};
pub use functions::{Function, Row, SortBy, functions, lines, modules};
pub(crate) use functions::{HALTED, HALTED_MODULE, sum};
pub(crate) use json::selection_document;
pub use json::{document, relatives_document};
pub use merge::DifferentTicks;
pub use modes::ModeCounts;
pub(crate) use modes::sum_modes;
pub use names::ProcessNames;
pub use pattern::{NotAPattern, Pattern};
pub use relatives::{Relation, Relatives};
pub use selection::{NotATimeRange, Selection, Selector, Spread, TimeRange};
pub use share::Share;
pub use stacks::{StackCounts, StackView};
pub use sums::VcpuTicks;
pub(crate) use sums::{Limits, Sums, task_name};
pub use table::{Layout, Look, Section, print};
pub(crate) use table::{column, shares};
pub use weight::{Quantity, Weight};
