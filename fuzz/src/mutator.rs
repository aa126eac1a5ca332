//! Changes inputs at random, by a seed: the same seed makes the same changes.

/// Longest input, in bytes.
const MAX_LENGTH: usize = 1 << 16;
/// Numbers at which lengths, counts and offsets tend to go wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    7,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Makes inputs out of others.
#[derive(Clone, Debug)]
pub struct Mutator(u64);

impl Mutator {
    /// A mutator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number of SplitMix64.
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`; 0 if that is 0.
    fn below(&mut self, end: usize) -> usize {
        let number = self.number() >> 1;
        usize::try_from(number)
            .unwrap_or(0)
            .checked_rem(end)
            .unwrap_or(0)
    }

    /// One of the `inputs` with a few changes, or an empty one where there are none.
    pub fn mutate<T: AsRef<[u8]>>(&mut self, inputs: &[T]) -> Vec<u8> {
        let pick = |number: usize| inputs.get(number).map(AsRef::as_ref).unwrap_or_default();
        let mut bytes = pick(self.below(inputs.len())).to_vec();
        for _ in 0..=self.below(6) {
            let other = pick(self.below(inputs.len()));
            self.change(&mut bytes, other);
        }
        bytes.truncate(MAX_LENGTH);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len());
        let length = 1 + self.below(32.min(bytes.len() - at));
        let end = (at + length).min(bytes.len());
        match self.below(10) {
            0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            2 if !bytes.is_empty() => bytes[at] = self.number().to_le_bytes()[0],
            3 | 4 => {
                // An edge, or a number beside it, in either order of bytes.
                let near = (self.below(3) as u64).wrapping_sub(1);
                let number = EDGES[self.below(EDGES.len())].wrapping_add(near);
                let width = 1 << self.below(4);
                let mut new = number.to_le_bytes()[..width].to_vec();
                if self.below(4) == 0 {
                    new.reverse();
                }
                let end = (at + width).min(bytes.len());
                bytes.splice(at..end, new);
            }
            5 => {
                bytes.drain(at..end);
            }
            6 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            7 => bytes.truncate(at),
            8 => {
                let new: Vec<u8> = (0..length)
                    .map(|_| self.number().to_le_bytes()[0])
                    .collect();
                bytes.splice(at..at, new);
            }
            _ => {
                let from = self.below(other.len());
                let until = from + self.below(other.len() - from + 1);
                bytes.splice(at..end, other[from..until].iter().copied());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let inputs = [b"one input".as_slice(), b"", b"another"];
        let all = |seed| {
            let mut mutator = Mutator::new(seed);
            (0..200)
                .map(|_| mutator.mutate(&inputs))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let mut different = all(1);
        different.sort();
        different.dedup();
        assert!(different.len() > 150, "{}", different.len());
    }

    #[test]
    fn an_empty_input_can_be_mutated() {
        let mut mutator = Mutator::new(1);
        let none: [&[u8]; 0] = [];
        assert!((0..100).any(|_| !mutator.mutate(&none).is_empty()));
    }
}
