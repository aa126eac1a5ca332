//! The status document of a running guest, which the host socket's device `status` returns: the machine, the clock, the
//! consumers of its ticks, and all ledgers.
//!
//! These types define its JSON form. Later versions may add members, which readers ignore; a missing member has its
//! default value.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::ClockLedger;

mod consumers;
mod folders;
mod limits;
mod networks;
mod vsock;

pub use consumers::{
    ConsumerStatus, OtherStatus, PcsStatus, PmcStatus, PrfStatus, ProfilStatus, RecorderStatus,
};
pub use folders::FolderStatus;
pub use limits::LimitsStatus;
pub use networks::{EntropyStatus, FrameCounts, NetworkStatus};
pub use vsock::{VsockCounts, VsockStatus};

/// The whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The version of the kvmprof that runs the guest.
    pub version: String,
    /// The virtual machine.
    pub machine: MachineStatus,
    /// The sandbox of the program that runs the guest: the state of each part in a few words, or `off`.
    pub sandbox: BTreeMap<String, String>,
    /// The clock that makes the ticks.
    pub clock: ClockStatus,
    /// What is missing because a limit was reached.
    pub limits: LimitsStatus,
    /// The consumers of the clock's ticks: first pcs, then the minors of prf that have a table, then the recorders.
    pub consumers: Vec<ConsumerStatus>,
}

/// The virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineStatus {
    /// The kernel's file, or a text in its place.
    pub kernel: String,
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// The number of vCPUs.
    pub vcpus: usize,
    /// How processes are identified, in words.
    pub introspection: String,
    /// The kernel of a Linux guest; `None` for other guests.
    pub linux: Option<LinuxStatus>,
    /// Accesses that no device answered.
    pub unclaimed_accesses: UnclaimedAccesses,
    /// The virtio console device; `None` for a machine without one.
    pub virtio: Option<VirtioStatus>,
    /// Its disks, in the order of the command line.
    pub disks: Vec<DiskStatus>,
    /// The network devices.
    pub networks: Vec<NetworkStatus>,
    /// The shared folders, in the order of the command line.
    pub folders: Vec<FolderStatus>,
    /// The socket device, if it has one.
    pub vsock: Option<VsockStatus>,
    /// The entropy device; `None` for a guest of another program.
    pub entropy: Option<EntropyStatus>,
    /// Whether the vCPUs wait until a client takes samples or turns prf on.
    pub held: bool,
    /// Whether a client has paused it: the vCPUs stand still, and there are no ticks.
    pub paused: bool,
    /// Whether the guest's kernel listens to its power button.
    pub power_button: bool,
    /// How often the guest was restarted.
    pub resets: u64,
    /// Whether the machine has ended.
    pub ended: bool,
}

/// The kernel of a Linux guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxStatus {
    /// Its release, as `uname -r` prints it.
    pub release: String,
    /// How many bytes above its link-time address it runs; `None` until that is known.
    pub slide: Option<u64>,
    /// What isn't known of it, and why: a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<String>,
}

/// Accesses that no device answered: reads return all ones, and writes have no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnclaimedAccesses {
    /// Reads of I/O ports.
    pub port_reads: u64,
    /// Writes to I/O ports.
    pub port_writes: u64,
    /// Reads of guest-physical addresses without memory.
    pub mmio_reads: u64,
    /// Writes to guest-physical addresses without memory.
    pub mmio_writes: u64,
}

/// The virtio console device, with counts of its driver's errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VirtioStatus {
    /// Resets by the driver.
    pub resets: u64,
    /// Queues that the driver placed at impossible addresses.
    pub refused_queues: u64,
    /// Chains and control queues that can't be used.
    pub control_faults: u64,
    /// The device's ports.
    pub ports: Vec<PortStatus>,
}

/// A disk: a virtio block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskStatus {
    /// Its image.
    pub path: String,
    /// The image's format: `raw` or `qcow2`.
    pub format: String,
    /// Its size for the guest, in bytes.
    pub bytes: u64,
    /// Whether the guest can't write it.
    pub readonly: bool,
    /// Its serial number, which may be empty.
    pub serial: String,
    /// Counts of the guest's requests.
    #[serde(flatten)]
    pub counts: BlockCounts,
}

