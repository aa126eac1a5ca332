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
    /// Connections that the guest has made.
    pub guest_connections: u64,
    /// Connections that the guest has asked for in vain.
    pub guest_refused: u64,
    /// Connections that were made to the guest.
    pub host_connections: u64,
    /// Connections to the guest that it didn't accept, or that there was no room for.
    pub host_refused: u64,
    /// Clients on the host that never asked for a port of the guest, or weren't allowed to.
    pub clients_turned_away: u64,
    /// Bytes that the guest has received.
    pub received_bytes: u64,
    /// Bytes of the guest that were taken on the host.
    pub sent_bytes: u64,
    /// Packets of the guest that make no sense.
    pub malformed: u64,
    /// Packets of the guest with more bytes than it had credit for.
    pub credit_violations: u64,
    /// Packets of the guest of no connection.
    pub unknown: u64,
    /// Chains and rings of the guest's driver that can't be used.
    pub queue_faults: u64,
    /// Queues that the driver placed at impossible addresses.
    pub refused_queues: u64,
    /// Resets by the driver.
    pub resets: u64,
}
