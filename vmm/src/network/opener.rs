//! A process that opens taps again which were removed and made anew. A contained kvmprof may not do so: a process that may open one tap
//! may open, or make, any other.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use super::config::{NetworkConfig, PeerAddress};
use super::tap;
use crate::helper::Helper;

/// The connection to that process. The process ends when this is dropped.
#[derive(Debug)]
pub struct TapOpener(Helper);

impl TapOpener {
    /// Forks the process for the taps among these networks. `None` if there are none. It opens these taps and no others, and keeps no
    /// capability except CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn fork(networks: &[NetworkConfig]) -> io::Result<Option<Self>> {
        let name = |network: &NetworkConfig| match &network.peer {
            PeerAddress::Tap(name) => Some(name.clone()),
            PeerAddress::Socket(_) => None,
        };
        let names: Vec<String> = networks.iter().filter_map(name).collect();
        let keep_rights = kvmprof_sandbox::process::keep_network_rights;
        if names.is_empty() {
            return Ok(None);
        }
        let open = |asked: &OsStr| {
            let name = names.iter().find(|name| asked == name.as_str())?;
            Some(tap::open(name).map(OwnedFd::from))
        };
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork_opener(c"kvmprof-tap", keep_rights, open) };
        Ok(Some(Self(helper?)))
    }

    /// Opens the tap with this name, which has to be one of those given to [`fork`](Self::fork).
    ///
    /// # Errors
    /// It isn't there, or can't be opened.
    pub(super) fn open(&self, name: &str) -> io::Result<File> {
        self.0.open(name).map(File::from)
    }
}
