//! The part of the status document about the guest's memory balloon.

use serde::{Deserialize, Serialize};

/// The memory balloon. All amounts are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BalloonStatus {
    /// What the balloon is to hold.
    pub target_bytes: u64,
    /// What the guest says that it holds.
    pub held_bytes: u64,
    /// What the guest gave up for it since the start.
    pub inflated_bytes: u64,
    /// What the guest took back from it.
    pub deflated_bytes: u64,
    /// What the guest reported to be free, each time that it did, and the host took.
    pub reported_bytes: u64,
    /// What the guest says of its memory.
    pub guest: GuestMemoryStatus,
    /// Pages that aren't in guest memory.
    pub refused_pages: u64,
    /// Chains and rings of the guest's driver that can't be used.
    pub queue_faults: u64,
    /// Queues that the driver placed at impossible addresses.
    pub refused_queues: u64,
    /// Resets by the driver.
    pub resets: u64,
}

/// What a guest says of its memory, in bytes; `None` is what it doesn't say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestMemoryStatus {
    /// Memory in all.
    pub total_bytes: Option<u64>,
    /// Memory that nobody uses.
    pub free_bytes: Option<u64>,
    /// Memory that could be had without swapping.
    pub available_bytes: Option<u64>,
    /// Files' pages that could be given up at once.
    pub cached_bytes: Option<u64>,
    /// What was read from swap space.
    pub swapped_in_bytes: Option<u64>,
    /// What was written to swap space.
    pub swapped_out_bytes: Option<u64>,
    /// Page faults that needed a disk.
    pub major_faults: Option<u64>,
    /// Page faults that didn't.
    pub minor_faults: Option<u64>,
}
