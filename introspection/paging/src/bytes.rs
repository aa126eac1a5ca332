//! Reads little-endian fields of untrusted bytes. All functions return `None` for an offset beyond the end of the bytes. Other crates call them in their
//! innermost loops.

/// The `N` bytes at `offset`.
#[inline]
pub fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// The byte at `offset`.
#[inline]
pub fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

/// The 16-bit number at `offset`.
#[inline]
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

/// The 32-bit number at `offset`.
#[inline]
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

/// The signed 32-bit number at `offset`.
#[inline]
pub fn i32_at(bytes: &[u8], offset: usize) -> Option<i32> {
    array_at(bytes, offset).map(i32::from_le_bytes)
}

/// The 64-bit number at `offset`.
#[inline]
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

/// The 32-bit number at `offset` as an index into memory.
#[inline]
pub fn index_at(bytes: &[u8], offset: usize) -> Option<usize> {
    usize::try_from(u32_at(bytes, offset)?).ok()
}
