//! A process that opens taps again which have been removed and made anew. A contained kvmprof may not: who may open one tap may open, or
//! make, any.

use std::fs::File;
use std::io;

use super::config::{NetworkConfig, PeerPlace};
use super::tap;
use crate::helper::{Answer, Helper};

/// The connection to it. Dropped, the process ends.
#[derive(Debug)]
pub struct TapOpener(Helper);

impl TapOpener {
    /// Forks the process for the taps among these networks; `None` if there are none. It opens these taps and no others, and keeps no
    /// rights of a superuser but those over networks.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn fork(networks: &[NetworkConfig]) -> io::Result<Option<Self>> {
        let name = |network: &NetworkConfig| match &network.peer {
            PeerPlace::Tap(name) => Some(name.clone()),
            PeerPlace::Socket(_) => None,
        };
        let names: Vec<String> = networks.iter().filter_map(name).collect();
        if names.is_empty() {
            return Ok(None);
        }
        let server = || {
            let contained = kvmprof_sandbox::process::keep_network_rights();
            move |asked: &[u8]| match &contained {
                Ok(()) => open(&names, asked),
                Err(error) => Err(format!("it can't give up rights: {error}")),
            }
        };
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork(c"kvmprof-tap", server) };
        helper.map(|helper| Some(Self(helper)))
    }

    /// Opens the tap with this name, which is one of those from the start.
    ///
    /// # Errors
    /// It isn't there, or can't be opened.
    pub(super) fn open(&self, name: &str) -> io::Result<File> {
        let file = self.0.ask(name.as_bytes())?.into_iter().next();
        let file = file.ok_or_else(|| io::Error::other("the helper has sent no file"))?;
        Ok(file.into())
    }
}

fn open(names: &[String], asked: &[u8]) -> Answer {
    let name = names.iter().find(|name| name.as_bytes() == asked);
    let name = name.ok_or_else(|| "it isn't on the command line".to_owned())?;
    match tap::open(name) {
        Ok(file) => Ok(vec![file.into()]),
        Err(error) => Err(error.to_string()),
    }
}
