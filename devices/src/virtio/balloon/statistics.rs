//! What a guest says of its memory (section 5.5.6.3; kernel: `include/uapi/linux/virtio_balloon.h`).

/// Bytes of a statistic: a tag and a value, without padding.
const ENTRY: usize = 10;
/// Bytes that are looked at: more statistics than there are tags.
pub(super) const STATISTICS_MAX: usize = 64 * ENTRY;

/// Statistics of a guest, as it says; what it doesn't say is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalloonStatistics {
    /// Bytes that were read from swap space.
    pub swapped_in: Option<u64>,
    /// Bytes that were written to swap space.
    pub swapped_out: Option<u64>,
    /// Page faults that needed a disk.
    pub major_faults: Option<u64>,
    /// Page faults that didn't.
    pub minor_faults: Option<u64>,
    /// Bytes of memory that nobody uses.
    pub free: Option<u64>,
    /// Bytes of memory in all.
    pub total: Option<u64>,
    /// Bytes that could be had without swapping.
    pub available: Option<u64>,
    /// Bytes of files' pages that could be given up at once.
    pub caches: Option<u64>,
}

impl BalloonStatistics {
    /// Reads what a driver has written. Of a tag that is there twice the last one counts; unknown ones are passed over.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let mut statistics = Self::default();
        for entry in bytes.as_chunks::<ENTRY>().0 {
            let [tag @ .., _, _, _, _, _, _, _, _] = entry;
            let [_, _, value @ ..] = entry;
            let place = match u16::from_le_bytes(*tag) {
                0 => &mut statistics.swapped_in,
                1 => &mut statistics.swapped_out,
                2 => &mut statistics.major_faults,
                3 => &mut statistics.minor_faults,
                4 => &mut statistics.free,
                5 => &mut statistics.total,
                6 => &mut statistics.available,
                7 => &mut statistics.caches,
                _ => continue,
            };
            *place = Some(u64::from_le_bytes(*value));
        }
        statistics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_found_by_their_tags() {
        let entry = |tag: u16, value: u64| [&tag.to_le_bytes()[..], &value.to_le_bytes()].concat();
        let bytes = [entry(5, 1 << 30), entry(99, 1), entry(4, 7), entry(4, 8)].concat();
        let statistics = BalloonStatistics::decode(&[&bytes[..], &[4, 0, 1]].concat());
        let expected = BalloonStatistics {
            total: Some(1 << 30),
            free: Some(8),
            ..BalloonStatistics::default()
        };
        assert_eq!(statistics, expected);
    }
}
