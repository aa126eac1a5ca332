//! The live view, `kvmprof top`: what a guest did lately, out of the stream of its recorder.
//!
//! A [`Model`] keeps the last seconds in bounded memory; a [`Snapshot`] is what it shows at one moment; a [`View`] is
//! what the user looks at. Only [`run`] knows the terminal, and nothing here knows where the stream comes from.

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
