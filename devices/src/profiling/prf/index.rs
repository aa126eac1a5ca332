//! Finds an address in a long ascending array.

/// Number of addresses that one step compares: two cache lines. 65,536 addresses take four steps.
const FAN_OUT: usize = 16;

/// The upper levels of a search tree. The array itself is the lowest level; each level has every [`FAN_OUT`]th entry of
/// the one below.
///
/// Unlike buckets by an address's high bits it doesn't depend on the distribution of the addresses (a kernel's table
/// starts with address 0, far below all others), and unlike a plain binary search it reads each cache line for four
/// comparisons, not one.
#[derive(Debug)]
pub(super) struct Index {
    /// From the top, with at most [`FAN_OUT`] entries, down.
    levels: Vec<Vec<u64>>,
}

impl Index {
    /// The index of `addresses`, which must ascend.
    pub(super) fn new(addresses: &[u64]) -> Self {
        let mut levels: Vec<Vec<u64>> = Vec::new();
        let mut below = addresses;
        while below.len() > FAN_OUT {
            levels.push(below.iter().step_by(FAN_OUT).copied().collect());
            below = levels.last().map_or(&[], Vec::as_slice);
        }
        levels.reverse();
        Self { levels }
    }

    /// The number of entries of the index of `addresses` addresses.
    pub(super) fn entries(addresses: usize) -> usize {
        let mut total = 0;
        let mut below = addresses;
        while below > FAN_OUT {
            below = below.div_ceil(FAN_OUT);
            total += below;
        }
        total
    }

    /// The position in `addresses`, which must be those of [`Index::new`], of the last one at or below `address`; 0 if
    /// all are above.
    pub(super) fn find(&self, addresses: &[u64], address: u64) -> usize {
        let upper = self.levels.iter().map(Vec::as_slice);
        upper
            .chain(std::iter::once(addresses))
            .fold(0, |chunk, level| {
                let start = chunk * FAN_OUT;
                let end = level.len().min(start + FAN_OUT);
                let entries = level.get(start..end).unwrap_or_default();
                let not_above = entries.partition_point(|entry| *entry <= address);
                start + not_above.saturating_sub(1)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every size around the powers of the fan-out, addresses between, at and beyond all entries,
    /// duplicates across chunks.
    #[test]
    fn the_index_agrees_with_a_linear_search() {
        for length in [1, 3, 15, 16, 17, 31, 32, 33, 255, 256, 257, 4096, 4097] {
            for distinct in [1, 2, 5, 1 << 20] {
                let addresses: Vec<u64> =
                    (0..length).map(|entry| 10 + entry / distinct * 4).collect();
                let index = Index::new(&addresses);
                let entries: usize = index.levels.iter().map(Vec::len).sum();
                assert_eq!(entries, Index::entries(addresses.len()));
                let last = addresses[addresses.len() - 1];
                for address in (0..last + 9).chain([u64::MAX]) {
                    let expected = addresses
                        .partition_point(|entry| *entry <= address)
                        .saturating_sub(1);
                    assert_eq!(index.find(&addresses, address), expected);
                }
            }
        }
    }

    #[test]
    fn the_spread_of_addresses_does_not_matter() {
        let mut addresses: Vec<u64> = (0..70_000)
            .map(|n| 0xffff_ffff_8100_0000 + n * 0x31)
            .collect();
        addresses[0] = 0;
        addresses[69_999] = u64::MAX;
        let index = Index::new(&addresses);
        for (at, address) in addresses.iter().enumerate() {
            assert_eq!(index.find(&addresses, *address), at);
        }
        assert_eq!(index.find(&addresses, 0x1000), 0);
        assert_eq!(index.find(&addresses, u64::MAX - 1), 69_998);
    }
}
