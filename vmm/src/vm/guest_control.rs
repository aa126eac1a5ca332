//! What clients may have the machine do.

use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use vmm_sys_util::eventfd::EventFd;

use crate::vcpu::Restart;

/// Requests to the machine, made on the event thread.
pub struct GuestControl {
    stop_request: EventFd,
    restart: Arc<Restart>,
}

impl GuestControl {
    /// Ends the guest by `stop_request`, and restarts it by `restart`.
    pub fn new(stop_request: EventFd, restart: Arc<Restart>) -> Self {
        Self {
            stop_request,
            restart,
        }
    }

    /// Ends the guest.
    pub fn stop(&self) {
        // A full counter has asked already.
        let _ = self.stop_request.write(1);
    }

    /// Restarts the guest, or ends it, as it is to be on a reset.
    pub fn reset(&self) {
        self.restart.request();
    }

    /// When the guest was restarted, in ns of CLOCK_MONOTONIC: those times that weren't taken before.
    pub fn take_restarts(&self) -> Vec<u64> {
        self.restart.take_unnoted()
    }

    /// Presses the power button.
    ///
    /// # Errors
    /// EAGAIN while nobody listens to it.
    pub fn press_power_button(&self) -> Result<(), Errno> {
        Err(Errno::EAGAIN)
    }
}
