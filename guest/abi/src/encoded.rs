//! Encoded values of a fixed maximum length, and fields of encoded ones.

use core::ops::Deref;

/// Up to `N` encoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Encoded<N> {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }

    /// Appends `more`, up to the capacity.
    pub(crate) fn push(&mut self, more: &[u8]) -> &mut Self {
        for (to, from) in self.bytes.iter_mut().skip(self.length).zip(more) {
            *to = *from;
            self.length += 1;
        }
        self
    }
}

impl<const N: usize> Deref for Encoded<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// The `N` bytes of `bytes` from `offset` on.
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}
