//! Observers of the progress while a recording is read.

use std::ops::ControlFlow;

/// Gets the progress while a recording is read, and can interrupt that.
pub trait Observer {
    /// `done` of `whole` are finished, in the unit of what takes time. A break ends the work there, with the results so far.
    fn advance(&self, done: u64, whole: u64) -> ControlFlow<()>;
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn advance(&self, _done: u64, _whole: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
