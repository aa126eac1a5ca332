//! Fields of structures in guest memory.

/// The little-endian integer at `offset`; 0 if it isn't within `bytes`.
pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |field| u64::from_le_bytes(*field))
}

/// As [`u64_at`], with 32 bits.
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |field| u32::from_le_bytes(*field))
}

/// As [`u64_at`], with 32 bits and a sign.
pub fn i32_at(bytes: &[u8], offset: usize) -> i32 {
    u32_at(bytes, offset).cast_signed()
}
