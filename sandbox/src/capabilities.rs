//! What each thread keeps of the superuser's rights (capabilities(7)).

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::state::{self, Mechanism};
use crate::thread::{Thread, for_each_thread};
use crate::user::User;

macro_rules! rights {
    ($($(#[$doc:meta])* $name:ident [$($table:ident)*] [$($right:ident)*],)*) => {
        impl Thread {
            /// The rights that the thread may need once a guest runs.
            fn rights(self) -> CapabilitySet {
                match self {
                    $(Self::$name => CapabilitySet::empty() $(| CapabilitySet::$right)*,)*
                }
            }
        }
    };
}
for_each_thread!(rights);

/// Permanently gives up all rights of this thread but those of `thread`. A thread that is to become another user keeps
/// none.
///
/// # Errors
/// The system refuses it. It never refuses to take rights away.
pub(crate) fn keep(thread: Thread, user: Option<&User>) -> io::Result<()> {
    let rights = match user {
        Some(user) => {
            user.become_for_good()?;
            CapabilitySet::empty()
        }
        None => thread.rights(),
    };
    keep_only(rights)?;
    state::note(Mechanism::Capabilities, "on");
    Ok(())
}

/// Permanently gives up all rights of this thread but those of any of `threads`.
///
/// # Errors
/// As for [`keep`].
pub(crate) fn keep_any(threads: &[Thread]) -> io::Result<()> {
    let rights = threads.iter().map(|thread| thread.rights());
    keep_only(rights.fold(CapabilitySet::empty(), |all, rights| all | rights))
}

/// Permanently gives up all rights of this thread but `rights`.
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
