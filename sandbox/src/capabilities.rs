//! What each thread keeps of the superuser's rights (capabilities(7)).

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::Thread;
use crate::state::{self, Part};
use crate::user::User;

impl Thread {
    /// The rights that the thread may need once a guest runs. Files on the command line may belong to other users.
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
            // It removes the name of its socket.
            Self::Vsock => CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER,
            // The other threads that read the guest's kernel and programs have their files open.
            Self::BinariesWithSysroot => CapabilitySet::DAC_READ_SEARCH,
            Self::Introspection
            | Self::Binaries
            | Self::Console
            | Self::Disk
            | Self::Network
            | Self::Balloon
            | Self::Entropy
            | Self::Share
            | Self::End => CapabilitySet::empty(),
        }
    }
}

/// Gives up all rights of this thread but those of `thread`, for good. A thread that is to become another user keeps only those for
/// eBPF, if it has to load programs.
///
/// # Errors
/// The system refuses it. It never refuses to take rights away.
pub(crate) fn keep(thread: Thread, user: Option<&User>) -> io::Result<()> {
    let mut rights = thread.rights();
    if let Some(user) = user {
        let keeps_rights = thread == Thread::VcpuWithBpf;
        user.become_for_good(keeps_rights)?;
        if !keeps_rights {
            rights = CapabilitySet::empty();
        }
    }
    keep_only(rights)?;
    state::note(Part::Capabilities, "on");
    Ok(())
}

/// Gives up all rights of this thread but `rights`, for good.
///
/// # Errors
/// As for [`keep`].
pub(crate) fn keep_only(rights: CapabilitySet) -> io::Result<()> {
    let has = capabilities(None)?.permitted;
    let keeps = has & rights;
    if has != keeps {
        let sets = CapabilitySets {
            effective: keeps,
            permitted: keeps,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets)?;
    }
    Ok(())
}
