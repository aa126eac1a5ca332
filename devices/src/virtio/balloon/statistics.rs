//! A guest's statistics of its memory (section 5.5.6.3; kernel: `include/uapi/linux/virtio_balloon.h`).

use kvmprof_recording::status::GuestMemoryStatus;

/// Size of a statistic in bytes: a tag and a value, without padding.
const ENTRY: usize = 10;
/// How many bytes are read: more statistics than there are tags.
pub(super) const STATISTICS_MAX: usize = 64 * ENTRY;

/// Reads the statistics that a driver has written. If a tag occurs twice, the last value counts. Unknown tags are ignored.
pub(super) fn decode(bytes: &[u8]) -> GuestMemoryStatus {
    let mut statistics = GuestMemoryStatus::default();
    for entry in bytes.as_chunks::<ENTRY>().0 {
        let [tag @ .., _, _, _, _, _, _, _, _] = entry;
        let [_, _, value @ ..] = entry;
        let place = match u16::from_le_bytes(*tag) {
            0 => &mut statistics.swapped_in_bytes,
            1 => &mut statistics.swapped_out_bytes,
            2 => &mut statistics.major_faults,
            3 => &mut statistics.minor_faults,
            4 => &mut statistics.free_bytes,
            5 => &mut statistics.total_bytes,
            6 => &mut statistics.available_bytes,
            7 => &mut statistics.cached_bytes,
            _ => continue,
        };
        *place = Some(u64::from_le_bytes(*value));
    }
    statistics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_found_by_their_tags() {
        let entry = |tag: u16, value: u64| [&tag.to_le_bytes()[..], &value.to_le_bytes()].concat();
        let bytes = [entry(5, 1 << 30), entry(99, 1), entry(4, 7), entry(4, 8)].concat();
        let statistics = decode(&[&bytes[..], &[4, 0, 1]].concat());
        let expected = GuestMemoryStatus {
            total_bytes: Some(1 << 30),
            free_bytes: Some(8),
            ..GuestMemoryStatus::default()
        };
        assert_eq!(statistics, expected);
    }
}
