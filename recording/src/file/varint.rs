//! Numbers of as many bytes as they need: 7 bits a byte, the lowest first, the highest bit set in all but the last
//! (LEB128); signed ones zigzag. Names and addresses of stacks, which several blocks have, consist of such numbers.

use crate::COMM_LENGTH;

/// Maximum length of a number, in bytes.
const MAX_LENGTH: u32 = 10;

/// Appends `value`.
pub fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

/// Appends `value`, small if it is near 0.
pub fn push_signed(bytes: &mut Vec<u8>, value: i64) {
    push(bytes, (value << 1 ^ value >> 63).cast_unsigned());
}

/// Appends the name of a thread, without the NULs that pad it: its length, and its bytes.
pub fn push_comm(bytes: &mut Vec<u8>, comm: &[u8; COMM_LENGTH]) {
    let name = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    push(bytes, name.len() as u64);
    bytes.extend(name);
}

/// Appends a byte with those of `flags` that are set.
pub fn push_flags<const N: usize>(bytes: &mut Vec<u8>, flags: [(bool, u8); N]) {
    let set = flags.into_iter().filter(|(is_set, _)| *is_set);
    bytes.push(set.map(|(_, flag)| flag).sum());
}

/// Appends the addresses of a stack, each by its distance from the one before.
pub fn push_frames(bytes: &mut Vec<u8>, frames: &[u64]) {
    let mut last = 0_u64;
    for frame in frames {
        push_signed(bytes, frame.wrapping_sub(last).cast_signed());
        last = *frame;
    }
}

/// Reads numbers from the start of bytes.
#[derive(Clone, Debug)]
pub struct Numbers<'a>(pub &'a [u8]);

impl<'a> Numbers<'a> {
    /// The next number; `None` when there is no whole one.
    pub fn next(&mut self) -> Option<u64> {
        let mut value = 0;
        for position in 0..MAX_LENGTH {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * position);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// The next signed number.
    pub fn next_signed(&mut self) -> Option<i64> {
        let value = self.next()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// The next number, which has to be one of type `T`.
    pub fn next_as<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.next()?).ok()
    }

    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    /// The next signed number, which has to be a process or thread id.
    pub fn pid(&mut self) -> Option<i32> {
        i32::try_from(self.next_signed()?).ok()
    }

    /// The next name of a thread, as [`push_comm`] appends it.
    pub fn comm(&mut self) -> Option<[u8; COMM_LENGTH]> {
        let length = self.next_as()?;
        let name = self.bytes(length)?;
        let mut comm = [0; COMM_LENGTH];
        comm.get_mut(..length)?.copy_from_slice(name);
        Some(comm)
    }

    /// Adds the next `count` addresses, as [`push_frames`] appends them, to `frames`. The caller bounds `count`.
    pub fn frames(&mut self, count: usize, frames: &mut Vec<u64>) -> Option<()> {
        let mut last = 0_u64;
        for _ in 0..count {
            last = last.wrapping_add_signed(self.next_signed()?);
            frames.push(last);
        }
        Some(())
    }

    /// True when nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_names_round_trip_and_wrong_ones_are_refused() {
        let whole = [b'x'; COMM_LENGTH];
        let mut bytes = Vec::new();
        push_comm(&mut bytes, &whole);
        assert_eq!(Numbers(&bytes).comm(), Some(whole));
        // Longer than a name can be, and truncated.
        assert_eq!(Numbers(&[17; 18]).comm(), None);
        assert_eq!(Numbers(&[3, b'a']).comm(), None);
        assert_eq!(Numbers(&[2]).frames(2, &mut Vec::new()), None);
        assert_eq!(Numbers(&[0x80; 20]).next(), None);
    }

    #[test]
    fn small_numbers_are_short() {
        for (value, length) in [(0, 1), (-1, 1), (63, 1), (-64, 1), (64, 2)] {
            let mut bytes = Vec::new();
            push_signed(&mut bytes, value);
            assert_eq!(bytes.len(), length, "{value}");
        }
    }
}
