//! What clients may have the machine do.

use kvmprof_abi::errno::Errno;
use vmm_sys_util::eventfd::EventFd;

/// Requests to the machine, made on the event thread.
#[derive(Debug)]
pub struct GuestControl {
    stop_request: EventFd,
}

impl GuestControl {
    /// Ends the guest by `stop_request`.
    pub fn new(stop_request: EventFd) -> Self {
        Self { stop_request }
    }

    /// Ends the guest.
    pub fn stop(&self) {
        // A full counter has asked already.
        let _ = self.stop_request.write(1);
    }

    /// Restarts the guest.
    pub fn reset(&self) {}

    /// Presses the power button.
    ///
    /// # Errors
    /// EAGAIN while nobody listens to it.
    pub fn press_power_button(&self) -> Result<(), Errno> {
        Err(Errno::EAGAIN)
    }
}
