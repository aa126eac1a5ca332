//! The part of the status document about shared folders.

use serde::{Deserialize, Serialize};

/// A folder of the host that is shared with the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FolderStatus {
    /// Its name in the guest.
    pub tag: String,
    /// The folder's path, or `socket=PATH` of a program that serves it.
    pub source: String,
    /// Whether the guest can't change it.
    pub readonly: bool,
    /// `waiting` until the guest's driver uses it, `serving`, or `failed` until that driver resets the device.
    pub state: String,
    /// The reason of its last failure; `None` if it never failed.
    pub failure: Option<String>,
    /// How often it has failed.
    pub failures: u64,
    /// How often virtiofsd was started again for it.
    pub restarts: u64,
    /// Requests that were answered with an error after a failure, or needed no answer.
    pub refused_requests: u64,
    /// Chains and rings of the guest's driver that can't be used, seen after a failure.
    pub queue_faults: u64,
    /// Queues that the driver placed at impossible addresses.
    pub refused_queues: u64,
    /// Resets by the driver.
    pub resets: u64,
}
