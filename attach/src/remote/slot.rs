//! A memory slot in the data that goes from the tracer to the process that parses.

use kvmprof_introspection::bytes::u64_at;
use vm_memory::GuestAddress;

use crate::Slot;

/// Bytes of a slot in the data: its address, its length, and its access.
pub const SLOT_BYTES: usize = 24;
/// Bits of the access.
const READ_ONLY: u64 = 1;
const LOGS_WRITES: u64 = 1 << 1;

/// The numbers of `slot`, without its address in the VMM.
pub fn encode(slot: &Slot) -> [u64; SLOT_BYTES / 8] {
    let flag = |is_set, bit| if is_set { bit } else { 0 };
    let access = flag(slot.is_read_only, READ_ONLY) | flag(slot.logs_writes, LOGS_WRITES);
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
    })
}
