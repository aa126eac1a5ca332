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
    /// The number of open connections.
    pub connections: usize,
    /// Clients on the host that never requested a port of the guest, or weren't allowed to.
    pub clients_turned_away: u64,
    /// Counts of connections, and of the guest's packets.
    #[serde(flatten)]
    pub counts: VsockCounts,
    /// Queues that the driver placed at impossible addresses.
    pub refused_queues: u64,
    /// Resets by the driver.
    pub resets: u64,
}

/// Counts of the socket device since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VsockCounts {
    /// Connections that the guest has made.
    pub guest_connections: u64,
    /// Connections of the guest that were refused: no program listens, or there are too many.
    pub guest_refused: u64,
    /// Connections that were made to the guest.
    pub host_connections: u64,
    /// Connections to the guest that weren't accepted: no program listens, there are too many, or it has no driver.
    pub host_refused: u64,
    /// Bytes that the guest has received.
    pub received_bytes: u64,
    /// Bytes from the guest that programs of the host have received.
    pub sent_bytes: u64,
    /// Invalid packets of the guest.
    pub malformed: u64,
    /// Packets of the guest with more bytes than it had credit for.
    pub credit_violations: u64,
    /// Packets of the guest without a connection, which were answered with a reset.
    pub unknown: u64,
    /// Unusable chains and rings of the guest's driver.
    pub queue_faults: u64,
}
