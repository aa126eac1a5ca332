//! Requests of clients to the machine.

use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use vmm_sys_util::eventfd::EventFd;

use super::power_button::PowerButton;
use crate::vcpu::Restart;
use kvmprof_profiling::profiler::GuestControl;

/// Carries out requests to the machine, on the event thread.
pub struct MachineControl {
    /// Ends the guest.
    pub stop_request: EventFd,
    /// Restarts it.
    pub restart: Arc<Restart>,
    /// Asks it to power off.
    pub power_button: Arc<PowerButton>,
}

impl GuestControl for MachineControl {
    fn stop(&self) {
        // If the counter is full, the request has been made already.
        let _ = self.stop_request.write(1);
    }

    fn reset(&self) {
        self.restart.request();
    }

    fn note_restart(&self) {
        self.power_button.note_restart();
    }

    fn note_pause(&self, is_paused: bool) {
        self.power_button.note_pause(is_paused);
    }

    fn hears_power_button(&self) -> bool {
        self.power_button.is_heard()
    }

    fn press_power_button(&self) -> Result<(), Errno> {
        self.power_button.press().then_some(()).ok_or(Errno::EAGAIN)
    }
}