/// Counts of a guest's requests to a disk since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockCounts {
    /// Reads performed.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Writes performed.
    pub writes: u64,
    /// Bytes written, without those of zeroings.
    pub bytes_written: u64,
    /// Flushes performed.
    pub flushes: u64,
    /// Requests to discard sectors that were performed.
    pub discards: u64,
    /// Requests to zero sectors that were performed.
    pub zeroings: u64,
    /// Requests that failed on the host.
    pub errors: u64,
    /// Invalid requests, which the guest got an error for: beyond the end, not of whole sectors, of an unknown kind, or
    /// writes to a read-only disk.
    pub refused: u64,
    /// Unusable chains and rings; each costs a queue until the driver resets the device.
    pub queue_faults: u64,
}

/// A port of the virtio console device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortStatus {
    /// Its name; port 0 is `console`.
    pub name: String,
    /// Bad chains and rings.
    pub queue_faults: u64,
    /// How often the host hung up because the guest broke the protocol.
    pub protocol_faults: u64,
}

/// The clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClockStatus {
    /// Ticks a second on each vCPU: of the running clock, or of the next one.
    pub hz: u32,
    /// Whether it runs.
    pub running: bool,
    /// The event that makes ticks instead of the clock, in the form of a [`SamplingEvent`]. It is text, because a later version may
    /// have other events.
    ///
    /// [`SamplingEvent`]: crate::SamplingEvent
    pub event: Option<String>,
    /// The source of its ticks, such as `thread` or `kernel`.
    pub source: String,
    /// Whether ticks have a random phase.
    pub jitter: bool,
    /// How registers are read, in words.
    pub registers: String,
    /// How ticks of halted vCPUs are counted, in words.
    pub halted_ticks: String,
    /// The sum over all vCPUs.
    pub ledger: ClockLedger,
    /// Each vCPU's ledger, by the vCPU's index.
    pub vcpus: Vec<ClockLedger>,
    /// Samples of the host's kernel that have no process, because the kernel couldn't read it at that moment.
    pub unread_processes: u64,
}

impl Status {
    /// Reads a document.
    ///
    /// # Errors
    /// It isn't JSON, or a member has another type.
    pub fn from_json(document: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(document)
    }

    /// The document, on one line. The members of each object are in alphabetical order.
    ///
    /// # Errors
    /// There is no known cause: every part has a JSON form.
    pub fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_value(self)?.to_string())
    }

    /// The device pcs. `None` in a document of a machine without it.
    pub fn pcs(&self) -> Option<&PcsStatus> {
        self.consumers.iter().find_map(|consumer| match consumer {
            ConsumerStatus::Pcs(pcs) => Some(pcs),
            _ => None,
        })
    }

    /// The minors of prf that have a table, by number.
    pub fn prf(&self) -> impl Iterator<Item = &PrfStatus> {
        self.consumers.iter().filter_map(|consumer| match consumer {
            ConsumerStatus::Prf(prf) => Some(prf),
            _ => None,
        })
    }

    /// The recorders: that of `kvmprof run --record` first, then those of clients.
    pub fn recorders(&self) -> impl Iterator<Item = &RecorderStatus> {
        self.consumers.iter().filter_map(|consumer| match consumer {
            ConsumerStatus::Recorder(recorder) => Some(recorder),
            _ => None,
        })
    }

    /// The processes that profil or pcsample profiles.
    pub fn profil(&self) -> impl Iterator<Item = &ProfilStatus> {
        self.consumers.iter().filter_map(|consumer| match consumer {
            ConsumerStatus::Profil(profil) => Some(profil),
            _ => None,
        })
    }

    /// The device pmc. `None` while it counts nothing.
    pub fn pmc(&self) -> Option<&PmcStatus> {
        self.consumers.iter().find_map(|consumer| match consumer {
            ConsumerStatus::Pmc(pmc) => Some(pmc),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
