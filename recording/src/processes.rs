//! The list of a guest's processes: a document of the socket.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestProcess {
    /// Its id, as the guest's first pid namespace has it.
    pub pid: i32,
    /// That of its parent; 0 if the kernel has started it.
    pub parent: i32,
    /// The name of its main thread.
    pub name: String,
    /// The letter of its main thread's state in `/proc/PID/stat` ([`TaskState`](crate::tasks::TaskState)); a blank if it is unknown.
    pub state: char,
    /// The vCPU on which its main thread is, or was last; none if it is unknown.
    pub vcpu: Option<u16>,
    /// Its labels, as recordings have them ([`ProcessLabels`](crate::file::ProcessLabels)).
    pub labels: BTreeMap<String, String>,
}

/// All processes at one moment, each behind its parent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestProcessList {
    /// The processes.
    pub processes: Vec<GuestProcess>,
}
