//! What clients may have the machine do.

use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use vmm_sys_util::eventfd::EventFd;

use super::power_button::PowerButton;
use crate::vcpu::Restart;
use crate::virtio::BalloonControl;

/// Requests to the machine, made on the event thread.
pub struct GuestControl {
    stop_request: EventFd,
    restart: Arc<Restart>,
    power_button: Arc<PowerButton>,
    balloon: Option<BalloonControl>,
}

impl GuestControl {
    /// Ends the guest by `stop_request`, restarts it by `restart`, has it end itself by `power_button`, and sets its
    /// `balloon`.
    pub fn new(
        stop_request: EventFd,
        restart: Arc<Restart>,
        power_button: Arc<PowerButton>,
        balloon: Option<BalloonControl>,
    ) -> Self {
        Self {
            stop_request,
            restart,
            power_button,
            balloon,
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
        let restarts = self.restart.take_unnoted();
        if !restarts.is_empty() {
            self.power_button.note_restart();
        }
        restarts
    }

    /// The guest is paused, or goes on.
    pub fn note_pause(&self, is_paused: bool) {
        self.power_button.note_pause(is_paused);
    }

    /// Whether the guest's kernel listens to the power button.
    pub fn hears_power_button(&self) -> bool {
        self.power_button.is_heard()
    }

    /// Sets what the guest's balloon is to hold, in bytes.
    ///
    /// # Errors
    /// ENODEV without a balloon.
    pub fn set_balloon(&self, bytes: u64) -> Result<(), Errno> {
        let balloon = self.balloon.as_ref().ok_or(Errno::ENODEV)?;
        balloon.set_target(bytes);
        Ok(())
    }

    /// Presses the power button.
    ///
    /// # Errors
    /// EAGAIN while nobody listens to it.
    pub fn press_power_button(&self) -> Result<(), Errno> {
        self.power_button.press().then_some(()).ok_or(Errno::EAGAIN)
    }
}
