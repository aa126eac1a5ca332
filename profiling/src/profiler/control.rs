//! The device `control`, by which clients of the host control the guest.

use std::sync::Arc;
use std::time::Duration;

use kvmprof_abi::control::{CTL_PAUSE, CTL_POWER_BUTTON, CTL_RESET, CTL_RESUME, CTL_STOP};
use kvmprof_abi::errno::Errno;
use kvmprof_devices::endpoint::IoctlReply;
use kvmprof_recording::file::{PauseInfo, ResetInfo};

use super::Profiler;
use super::clocks::Flush;
use super::consumers::{Reply, Request};
use super::names::Names;
use crate::time::monotonic_ns;

/// Maximum time that SIGTERM waits for vCPUs to locate the kernel.
const MAX_LOOK: Duration = Duration::from_millis(500);

/// Carries out requests of clients to the guest's machine.
pub trait GuestControl {
    /// Ends the guest.
    fn stop(&self);

    /// Resets the guest: restarts or ends it, as its configuration says.
    fn reset(&self);

    /// Notes that the guest was restarted.
    fn note_restart(&self);

    /// Notes that the guest is paused, or continues.
    fn note_pause(&self, is_paused: bool);

    /// Whether the guest's kernel listens to the power button.
    fn hears_power_button(&self) -> bool;

    /// Presses the power button.
    ///
    /// # Errors
    /// EAGAIN while the guest's kernel doesn't listen to it.
    fn press_power_button(&self) -> Result<(), Errno>;
}

impl Profiler {
    /// Makes `control` carry out clients' requests from now on. Without it, the guest can't be controlled, because another program runs it.
    pub fn be_controlled(&mut self, control: Box<dyn GuestControl>) {
        self.control = Some(control);
    }

    /// Checks that the device may be opened.
    ///
    /// # Errors
    /// EACCES for a guest that another program runs, ENXIO for another minor than 0.
    pub(super) fn check_control(&self, minor: u16) -> Result<(), Errno> {
        match (&self.control, minor) {
            (None, _) => Err(Errno::EACCES),
            (Some(_), 0) => Ok(()),
            (Some(_), _) => Err(Errno::ENXIO),
        }
    }

    /// The flush that has to be over before a request: an older pause, whose ticks may not have arrived yet, and each vCPU's attempt to
    /// locate the kernel.
    pub(super) fn before_control(&self) -> Flush {
        if self.info.knowledge.is_unlocated() {
            self.clocks.ask_all()
        } else {
            self.clocks.flush()
        }
    }

    /// Makes the vCPUs try to locate the guest's kernel, if it hasn't been located yet. True when they have tried, or have taken too long.
    pub fn has_looked_for_kernel(&mut self) -> bool {
        let unlocated = self.info.knowledge.is_unlocated();
        let look = match self.look_for_kernel.take() {
            Some(look) => look,
            None if unlocated => self.clocks.ask_all(),
            None => return true,
        };
        let is_over = self.clocks.is_over(&look) || look.begun().elapsed() >= MAX_LOOK;
        if !is_over {
            self.look_for_kernel = Some(look);
        }
        is_over
    }

    pub(super) fn carry_out_control(&mut self, request: &Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Ioctl(command) => {
                self.command(command.number)?;
                Ok(Reply::Ioctl(IoctlReply::default()))
            }
            Request::Read { .. } => Err(Errno::EINVAL),
            Request::Open { .. } | Request::Close => Ok(Reply::Done),
        }
    }

    /// Takes the guest's restarts: forgets what was known of its processes, and tells recordings when the restarts were.
    pub(super) fn note_restarts(&mut self) {
        for time in self.info.restarts.take() {
            if let Some(control) = &self.control {
                control.note_restart();
            }
            self.resets += 1;
            self.names = Names::default();
            self.kernel_text.restart(time);
            self.processes.forget_spaces();
            self.task_looks.forget();
            if let Some(block) = (ResetInfo { time }).to_block() {
                let block: Arc<[u8]> = block.into();
                let consumers = self.consumers.iter_mut();
                consumers.for_each(|one| one.take_restart(&block));
            }
        }
    }

    fn command(&mut self, command: u32) -> Result<(), Errno> {
        let control = self.control.as_ref().ok_or(Errno::EACCES)?;
        if self.has_ended {
            return Err(Errno::ENXIO);
        }
        match command {
            CTL_PAUSE | CTL_RESUME => {
                let paused = command == CTL_PAUSE;
                control.note_pause(paused);
                if self.wants_pause != paused {
                    self.wants_pause = paused;
                    self.record_pause(paused);
                }
            }
            // The guest couldn't react to it, and would find it pressed long ago.
            CTL_POWER_BUTTON if self.wants_pause => return Err(Errno::EBUSY),
            CTL_POWER_BUTTON => return control.press_power_button(),
            CTL_RESET => control.reset(),
            CTL_STOP => control.stop(),
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Tells recordings when a pause begins or ends.
    fn record_pause(&mut self, paused: bool) {
        let time = monotonic_ns();
        if let Some(block) = (PauseInfo { time, paused }).to_block() {
            let block: Arc<[u8]> = block.into();
            self.consumers.take_block(&block);
        }
    }
}
