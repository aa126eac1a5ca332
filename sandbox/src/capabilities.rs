//! What each thread keeps of the superuser's rights (capabilities(7)).

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::Thread;
use crate::state::{self, Part};

impl Thread {
    /// What it may need once a guest runs, of what the process has: files that are named on the command line may be other users'.
    fn rights(self) -> CapabilitySet {
        match self {
            Self::Vcpu | Self::VcpuWithBpf => {
                CapabilitySet::PERFMON | CapabilitySet::BPF | CapabilitySet::IPC_LOCK
            }
            Self::Events => {
                CapabilitySet::PERFMON
                    | CapabilitySet::BPF
                    | CapabilitySet::IPC_LOCK
                    | CapabilitySet::DAC_OVERRIDE
                    | CapabilitySet::FOWNER
            }
            Self::Main | Self::Recorder => CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER,
            Self::Network | Self::Vsock => CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER,
            Self::Binaries | Self::Introspection => CapabilitySet::DAC_READ_SEARCH,
            Self::Console
            | Self::Disk
            | Self::Balloon
            | Self::Entropy
            | Self::Share
            | Self::Ticker
            | Self::End => CapabilitySet::empty(),
        }
    }
}

/// Has this thread give up all rights but those of `thread`, for good.
///
/// # Errors
/// The system refuses it, which it doesn't for less than there was.
pub(crate) fn keep(thread: Thread) -> io::Result<()> {
    let has = capabilities(None)?.permitted;
    let keeps = has & thread.rights();
    if has != keeps {
        let sets = CapabilitySets {
            effective: keeps,
            permitted: keeps,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets)?;
    }
    state::note(Part::Capabilities, "on");
    Ok(())
}
