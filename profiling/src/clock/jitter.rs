//! Phase jitter: where within its period a tick falls.

/// A small generator (splitmix64): statistical use only, one addition and three shifts a number.
#[derive(Clone, Copy, Debug)]
pub struct Jitter {
    state: u64,
}

impl Jitter {
    /// A generator whose numbers depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A number from 0 to `bound` - 1, near enough evenly spread; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        mixed.checked_rem(bound).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_in_bounds_and_reaches_all_of_them() {
        let mut jitter = Jitter::new(7);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[usize::try_from(jitter.below(10)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1_200).contains(&count)));
        assert_eq!(jitter.below(0), 0);
    }
}
