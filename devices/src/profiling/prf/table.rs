//! A table of addresses and its counters.

use kvmprof_abi::prf::{EXTRA_COUNTERS, WORD_SIZE, read_size};

use super::index::Index;
use kvmprof_recording::{Mode, Sample};

/// A valid table.
#[derive(Debug)]
pub(super) struct Table {
    addresses: Vec<u64>,
    index: Index,
    /// One for each address.
    counters: Vec<u64>,
    user: u64,
    idle: u64,
}

impl Table {
    /// The table in `bytes`, little-endian, with all counters zero; `None` if an address is lower than the one before
    /// it.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let addresses: Vec<u64> = bytes
            .as_chunks::<WORD_SIZE>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        addresses.is_sorted().then(|| Self {
            index: Index::new(&addresses),
            counters: vec![0; addresses.len()],
            addresses,
            user: 0,
            idle: 0,
        })
    }

    /// Bytes of memory of a table of `addresses` addresses.
    pub(super) fn memory(addresses: usize) -> usize {
        (2 * addresses + Index::entries(addresses)) * size_of::<u64>()
    }

    /// The number of addresses.
    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Counts one sample.
    pub(super) fn count(&mut self, sample: &Sample) {
        match sample.mode {
            Mode::User => self.user += 1,
            Mode::Idle => self.idle += 1,
            Mode::Kernel | Mode::Interrupt => {
                let at = self.index.find(&self.addresses, sample.pc);
                if let Some(counter) = self.counters.get_mut(at) {
                    *counter += 1;
                }
            }
        }
    }

    /// Counts idle ticks, which have no sample.
    pub(super) fn count_idle(&mut self, ticks: u64) {
        self.idle += ticks;
    }

    /// Appends the first `limit` bytes of addresses and counters to `out`, and returns their number.
    pub(super) fn read(&self, limit: usize, out: &mut Vec<u8>) -> usize {
        let extra: [u64; EXTRA_COUNTERS] = [self.user, self.idle];
        let count = limit.min(read_size(self.len()));
        let start = out.len();
        // A word across the limit is written whole, then cut.
        out.reserve(count + WORD_SIZE);
        let words = self.addresses.iter().chain(&self.counters).chain(&extra);
        for word in words.take(count.div_ceil(WORD_SIZE)) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.truncate(start + count);
        count
    }
}
