//! Fields of structures in guest memory.

/// A little-endian integer; 0 beyond the end.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |field| u64::from_le_bytes(*field))
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |field| u32::from_le_bytes(*field))
}

pub(crate) fn i32_at(bytes: &[u8], offset: usize) -> i32 {
    u32_at(bytes, offset).cast_signed()
}
