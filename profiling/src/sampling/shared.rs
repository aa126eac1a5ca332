//! The state of one vCPU that other threads than its own share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::exits::ExitTotals;
use super::task_request::TaskRequest;
use crate::clock::ClockControl;
use crate::signals::Kicker;

/// The state of one vCPU that other threads share.
#[derive(Debug, Default)]
pub struct VcpuShared {
    /// The kicker, which makes the thread leave KVM_RUN.
    pub kicker: Arc<Kicker>,
    /// The control of the clock.
    pub control: ClockControl,
    /// The request to look at the guest's tasks.
    pub tasks: TaskRequest,
    /// The number of returns of KVM_RUN, by cause.
    pub exits: ExitTotals,
    /// The number of samples of the host's kernel whose process it couldn't read.
    pub unread_processes: AtomicU64,
    in_exit: AtomicBool,
}

impl VcpuShared {
    /// Whether the thread is answering an exit, which may take any time.
    pub fn is_in_exit(&self) -> bool {
        self.in_exit.load(Ordering::Relaxed)
    }

    /// Notes whether the thread is answering an exit.
    pub fn set_in_exit(&self, is_in_exit: bool) {
        self.in_exit.store(is_in_exit, Ordering::Relaxed);
    }
}
