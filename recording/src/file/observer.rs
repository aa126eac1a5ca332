//! Who looks on while a recording is read.

use std::ops::ControlFlow;

/// Looks on while a recording is read.
pub trait Observer {
    /// `done` of `whole` have been seen to, of whatever takes time. A break ends it there, with what there is.
    fn advance(&self, done: u64, whole: u64) -> ControlFlow<()>;
}

/// Nobody looks on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn advance(&self, _done: u64, _whole: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
