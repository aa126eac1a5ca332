//! Memory that doesn't grow.

use std::fmt;

use kvmprof_tests::Guest;

/// Bytes by which memory may differ between looks: buffers that a client is given and that the allocator keeps.
const NOISE: u64 = 8 << 20;
/// Looks from which on a slope can be told.
const ENOUGH: usize = 8;

/// What kvmprof had after each round, in bytes.
#[derive(Default)]
pub struct Memory(Vec<u64>);

impl Memory {
    /// After a round.
    pub fn look(&mut self, guest: &Guest) {
        self.0.push(guest.resident_bytes());
    }

    /// The most of the second and of the last quarter. The first warms up.
    fn quarters(&self) -> Option<(u64, u64)> {
        let quarter = self.0.len() / 4;
        let most = |part: &[u64]| part.iter().copied().max();
        if self.0.len() < ENOUGH {
            return None;
        }
        let second = most(&self.0[quarter..2 * quarter])?;
        Some((second, most(&self.0[self.0.len() - quarter..])?))
    }

    /// It hasn't grown. After a few rounds nobody can tell.
    ///
    /// # Panics
    /// It has.
    pub fn check(&self) {
        if let Some((second, last)) = self.quarters() {
            assert!(last <= second + NOISE, "memory grows: {:?}", self.0);
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quarters() {
            Some((second, last)) => {
                let [second, last] = [second, last].map(|bytes| bytes >> 10);
                write!(
                    formatter,
                    "resident memory with the guest's: {second} KiB in the second quarter, {last} KiB in the last"
                )
            }
            None => write!(formatter, "too few rounds for a slope of memory"),
        }
    }
}
