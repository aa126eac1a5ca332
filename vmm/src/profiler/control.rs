//! The device `control`: what clients of the host may have the guest do.

use kvmprof_abi::control::{CTL_PAUSE, CTL_POWER_BUTTON, CTL_RESET, CTL_RESUME, CTL_STOP};
use kvmprof_abi::errno::Errno;
use kvmprof_devices::endpoint::IoctlReply;

use super::Profiler;
use super::clocks::Flush;
use super::consumers::{Reply, Request};
use crate::vm::GuestControl;

impl Profiler {
    /// Has `control` carry out what clients ask for from now on. Without it nobody controls the guest: it is another
    /// program's.
    pub fn be_controlled(&mut self, control: GuestControl) {
        self.control = Some(control);
    }

    /// Whether the device may be opened.
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

    /// What has to be over before a request: an older pause, whose ticks may still be on their way.
    pub(super) fn before_control(&self) -> Flush {
        self.clocks.flush()
    }

    pub(super) fn carry_out_control(&mut self, request: &Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Ioctl { command, .. } => {
                self.command(*command)?;
                Ok(Reply::Ioctl(IoctlReply::default()))
            }
            Request::Read { .. } => Err(Errno::EINVAL),
            Request::Open { .. } | Request::Close => Ok(Reply::Done),
        }
    }

    fn command(&mut self, command: u32) -> Result<(), Errno> {
        let control = self.control.as_ref().ok_or(Errno::EACCES)?;
        if self.has_ended {
            return Err(Errno::ENXIO);
        }
        match command {
            CTL_PAUSE => self.wants_pause = true,
            CTL_RESUME => self.wants_pause = false,
            // The guest couldn't answer it, and would find it pressed long ago.
            CTL_POWER_BUTTON if self.wants_pause => return Err(Errno::EBUSY),
            CTL_POWER_BUTTON => return control.press_power_button(),
            CTL_RESET => control.reset(),
            CTL_STOP => control.stop(),
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }
}
