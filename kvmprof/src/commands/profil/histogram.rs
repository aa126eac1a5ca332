//! The counts of a histogram, and the code for which each stands.

use kvmprof_abi::profil::{COUNT_SIZE, MAX_KEPT, WHOLE_SCALE, count_offset};

/// The scale of `cc -qp`: 8 bytes of code for each count.
pub const USUAL_SCALE: u32 = 0x4000;

/// How a histogram divides code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The first address.
    pub offset: u64,
    /// Bytes of counts for a byte of code, as a fraction of 65,536.
    pub scale: u32,
    /// Bytes of the counts.
    pub size: u64,
    /// Whether to round to the next count, as AIX does; Solaris rounds to the previous one.
    pub aix: bool,
}

/// Code in which ticks were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The first address.
    pub begin: u64,
    /// The last address.
    pub last: u64,
    /// The number of ticks.
    pub count: u64,
}

impl Layout {
    /// The layout for the code from `begin` to before `end`, with this scale. Without a scale, it has 8 bytes of code
    /// for each count, or 16, 32 and so on, as few as memory allows. `None` if it needs more memory than is allowed.
    pub fn of_region(begin: u64, end: u64, scale: Option<u32>, aix: bool) -> Option<Self> {
        let coarser = |finer: &u32| {
            let coarser = finer / 2;
            (scale.is_none() && coarser > WHOLE_SCALE).then_some(coarser)
        };
        let mut scales = std::iter::successors(Some(scale.unwrap_or(USUAL_SCALE)), coarser);
        scales.find_map(|scale| {
            let layout = Self {
                offset: begin,
                scale,
                size: 0,
                aix,
            };
            let last = end.saturating_sub(begin).saturating_sub(1);
            let size = layout
                .index_of(last)
                .checked_add(1)?
                .checked_mul(COUNT_SIZE)?;
            (size <= MAX_KEPT).then_some(Self { size, ..layout })
        })
    }

    /// The number of the count for the code `delta` bytes into the region.
    fn index_of(&self, delta: u64) -> u64 {
        let byte = count_offset(delta, self.scale, self.aix);
        byte.map_or(u64::MAX, |byte| byte / COUNT_SIZE)
    }

    /// The first and the last address that count number `index` stands for.
    fn range(&self, index: u64) -> (u64, u64) {
        if self.scale == WHOLE_SCALE {
            return (self.offset, u64::MAX);
        }
        // The first byte of counts that is rounded to this count, and the first one that isn't any more.
        let byte = u128::from(index) * 2;
        let (first, behind) = match self.aix {
            true => (byte.saturating_sub(1), byte + 1),
            false => (byte, byte + 2),
        };
        let delta = |byte: u128| (byte << 16).div_ceil(u128::from(self.scale));
        let address = |delta: u128| {
            let address = u128::from(self.offset).saturating_add(delta);
            u64::try_from(address).unwrap_or(u64::MAX)
        };
        let last = delta(behind).saturating_sub(1);
        (address(delta(first)), address(last))
    }

    /// The counts that aren't 0.
    pub fn hits(&self, counts: &[u16]) -> Vec<Hit> {
        let counted = (0_u64..).zip(counts).filter(|(_, count)| **count > 0);
        let hit = |(index, count): (u64, &u16)| {
            let (begin, last) = self.range(index);
            Hit {
                begin,
                last,
                count: u64::from(*count),
            }
        };
        counted.map(hit).collect()
    }

    /// Bytes of code for each count, if all counts have the same whole number of bytes.
    pub fn bytes_per_count(&self) -> Option<u64> {
        let is_even = self.scale.is_power_of_two() && self.scale > WHOLE_SCALE;
        is_even.then(|| (COUNT_SIZE << 16) / u64::from(self.scale))
    }

    /// A description.
    pub fn describe(&self) -> String {
        let system = if self.aix { "AIX" } else { "Solaris" };
        let counts = self.size / COUNT_SIZE;
        if self.scale == WHOLE_SCALE {
            return format!("all code from {:#x} in one count ({system})", self.offset);
        }
        let (_, last) = self.range(counts.saturating_sub(1));
        let (scale, offset) = (self.scale, self.offset);
        let plural = if counts == 1 { "" } else { "s" };
        let bytes = match self.bytes_per_count() {
            Some(bytes) => format!("{bytes} bytes"),
            None => format!("about {:.1} bytes", f64::from(1 << 17) / f64::from(scale)),
        };
        format!(
            "{counts} count{plural} of {bytes} from {offset:#x} to {last:#x}, scale {scale:#x} ({system})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(scale: u32, aix: bool) -> Layout {
        Layout {
            offset: 0x40_0000,
            scale,
            size: 64,
            aix,
        }
    }

    /// The first and the last address of each count must be those that the device counts there.
    #[test]
    fn counts_map_back_to_their_code() {
        for scale in [0xffff, 0x8000, 0x7fff, 0x4000, 0x3000, 0x2000, 0x123, 4, 3] {
            for aix in [false, true] {
                let layout = layout(scale, aix);
                for index in [0, 1, 2, 3, 31, 1000] {
                    let (begin, last) = layout.range(index);
                    let (begin, last) = (begin - layout.offset, last - layout.offset);
                    assert!(begin <= last, "{layout:?} {index}");
                    for (delta, expected) in [(begin, index), (last, index), (last + 1, index + 1)]
                    {
                        let found = layout.index_of(delta);
                        assert_eq!(found, expected, "{layout:?} {index}: {delta:#x}");
                    }
                    if begin > 0 {
                        assert_eq!(layout.index_of(begin - 1) + 1, index, "{layout:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn regions_get_the_finest_scale_within_the_limit() {
        let of = |length, scale| Layout::of_region(0x1000, 0x1000 + length, scale, false);
        let small = of(0x50, None).unwrap();
        assert_eq!((small.scale, small.size), (0x4000, 20));
        // 16 MiB are 2 Mi counts of 8 bytes.
        assert_eq!(of(16 << 20, None).unwrap().scale, 0x4000);
        assert_eq!(of((16 << 20) + 1, None).unwrap().scale, 0x2000);
        assert_eq!(of((16 << 20) + 1, Some(0x4000)), None);
        assert_eq!(of(u64::MAX - 0x1000, None), None);
        assert_eq!(of(u64::MAX - 0x1000, Some(2)).unwrap().size, 2);
        // AIX rounds the last address of a region to one more count.
        let aix = Layout::of_region(0, 0x50, None, true).unwrap();
        assert_eq!(aix.size, 22);
    }

    #[test]
    fn hits_are_the_counts_that_are_not_0() {
        let hit = |begin, last, count| Hit { begin, last, count };
        assert_eq!(
            layout(0x4000, false).hits(&[0, 7, 0, 1]),
            [hit(0x40_0008, 0x40_000f, 7), hit(0x40_0018, 0x40_001f, 1)]
        );
        assert_eq!(
            layout(0x4000, true).hits(&[2, 7]),
            [hit(0x40_0000, 0x40_0003, 2), hit(0x40_0004, 0x40_000b, 7)]
        );
        assert_eq!(layout(2, false).hits(&[3]), [hit(0x40_0000, u64::MAX, 3)]);
    }
}
