//! The live view, `kvmprof top`: the recent activity of a guest, from its recorder's stream.
//!
//! A [`Model`] has the last seconds in bounded memory; a [`Snapshot`] is its state at one moment; a [`View`] is what
//! the user has chosen to see. Only [`run`] uses the terminal, and any stream can be the source.

mod draw;
mod keyboard;
mod lines;
mod live;
mod model;
mod plain;
mod snapshot;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod view;

pub use crate::profile::VcpuTicks;
pub use live::{Feed, TopError, TopOptions, run};
pub use model::Model;
pub use snapshot::{FunctionId, FunctionRow, ProcessRow, Snapshot, StackRow, Target};
pub use view::{Action, Order, Table, View};
