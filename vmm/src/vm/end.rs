//! How a guest has ended.

use std::io;

use vm_memory::GuestMemoryMmap;

use crate::introspection::GuestKnowledge;
use crate::vcpu::Ending;

/// How a guest has ended, as the one who launched it sees it.
#[derive(Debug)]
pub enum VmEnd {
    /// It was told to: a signal, the escape key, [`Vm::stop`](super::Vm::stop).
    Stopped,
    /// It powered itself off.
    PowerOff,
    /// It reset itself.
    Reset,
    /// Its kernel panicked and reset the machine.
    Panic,
    /// No vCPU can go on; the text says what happened and what to do.
    GuestFailure(String),
    /// The host failed a vCPU.
    HostFailure(io::Error),
}

impl VmEnd {
    pub(super) fn new(
        ending: Option<Ending>,
        knowledge: &GuestKnowledge,
        memory: &GuestMemoryMmap,
    ) -> Self {
        let panicked = || knowledge.has_panicked(memory) == Some(true);
        match ending {
            None | Some(Ending::Stopped) => Self::Stopped,
            Some(Ending::PowerOff) => Self::PowerOff,
            Some(Ending::Reset) if panicked() => Self::Panic,
            Some(Ending::Reset) => Self::Reset,
            Some(Ending::GuestFailure(text)) => Self::GuestFailure(text),
            Some(Ending::HostFailure(error)) => Self::HostFailure(error),
        }
    }
}
