//! Means of several runs, and whether two of them differ by more than chance.

use crate::statistics::{beyond, quantile};

/// A time that was measured in several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean of the runs, in ns.
    pub mean_ns: f64,
    /// Its 95 % confidence interval by Student's t, in ns; `None` for a single run.
    pub interval_ns: Option<(f64, f64)>,
    /// That of the runs, and of what the clock's ticks can hide.
    variance: f64,
    runs: f64,
}

impl Estimate {
    /// The estimate from the times of at least one run, measured by ticks that are `tick` apart, all in ns.
    ///
    /// A time of f ticks more than a whole number is measured as one tick more in f of all runs: the variance of that is f (1 - f) ticks², at most a
    /// quarter. A few runs may show none of it, as all of them have the same number of ticks; so it is added to theirs.
    #[expect(
        clippy::cast_precision_loss,
        reason = "times of a boot are far below 2^53 ns"
    )]
    pub fn new(times_ns: &[u64], tick_ns: u64) -> Self {
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
        let variance = squares / (runs - 1.0) + (tick_ns as f64 / 2.0).powi(2);
        let half = quantile(runs - 1.0) * (variance / runs).sqrt();
        Self {
            mean_ns: mean,
            interval_ns: Some(((mean - half).max(0.0), mean + half)),
            variance,
            runs,
        }
    }
}

/// The change from one time to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The time after minus the time before, in ns.
    pub change_ns: f64,
    /// The probability of such a difference, or a larger one, by chance alone (two-sided); `None` unless both are of two runs at least. It is the
    /// larger one of Welch's and of Student's t-test: with few runs on one side, which may be equal by chance, Welch's is too low.
    pub p: Option<f64>,
}

impl Comparison {
    /// The change from `before` to `after`.
    pub fn new(before: &Estimate, after: &Estimate) -> Self {
        let change_ns = after.mean_ns - before.mean_ns;
        let is_known = before.runs >= 2.0 && after.runs >= 2.0;
        Self {
            change_ns,
            p: is_known.then(|| probability([before, after], change_ns)),
        }
    }
}

/// The probability of this change by chance, where both have two runs at least.
fn probability(both: [&Estimate; 2], change: f64) -> f64 {
    if change == 0.0 {
        return 1.0;
    }
    let [one, other] = both.map(|estimate| (estimate.variance, estimate.runs));
    let p = |square: f64, freedom: f64| beyond(change / square.sqrt(), freedom);
    let freedom = one.1 + other.1 - 2.0;
    let common = (one.0 * (one.1 - 1.0) + other.0 * (other.1 - 1.0)) / freedom;
    let student = common * (1.0 / one.1 + 1.0 / other.1);
    let (own, others) = (one.0 / one.1, other.0 / other.1);
    let welch = own + others;
    if student == 0.0 || welch == 0.0 {
        return 0.0;
    }
    // B. L. Welch, Biometrika 34, 1947.
    let welchs = welch.powi(2) / (own.powi(2) / (one.1 - 1.0) + others.powi(2) / (other.1 - 1.0));
    p(student, freedom).max(p(welch, welchs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_run_has_no_interval() {
        let estimate = Estimate::new(&[7], 1);
        assert_eq!((estimate.mean_ns, estimate.interval_ns), (7.0, None));
        let other = Estimate::new(&[8, 9], 1);
        let comparison = Comparison::new(&estimate, &other);
        assert_eq!((comparison.change_ns, comparison.p), (1.5, None));
    }

    /// The numbers are those of R's t.test.
    #[test]
    fn intervals_and_probabilities_are_students() {
        let before = Estimate::new(&[10, 12, 14], 0);
        let (low, high) = before.interval_ns.unwrap();
        assert!((low - 7.0317).abs() < 1e-3 && (high - 16.9683).abs() < 1e-3);
        let after = Estimate::new(&[15, 18, 21], 0);
        let p = Comparison::new(&before, &after).p.unwrap();
        assert!((p - 0.0537).abs() < 1e-3, "{p}");
    }
}
