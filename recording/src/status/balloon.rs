//! The part of the status document about the guest's memory balloon.

use serde::{Deserialize, Serialize};

/// The memory balloon. All amounts are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BalloonStatus {
    /// The size that the balloon should have.
    pub target_bytes: u64,
    /// The size of the balloon by the guest's driver.
    pub held_bytes: u64,
    /// The memory that the guest has put into it since the start.
    pub inflated_bytes: u64,
    /// The memory that the guest has taken back from it.
    pub deflated_bytes: u64,
    /// The free memory that the guest has reported and the host has taken, summed over all reports.
    pub reported_bytes: u64,
    /// The guest's own statistics of its memory.
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

/// The guest's statistics of its memory, in bytes; `None` for those that it doesn't report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestMemoryStatus {
    /// All memory.
    pub total_bytes: Option<u64>,
    /// Unused memory.
    pub free_bytes: Option<u64>,
    /// Memory that is available without swapping.
    pub available_bytes: Option<u64>,
    /// Pages of files that can be dropped at once.
    pub cached_bytes: Option<u64>,
    /// The number of bytes read from swap space.
    pub swapped_in_bytes: Option<u64>,
    /// The number of bytes written to swap space.
    pub swapped_out_bytes: Option<u64>,
    /// Page faults that needed a disk.
    pub major_faults: Option<u64>,
    /// Page faults that didn't.
    pub minor_faults: Option<u64>,
}
