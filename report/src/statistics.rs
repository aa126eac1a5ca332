//! Statistics of comparisons.

use puruspe::{betai, erfc, invbetai};

/// The probability that Student's t with this number of degrees of freedom, at least 1, is farther from 0 than `t` (Abramowitz and Stegun, Handbook of
/// Mathematical Functions, 26.7.1). With infinitely many it is the normal distribution.
pub fn beyond(t: f64, freedom: f64) -> f64 {
    if freedom.is_infinite() {
        return erfc(t.abs() / std::f64::consts::SQRT_2);
    }
    betai(freedom / 2.0, 0.5, freedom / (freedom + t * t)).clamp(0.0, 1.0)
}

/// The t that 5 % are [`beyond`].
pub fn quantile(freedom: f64) -> f64 {
    if freedom.is_infinite() {
        return NORMAL;
    }
    let x = invbetai(0.05, freedom / 2.0, 0.5);
    (freedom * (1.0 - x) / x).sqrt()
}

/// The standard normal distribution's 97.5 % quantile.
pub const NORMAL: f64 = 1.959_964;

/// Corrects the probabilities of many comparisons, so that with 95 % probability none that is below 0.05 is by chance (S. Holm in
/// the Scandinavian Journal of Statistics 6, 1979).
#[expect(
    clippy::cast_precision_loss,
    reason = "there are fewer functions and initcalls than 2^53"
)]
pub fn correct_for_many<'a>(probabilities: impl Iterator<Item = &'a mut f64>) {
    let mut all: Vec<&mut f64> = probabilities.collect();
    all.sort_by(|one, other| one.total_cmp(other));
    let mut least = 0.0_f64;
    for (left, p) in (1..=all.len()).rev().zip(all) {
        least = least.max(*p * left as f64).min(1.0);
        *p = least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_comparisons_are_corrected() {
        let mut p = [0.01, 0.04, 0.03];
        correct_for_many(p.iter_mut());
        for (found, expected) in p.iter().zip([0.03, 0.06, 0.06]) {
            assert!((found - expected).abs() < 1e-12, "{p:?}");
        }
        correct_for_many([].into_iter());
    }
}
