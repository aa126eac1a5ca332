//! The part of the status document about the guest's socket device.

use serde::{Deserialize, Serialize};

/// The socket device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VsockStatus {
    /// The guest's address.
    pub cid: u32,
    /// The path of its socket on the host.
    pub socket: String,
    /// Connections at the moment.
    pub connections: usize,
    /// Clients on the host that never asked for a port of the guest, or weren't allowed to.
    pub clients_turned_away: u64,
    /// What has come of them, and of the guest's packets.
    #[serde(flatten)]
    pub counts: VsockCounts,
    /// Queues that the driver placed at impossible addresses.
    pub refused_queues: u64,
    /// Resets by the driver.
    pub resets: u64,
}

/// What the socket device has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VsockCounts {
    /// Connections that the guest has made.
    pub guest_connections: u64,
    /// Connections that the guest has asked for in vain: nobody listens, or there are too many.
    pub guest_refused: u64,
    /// Connections that were made to the guest.
    pub host_connections: u64,
    /// Connections to the guest that weren't accepted: nobody listens, there are too many, or it has no driver.
    pub host_refused: u64,
    /// Bytes that the guest has received.
    pub received_bytes: u64,
    /// Bytes of the guest that the host's ends have taken.
    pub sent_bytes: u64,
    /// Packets of the guest that make no sense.
    pub malformed: u64,
    /// Packets of the guest with more bytes than it had credit for.
    pub credit_violations: u64,
    /// Packets of the guest of no connection, which were answered with a reset.
    pub unknown: u64,
    /// Unusable chains and rings of the guest's driver.
    pub queue_faults: u64,
}
