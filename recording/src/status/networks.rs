//! The parts of the status document about the guest's network devices and its entropy device.

use serde::{Deserialize, Serialize};

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkStatus {
    /// What it is connected to: `tap=NAME` or `socket=PATH`.
    pub peer: String,
    /// Its address, in six pairs of hexadecimal digits.
    pub mac: String,
    /// Whether the guest sees the link as up.
    pub up: bool,
    /// How often the link has gone down.
    pub link_losses: u64,
    /// Frames to the guest.
    pub received: FrameCounts,
    /// Frames of the guest.
    pub sent: FrameCounts,
    /// How often the other end broke the protocol.
    pub peer_faults: u64,
    /// Chains and rings of the guest's driver that can't be used.
    pub queue_faults: u64,
    /// Queues that the driver placed at impossible addresses.
    pub refused_queues: u64,
    /// Resets by the driver.
    pub resets: u64,
}

/// Counts of frames in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrameCounts {
    /// Frames that arrived.
    pub frames: u64,
    /// The number of their bytes.
    pub bytes: u64,
    /// Frames that were dropped because there was no large enough buffer, the link was down, or the receiver didn't take them.
    pub dropped: u64,
    /// Frames that no network carries, which were dropped too, and aren't among those above.
    pub malformed: u64,
}

/// The entropy device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EntropyStatus {
    /// Requests that were answered.
    pub requests: u64,
    /// The number of random bytes that the guest got.
    pub bytes: u64,
    /// Chains and rings of the guest's driver that can't be used.
    pub queue_faults: u64,
    /// How often the host had no random bytes.
    pub source_errors: u64,
}
