//! Shares of samples with their confidence intervals.

use crate::statistics::NORMAL;

/// A share of all samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The share, 0 to 1.
    pub value: f64,
    /// The lower end of its 95 % confidence interval (Wilson's score interval).
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Share {
    /// `part` of `whole` samples. If `whole` is 0, the interval is 0 to 1. It is that of samples that are independent of each other: of a function that
    /// runs in long stretches it is too narrow.
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of samples are far below 2^53"
    )]
    pub fn new(part: u64, whole: u64) -> Self {
        Self::within(part as f64, whole as f64, NORMAL)
    }

    /// The same for this many independent samples, which need not be whole numbers; the interval has `z` standard errors instead of 95 %.
    pub(crate) fn within(part: f64, whole: f64, z: f64) -> Self {
        if whole <= 0.0 {
            return Self {
                value: 0.0,
                low: 0.0,
                high: 1.0,
            };
        }
        let (n, p) = (whole, part / whole);
        let scale = 1.0 + z * z / n;
        let middle = (p + z * z / (2.0 * n)) / scale;
        let half = z / scale * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
        Self {
            value: p,
            low: (middle - half).max(0.0),
            high: (middle + half).min(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_the_share_and_narrow_down() {
        // The example of 10 in 100: 5.52 % to 17.44 %.
        let share = Share::new(10, 100);
        assert!((share.low - 0.0552).abs() < 1e-4, "{share:?}");
        assert!((share.high - 0.1744).abs() < 1e-4, "{share:?}");
        let better = Share::new(1000, 10_000);
        assert!(better.low > share.low && better.high < share.high);
        for (part, whole) in [(0, 7), (7, 7), (0, 0)] {
            let share = Share::new(part, whole);
            assert!(share.low <= share.value && share.value <= share.high);
            assert!(share.low >= 0.0 && share.high <= 1.0);
        }
    }
}
