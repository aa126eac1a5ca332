//! Pseudo-random numbers, the same at every run.

/// Marsaglia's xorshift64; its state is not 0.
pub struct Random(pub u64);

impl Random {
    /// The next number, from 0 up to below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
