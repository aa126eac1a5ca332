//! Means of several runs, and whether two of them differ by more than chance.

use puruspe::{betai, invbetai};

use crate::statistics::correct_for_many;

/// A time that was measured in several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean of the runs, in ns.
    pub mean_ns: f64,
    /// Its 95 % confidence interval by Student's t, in ns; `None` for a single run.
    pub interval_ns: Option<(f64, f64)>,
    variance: f64,
    runs: f64,
}

impl Estimate {
    /// The estimate from the times of at least one run, in ns.
    #[expect(
        clippy::cast_precision_loss,
        reason = "times of a boot are far below 2^53 ns"
    )]
    pub fn new(times_ns: &[u64]) -> Self {
        let runs = times_ns.len().max(1) as f64;
        let mean = times_ns.iter().map(|time| *time as f64).sum::<f64>() / runs;
        let squares = times_ns.iter().map(|time| (*time as f64 - mean).powi(2));
        let squares: f64 = squares.sum();
        if runs < 2.0 {
            return Self {
                mean_ns: mean,
                interval_ns: None,
                variance: 0.0,
                runs,
            };
        }
        let variance = squares / (runs - 1.0);
        let half = quantile(runs - 1.0) * (variance / runs).sqrt();
        Self {
            mean_ns: mean,
            interval_ns: Some(((mean - half).max(0.0), mean + half)),
            variance,
            runs,
        }
    }
}

/// The probability that Student's t with this number of degrees of freedom is farther from 0 than `t` (Abramowitz and Stegun, Handbook of
/// Mathematical Functions, 26.7.1).
fn beyond(t: f64, freedom: f64) -> f64 {
    betai(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// The t that 5 % are [`beyond`].
fn quantile(freedom: f64) -> f64 {
    let x = invbetai(0.05, freedom / 2.0, 0.5);
    (freedom * (1.0 - x) / x).sqrt()
}

/// The change from one time to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The time after minus the time before, in ns.
    pub change_ns: f64,
    /// The probability of such a difference, or a larger one, by chance alone (Welch's t-test, two-sided); `None` unless both are of two runs
    /// at least.
    pub p: Option<f64>,
}

impl Comparison {
    /// The change from `before` to `after`.
    pub fn new(before: &Estimate, after: &Estimate) -> Self {
        let change_ns = after.mean_ns - before.mean_ns;
        Self {
            change_ns,
            p: welch(before, after),
        }
    }
}

/// The degrees of freedom of Welch's t-test (B. L. Welch, Biometrika 34, 1947).
fn welch(before: &Estimate, after: &Estimate) -> Option<f64> {
    if before.runs < 2.0 || after.runs < 2.0 {
        return None;
    }
    let [one, other] = [before, after].map(|estimate| estimate.variance / estimate.runs);
    let change = after.mean_ns - before.mean_ns;
    if one + other == 0.0 {
        return Some(if change == 0.0 { 1.0 } else { 0.0 });
    }
    let t = change / (one + other).sqrt();
    let freedom = (one + other).powi(2)
        / (one.powi(2) / (before.runs - 1.0) + other.powi(2) / (after.runs - 1.0));
    Some(beyond(t, freedom).clamp(0.0, 1.0))
}

/// Corrects `p` of many comparisons, as [`correct_for_many`] says.
pub(super) fn correct(comparisons: &mut [Comparison]) {
    let mut known: Vec<&mut f64> = comparisons
        .iter_mut()
        .filter_map(|one| one.p.as_mut())
        .collect();
    let mut corrected: Vec<f64> = known.iter().map(|p| **p).collect();
    correct_for_many(&mut corrected);
    for (p, corrected) in known.iter_mut().zip(corrected) {
        **p = corrected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_run_has_no_interval() {
        let estimate = Estimate::new(&[7]);
        assert_eq!((estimate.mean_ns, estimate.interval_ns), (7.0, None));
        let other = Estimate::new(&[8, 9]);
        let comparison = Comparison::new(&estimate, &other);
        assert_eq!((comparison.change_ns, comparison.p), (1.5, None));
    }

    /// The numbers are those of R's t.test.
    #[test]
    fn intervals_and_probabilities_are_students() {
        let before = Estimate::new(&[10, 12, 14]);
        let (low, high) = before.interval_ns.unwrap();
        assert!((low - 7.0317).abs() < 1e-3 && (high - 16.9683).abs() < 1e-3);
        let after = Estimate::new(&[15, 18, 21]);
        let p = Comparison::new(&before, &after).p.unwrap();
        assert!((p - 0.0537).abs() < 1e-3, "{p}");
    }

    #[test]
    fn many_comparisons_are_corrected() {
        let mut comparisons = [0.01, 0.04, 0.03].map(|p| Comparison {
            change_ns: 1.0,
            p: Some(p),
        });
        correct(&mut comparisons);
        let corrected = comparisons.map(|comparison| comparison.p.unwrap());
        for (found, expected) in corrected.iter().zip([0.03, 0.06, 0.06]) {
            assert!((found - expected).abs() < 1e-12, "{corrected:?}");
        }
    }
}
