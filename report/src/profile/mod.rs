//! Tables, folded stacks and documents of profiles.

mod accounts;
mod arguments;
mod folded;
mod functions;
mod grouping;
mod groups;
mod json;
mod labels;
mod levels;
mod pauses;
mod relatives;
mod share;
mod table;
mod table_arguments;
mod tree;

pub use crate::model::{
    Criteria, DifferentTicks, Label, ModeCounts, NotAPattern, NotATimeRange, Pattern, Process,
    ProcessNames, Profile, Quantity, Selected, Selection, Selector, Spread, StackSum, Thread,
    ThreadCounts, ThreadSamples, TimeRange, Transform, VcpuTicks, Watcher, Weight,
};
pub use crate::symbolize::Symbols;
pub use accounts::print as print_accounts;
pub(crate) use accounts::{emptiness, loss, loss_of_one, restarts};
pub use arguments::{SelectionArguments, SeveralTimes};
pub use folded::folded;
pub(crate) use folded::{KERNEL_MARK, folded_idle, folded_stack, mark, plain, without_mark};
pub use functions::{Function, Row, SortBy, functions, lines, modules};
pub(crate) use functions::{by_samples, sum};
pub use grouping::{Grouping, Levels, LevelsParser};
pub(crate) use groups::{GroupNames, counted};
pub(crate) use json::selection_document;
pub use json::{document, relatives_document};
pub(crate) use labels::label_name;
pub use labels::{LabelRow, by_label, label_keys, labels_in_words};
pub(crate) use pauses::{Pause, pauses, pauses_in_words};
pub use relatives::{Relation, Relatives};
pub use share::Share;
pub use table::{Layout, TableStyle, print};
pub(crate) use table::{column, shares};
pub use table_arguments::{RowsArguments, SCHEMA, TableArguments, TableError};
pub use tree::print_tree;
pub(crate) use tree::{TREE_HEADING, TreeLine, tree_lines};
