//! The model of a profile: what was sampled, with names. It is filled once, from a recording or from rows of a data set; whatever is shown, drawn, exported
//! or pushed is made of it.

mod block_sums;
mod code;
pub(crate) mod counts;
mod criteria;
mod filter;
mod frame;
mod merge;
mod modes;
mod namer;
mod names;
mod parts;
mod pattern;
mod profile;
mod selection;
mod selector;
mod stacks;
mod sums;
pub(crate) mod timeline;
mod transform;
mod weight;

pub use crate::table::Table;
pub(crate) use code::PlaceId;
pub use code::{
    Code, FrameKind, Function, FunctionId, Line, ModuleId, ModuleKind, NameId, NodeId, Range,
};
pub(crate) use counts::BlockTicks;
pub use counts::Counts;
pub use criteria::{Criteria, NotACriterion};
pub use frame::{Frame, ModuleOf};
pub use merge::DifferentTicks;
pub use modes::ModeCounts;
pub(crate) use modes::{add_modes, sum_modes};
pub use namer::Namer;
pub use names::ProcessNames;
pub use parts::{ThreadCounts, ThreadSamples};
pub use pattern::{NotAPattern, Pattern};
pub(crate) use profile::outermost_of_guest;
pub use profile::{Process, Profile, Selected, StackSum, Thread, Watcher};
pub use selection::{Label, NotALabel, NotATimeRange, Selection, TimeRange};
pub use selector::{Selector, Spread};
pub use stacks::{Stack, StackCounts};
pub use sums::VcpuTicks;
pub(crate) use sums::{Limits, Sums, task_name};
pub use transform::{NotATransform, Transform, TransformKind};
pub use weight::{Quantity, Weight};

/// The function of halted vCPUs.
pub const HALTED: &str = "[halted]";
/// The module of halted vCPUs.
pub const HALTED_MODULE: &str = "[idle]";
/// Stands for the missing outermost frames of a stack.
pub const CUT_SHORT: &str = "[cut short]";
