//! The ends of guests.

use std::io;

use super::VmError;
use crate::vcpu::Ending;
use kvmprof_introspection::GuestKnowledge;
use kvmprof_machine::GuestMemory;
use kvmprof_machine::failure::GuestFailure;

/// How a guest has ended.
#[derive(Debug)]
pub enum VmEnd {
    /// The guest was stopped: by a signal, the escape key, or [`Vm::stop`](super::Vm::stop).
    Stopped,
    /// The guest powered itself off.
    PowerOff,
    /// The guest was reset, and a reset ends it.
    Reset,
    /// The guest's kernel panicked and reset the machine. The text is the panic message, if it was seen on the console.
    Panic(Option<String>),
    /// A vCPU can't continue.
    GuestFailure(GuestFailure),
    /// The host failed a vCPU.
    HostFailure(io::Error),
}

impl VmEnd {
    /// The end that `ending` means; `message` is a panic message that was seen on a console.
    pub(super) fn new(
        ending: Option<Ending>,
        knowledge: &GuestKnowledge,
        memory: &GuestMemory,
        message: Option<String>,
    ) -> Result<Self, VmError> {
        Ok(match ending {
            None | Some(Ending::Stopped) => Self::Stopped,
            Some(Ending::PowerOff) => Self::PowerOff,
            Some(Ending::Reset) => {
                // The console matters only if the kernel's memory doesn't show it.
                let linux = knowledge.linux();
                match linux.and_then(|linux| linux.has_panicked(memory)) {
                    Some(true) => Self::Panic(message),
                    None if message.is_some() => Self::Panic(message),
                    _ => Self::Reset,
                }
            }
            Some(Ending::NotRestarted(error)) => return Err(VmError::Restart(error)),
            Some(Ending::GuestFailure(failure)) => Self::GuestFailure(failure),
            Some(Ending::Unprofilable(error)) => return Err(error.into()),
            Some(Ending::HostFailure(error)) => Self::HostFailure(error),
        })
    }
}
