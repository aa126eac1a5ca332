//! What has to be known of a caller that the kernel doesn't hand over: found in `/proc` and in the caller's memory, which
//! may take as long as the caller likes.

mod identity;
mod memory;
mod pids;
mod pmc_call;
mod profil_call;
mod whole_write;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::{pcs, pmc, profil};

pub use pids::PidKind;
pub use whole_write::{WholeWrite, whole_write};

/// What to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// All that the write writes that a thread is in.
    WholeWrite {
        /// The thread.
        thread: u32,
    },
    /// The data of `PROFIL_CALL` for kvmprof, of a thread's call.
    ProfilCall {
        /// The thread.
        thread: u32,
        /// What it has handed over.
        call: profil::Call,
    },
    /// The data of `PMC_CALL` for kvmprof, of a thread's call.
    PmcCall {
        /// The thread.
        thread: u32,
        /// Whether its user may count other processes than its own, and for the kernel.
        is_superuser: bool,
        /// What it has handed over.
        call: pmc::Call,
    },
    /// The numbers, as bytes, that processes or groups have in this process's pid namespace, of those in a thread's.
    Pids {
        /// The thread.
        thread: u32,
        /// What they are numbers of.
        kind: PidKind,
        /// So many of them count.
        count: usize,
        /// The numbers in the thread's namespace.
        pids: [i32; pcs::MAX_LIST],
    },
}

impl Look {
    /// Finds it out. It takes as long as the caller lets it.
    pub fn carry_out(self) -> WholeWrite {
        match self {
            Self::WholeWrite { thread } => whole_write(thread),
            Self::ProfilCall { thread, call } => Some(profil_call::complete(thread, call)),
            Self::PmcCall {
                thread,
                is_superuser,
                call,
            } => Some(pmc_call::complete(thread, is_superuser, call)),
            Self::Pids {
                thread,
                kind,
                count,
                pids,
            } => {
                let pids = pids.get(..count).unwrap_or(&pids);
                let translated = pids::translated(thread, kind, pids);
                let bytes =
                    |pids: Vec<i32>| pids.iter().flat_map(|pid| pid.to_ne_bytes()).collect();
                Some(translated.map(bytes))
            }
        }
    }

    /// What is found when there can't be another look now.
    pub fn given_up(self) -> WholeWrite {
        match self {
            Self::WholeWrite { .. } => None,
            Self::ProfilCall { .. } | Self::PmcCall { .. } | Self::Pids { .. } => {
                Some(Err(Errno::ENOMEM))
            }
        }
    }
}
