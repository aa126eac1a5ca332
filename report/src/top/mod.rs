//! The live view, `kvmprof top`: what a guest did lately, out of the stream of its recorder.
//!
//! A [`Model`] keeps the last seconds in bounded memory; a [`Snapshot`] is what it shows at one moment; a [`View`] is
//! what the user looks at. Only [`run`] knows the terminal, and nothing here knows where the stream comes from.

mod draw;
mod keyboard;
mod lines;
mod live;
mod model;
mod place;
mod plain;
mod slot;
mod snapshot;
mod stream;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod view;

pub use live::{Feed, TopError, TopOptions, run};
pub use model::Model;
pub use place::Place;
pub use slot::VcpuTicks;
pub use snapshot::{FunctionRow, ProcessRow, Snapshot, StackRow, Target};
pub use stream::{Piece, StreamError, StreamReader};
pub use view::{Action, Order, Table, View};
