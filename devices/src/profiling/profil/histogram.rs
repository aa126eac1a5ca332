//! Finds the count of a histogram that belongs to a program counter.

use kvmprof_abi::profil::{COUNT_SIZE, Range, SOLARIS_MAX_COUNT, WHOLE_SCALE, count_offset};

/// The rules of an operating system: how it rounds, and what happens to a count at its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    Solaris,
    Aix,
}

/// The effect of a tick on a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountUpdate {
    /// The count has this value now.
    To(u16),
    /// The count stays at its maximum.
    Saturated,
    /// The count doesn't change, and profiling stops.
    Stop,
}

impl System {
    /// The effect of a tick on a count with the value `count`.
    pub(super) fn increment(self, count: u16) -> CountUpdate {
        match (self, count.checked_add(1)) {
            (Self::Solaris, _) if count >= SOLARIS_MAX_COUNT => CountUpdate::Stop,
            (_, Some(more)) => CountUpdate::To(more),
            (_, None) => CountUpdate::Saturated,
        }
    }
}

/// Counts of a region of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Histogram {
    /// The address of the first count.
    pub buffer: u64,
    /// Bytes of the counts.
    pub size: u64,
    /// The region's first address.
    pub offset: u64,
    /// The last address that is counted.
    pub last: u64,
    /// Bytes of counts for a byte of code, as a fraction of 65,536.
    pub scale: u32,
}

impl Histogram {
    /// Whether `scale` turns profiling off.
    pub(super) fn is_off(scale: u32) -> bool {
        scale < WHOLE_SCALE
    }

    /// A range of AIX's second form. The scale is computed, so that the range fills its counts, if `p_scale` is -1.
    pub(super) fn from_range(range: &Range) -> Self {
        let size = u64::try_from(range.size).unwrap_or_default();
        let length = range.high.saturating_sub(range.low);
        let scale = if range.scale == u32::MAX {
            let fraction = (u128::from(size) << 16).checked_div(length.into());
            // Without a fraction, each byte of code has more than a byte of counts.
            fraction.map_or(0, |fraction| u32::try_from(fraction).unwrap_or(u32::MAX))
        } else {
            range.scale & 0xffff
        };
        Self {
            buffer: range.buffer,
            size,
            offset: range.low,
            last: range.high.saturating_sub(1),
            scale: scale.min(0xffff),
        }
    }

    /// The address of the count for `pc` by the rule of `system`. `None` if the program counter is outside the region,
    /// or its count outside the buffer.
    pub(super) fn count_of(&self, pc: u64, system: System) -> Option<u64> {
        if Self::is_off(self.scale) || pc > self.last {
            return None;
        }
        let delta = pc.checked_sub(self.offset)?;
        let byte = count_offset(delta, self.scale, system == System::Aix)?;
        let is_inside = byte.checked_add(COUNT_SIZE)? <= self.size;
        is_inside.then_some(self.buffer.wrapping_add(byte))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(scale: u32, size: u64) -> Histogram {
        Histogram {
            buffer: 0x1_0000,
            size,
            offset: 0x40_0000,
            last: u64::MAX,
            scale,
        }
    }

    /// The slot for a program counter `delta` bytes into the region.
    fn slot(delta: u64, scale: u32, size: u64, system: System) -> Option<u64> {
        let address = histogram(scale, size).count_of(0x40_0000 + delta, system)?;
        Some((address - 0x1_0000) / 2)
    }

    #[test]
    fn each_system_rounds_as_documented() {
        // delta, scale, bytes, Solaris, AIX
        for (delta, scale, size, solaris, aix) in [
            (2, 0xffff, 64, Some(0), Some(1)),
            (3, 0xffff, 64, Some(1), Some(1)),
            (5, 0xffff, 64, Some(2), Some(2)),
            (28, 0x4000, 8, Some(3), None),
            (65, 0xffff, 64, None, None),
        ] {
            let found = |system| slot(delta, scale, size, system);
            assert_eq!(found(System::Solaris), solaris, "Solaris, {delta}");
            assert_eq!(found(System::Aix), aix, "AIX, {delta}");
        }
    }

    #[test]
    fn a_scale_of_2_maps_all_code_to_the_first_count() {
        for system in [System::Solaris, System::Aix] {
            for delta in [0, 1, 0xffff, 0x10000, 1 << 40] {
                assert_eq!(slot(delta, 2, 2, system), Some(0));
            }
            assert_eq!(slot(0, 2, 1, system), None);
        }
    }

    #[test]
    fn addresses_outside_the_region_are_not_counted() {
        let region = Histogram {
            last: 0x40_000f,
            ..histogram(0xffff, 64)
        };
        for system in [System::Solaris, System::Aix] {
            assert_eq!(region.count_of(0x3f_ffff, system), None);
            assert!(region.count_of(0x40_0000, system).is_some());
            assert!(region.count_of(0x40_000f, system).is_some());
            assert_eq!(region.count_of(0x40_0010, system), None);
        }
    }

    #[test]
    fn a_scale_of_minus_one_fills_the_counts() {
        for (length, size) in [(64, 64), (64, 32), (0x10000, 100), (10, 1000), (0, 8)] {
            let range = Range {
                low: 0x1000,
                high: 0x1000 + length,
                buffer: 0,
                size,
                scale: u32::MAX,
            };
            let histogram = Histogram::from_range(&range);
            let counts = (0..length).filter_map(|at| histogram.count_of(0x1000 + at, System::Aix));
            let last = counts.max().unwrap_or_default();
            // Up to the rounding of the scale and of odd bytes.
            let filled = u64::try_from(size).unwrap().min(length);
            assert!(last + 4 >= filled, "{length} {size}: {last} of {filled}");
        }
    }

    proptest! {
        #[test]
        fn the_count_is_where_the_page_says_for_all_addresses(
            pc: u64, offset: u64, scale in 3_u32..=0xffff, size: u64, aix: bool,
        ) {
            let histogram = Histogram { buffer: 0, size, offset, last: u64::MAX, scale };
            let system = if aix { System::Aix } else { System::Solaris };
            // The formula as the page states it, in integers that can't overflow.
            let delta = i128::from(pc) - i128::from(offset);
            let scale = i128::from(scale);
            let byte = (delta >> 16) * scale + (((delta & 0xffff) * scale) >> 16);
            let byte = if aix { (byte + 1) / 2 * 2 } else { byte / 2 * 2 };
            let expected = (delta >= 0 && byte + 2 <= i128::from(size)).then_some(byte);
            let found = histogram.count_of(pc, system).map(i128::from);
            prop_assert_eq!(found, expected);
        }
    }
}
