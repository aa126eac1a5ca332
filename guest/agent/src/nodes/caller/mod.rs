//! Finds out about a caller what the kernel doesn't pass on, from `/proc` and from the caller's memory. The caller controls how long that
//! takes.

mod identity;
mod memory;
mod pids;
mod pmc_call;
mod profil_call;
mod whole_write;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::{pcs, pmc, profil};

pub use pids::PidKind;
pub use whole_write::whole_write;

/// The bytes that an inspection has found, or the errno with which the call has to fail; `None` if neither can be found out.
pub type InspectionResult = Option<Result<Vec<u8>, Errno>>;

/// An inspection of a caller: the facts to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// All bytes that a thread's write(2) writes.
    WholeWrite {
        /// The thread.
        thread: u32,
    },
    /// The data of `PROFIL_CALL` for kvmprof, of a thread's call.
    ProfilCall {
        /// The thread.
        thread: u32,
        /// The call as the caller passed it.
        call: profil::Call,
    },
    /// The data of `PMC_CALL` for kvmprof, of a thread's call.
    PmcCall {
        /// The thread.
        thread: u32,
        /// Whether its user may count for the kernel and for other processes than its own.
        is_superuser: bool,
        /// The call as the caller passed it.
        call: pmc::Call,
    },
    /// The ids, as bytes, in this process's pid namespace of processes or groups that have the ids `pids` in the thread's namespace.
    Pids {
        /// The thread.
        thread: u32,
        /// What the ids identify.
        kind: PidKind,
        /// The number of ids in `pids`.
        count: usize,
        /// The ids in the thread's namespace; those beyond `count` are ignored.
        pids: [i32; pcs::MAX_LIST],
    },
}

impl Inspection {
    /// Carries out the inspection. The caller controls how long this takes.
    pub fn carry_out(self) -> InspectionResult {
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

    /// The result of an inspection that can't be carried out now.
    pub fn given_up(self) -> InspectionResult {
        match self {
            Self::WholeWrite { .. } => None,
            Self::ProfilCall { .. } | Self::PmcCall { .. } | Self::Pids { .. } => {
                Some(Err(Errno::ENOMEM))
            }
        }
    }
}
