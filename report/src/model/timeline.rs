//! The page's bins of time.

use kvmprof_recording::file::RecordingInfo;
use kvmprof_recording::least_common_multiple;

use super::Selection;

/// Maximum number of bins.
pub const BINS: usize = 480;
/// Minimum width of a bin, in ns; it is doubled until the whole time fits.
const LEAST_WIDTH: u64 = 1_000_000;
/// Minimum number of a vCPU's ticks in a bin: fewer would look like noise.
const LEAST_TICKS: u64 = 5;

/// Bins of equal width, from the start of the selected time on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bins {
    /// The start of the first bin, in ns of CLOCK_MONOTONIC. Earlier ticks are in it, too.
    start: u64,
    /// The width of a bin, in ns: whole milliseconds.
    width: u64,
    /// The time of the last tick, in ns after `start`.
    length: u64,
}

impl Bins {
    /// Bins for `selection` of the recording with properties `info`.
    pub fn new(info: &RecordingInfo, selection: &Selection) -> Self {
        let begin = selection.time.begin.unwrap_or_default();
        let begin = u64::try_from(begin.as_nanos()).unwrap_or(u64::MAX);
        let width = (LEAST_TICKS * 1_000_000_000).checked_div(info.hz.into());
        let width = width.unwrap_or_default().div_ceil(LEAST_WIDTH).max(1);
        Self {
            start: info.began_monotonic_ns.saturating_add(begin),
            width: width.saturating_mul(LEAST_WIDTH),
            length: 0,
        }
    }

    /// The bin of `time`, in ns of CLOCK_MONOTONIC.
    pub fn bin_of(&self, time: u64) -> usize {
        let bin = time.saturating_sub(self.start) / self.width.max(1);
        usize::try_from(bin).unwrap_or(usize::MAX)
    }

    /// The end of a bin, in ns of CLOCK_MONOTONIC.
    pub fn end_of(&self, bin: usize) -> u64 {
        let bins = (bin as u64).saturating_add(1);
        self.start.saturating_add(bins.saturating_mul(self.width))
    }

    /// How often pairs of bins have to be merged until `time` is in one of the [`BINS`].
    pub fn doublings_for(&mut self, time: u64) -> u32 {
        self.length = self.length.max(time.saturating_sub(self.start));
        let mut doublings = 0;
        while self.bin_of(time) >= BINS {
            self.widen(2);
            doublings += 1;
        }
        doublings
    }

    /// Merges this number of bins into one.
    pub fn widen(&mut self, bins: u64) {
        self.width = self.width.saturating_mul(bins);
    }

    /// Bins for `all` recordings together. The width is a multiple of each recording's.
    pub fn common<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut common = Self::default();
        for bins in all {
            if common.width == 0 {
                common = *bins;
            } else {
                common.width = least_common_multiple(common.width, bins.width);
                common.length = common.length.max(bins.length);
            }
        }
        common
    }

    /// The number of bins up to the last tick, at least 1.
    pub fn used(&self) -> usize {
        let last = self.length / self.width.max(1);
        usize::try_from(last).map_or(BINS, |last| last.saturating_add(1).min(BINS))
    }

    /// The width of a bin, in ns.
    pub fn width(&self) -> u64 {
        self.width
    }

    /// The time of the last tick, in ns after the first bin's begin.
    pub fn length(&self) -> u64 {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bins(hz: u32) -> Bins {
        let info = RecordingInfo {
            began_monotonic_ns: 1_000_000_000,
            hz,
            ..RecordingInfo::default()
        };
        Bins::new(&info, &Selection::default())
    }

    #[test]
    fn bins_are_whole_milliseconds_and_widen_until_all_time_fits() {
        assert_eq!(bins(0).width(), 1_000_000);
        assert_eq!(bins(997).width(), 6_000_000);
        let mut bins = bins(100);
        assert_eq!(bins.width(), 50_000_000);
        assert_eq!(bins.bin_of(0), 0);
        assert_eq!(bins.bin_of(1_050_000_000), 1);
        assert_eq!(bins.end_of(1), 1_100_000_000);
        assert_eq!(bins.doublings_for(61_000_000_000), 2);
        assert_eq!((bins.width(), bins.used()), (200_000_000, 301));
    }

    #[test]
    fn bins_of_recordings_fit_into_common_ones() {
        let (mut one, mut other) = (bins(100), bins(997));
        one.doublings_for(1_000_000_000 + 30_000_000_000);
        other.doublings_for(1_000_000_000 + 2_000_000_000);
        let common = Bins::common([&one, &other].into_iter());
        assert_eq!((one.width(), other.width()), (100_000_000, 6_000_000));
        assert_eq!(common.width(), 300_000_000);
        assert_eq!((common.length(), common.used()), (30_000_000_000, 101));
    }

    #[test]
    fn absurd_times_cause_no_panic() {
        let mut bins = bins(1);
        bins.doublings_for(u64::MAX);
        assert!(bins.bin_of(u64::MAX) < BINS && bins.used() <= BINS);
        assert_eq!(bins.end_of(usize::MAX), u64::MAX);
    }
}
