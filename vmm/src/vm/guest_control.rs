//! Requests of clients to the machine.

use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use vmm_sys_util::eventfd::EventFd;

use super::power_button::PowerButton;
use crate::vcpu::Restart;
use kvmprof_profiling::profiler::GuestControl;

/// Carries out requests to the machine, on the event thread.
pub struct MachineControl {
    stop_request: EventFd,
    restart: Arc<Restart>,
    power_button: Arc<PowerButton>,
}

impl MachineControl {
    /// A control that ends the guest by `stop_request`, restarts it by `restart`, and asks it to power off by `power_button`.
    pub fn new(
        stop_request: EventFd,
        restart: Arc<Restart>,
        power_button: Arc<PowerButton>,
    ) -> Self {
        Self {
            stop_request,
            restart,
            power_button,
        }
    }
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
