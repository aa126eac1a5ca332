//! A vCPU that stands still for longer than a look.

use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_sregs};

use super::channel::{Channel, RemoteVcpu, SPIN, not_stopped};
use super::message::{Answer, Request, Stopped};
use crate::tracer::{StopOutcome, TraceError};

/// A vCPU that stands still until this is dropped. Its channel is used for nothing else meanwhile.
#[derive(Debug)]
pub struct HeldVcpu<'a> {
    channel: &'a Channel,
    stopped: Box<Stopped>,
    is_released: bool,
}

impl HeldVcpu<'_> {
    /// Its registers, from KVM_GET_REGS and KVM_GET_SREGS; `None` if they would be those of a nested guest.
    pub fn registers(&self) -> Option<&(kvm_regs, kvm_sregs)> {
        self.stopped.registers.as_ref()
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It hasn't stood still until now, or its thread can't be released in order.
    pub fn release(mut self) -> Result<StopOutcome<()>, TraceError> {
        self.is_released = true;
        match self.channel.ask(&Request::Release, SPIN) {
            Answer::Released => Ok(StopOutcome::Stopped(())),
            answer => not_stopped(answer),
        }
    }
}

impl Drop for HeldVcpu<'_> {
    fn drop(&mut self) {
        if !self.is_released {
            // It goes on in any case.
            let _ = self.channel.ask(&Request::Release, SPIN);
        }
    }
}

impl RemoteVcpu {
    /// Stops the vCPU, which stands still until the result is dropped, or for 2 s unless the tracer was started to hold it longer ([`StandStill`](super::StandStill)).
    /// Guest memory is read by another channel meanwhile.
    ///
    /// # Errors
    /// The vCPU can't be stopped. It goes on then.
    pub fn hold(&self) -> Result<StopOutcome<HeldVcpu<'_>>, TraceError> {
        let request = Request::Look(self.number, None, Vec::new());
        match self.channel.ask(&request, Duration::ZERO) {
            Answer::Stopped(stopped) => Ok(StopOutcome::Stopped(HeldVcpu {
                channel: &self.channel,
                stopped,
                is_released: false,
            })),
            answer => not_stopped(answer),
        }
    }
}
