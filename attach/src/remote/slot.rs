//! A memory slot in the data that goes from the tracer to the process that parses.

use kvmprof_introspection::bytes::u64_at;
use vm_memory::GuestAddress;

use crate::{Backing, Slot};

/// Bytes of a slot in the data: its address, its length, and its access with its backing.
pub const SLOT_BYTES: usize = 24;
/// Bits of the access.
const READ_ONLY: u64 = 1;
const LOGS_WRITES: u64 = 1 << 1;
const BY_SWAP: u64 = 1 << 2;
const BY_FILE: u64 = 1 << 3;

/// The numbers of `slot`, without its address in the VMM.
pub fn encode(slot: &Slot) -> [u64; SLOT_BYTES / 8] {
    let flag = |is_set, bit| if is_set { bit } else { 0 };
    let backing = match slot.backing {
        Backing::Unknown => 0,
        Backing::Swap => BY_SWAP,
        Backing::File => BY_FILE,
    };
    let access = flag(slot.is_read_only, READ_ONLY) | flag(slot.logs_writes, LOGS_WRITES) | backing;
    [slot.address.0, slot.bytes, access]
}

/// The slot with these `bytes`. Its address in the VMM is 0.
pub fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Slot> {
    let access = u64_at(bytes, 16)?;
    Some(Slot {
        address: GuestAddress(u64_at(bytes, 0)?),
        bytes: u64_at(bytes, 8)?,
        host_address: 0,
        is_read_only: access & READ_ONLY != 0,
        logs_writes: access & LOGS_WRITES != 0,
        backing: match access & (BY_SWAP | BY_FILE) {
            BY_SWAP => Backing::Swap,
            BY_FILE => Backing::File,
            _ => Backing::Unknown,
        },
    })
}
