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

/// Corrects the probabilities `p` of many comparisons, so that with 95 % probability none that is below 0.05 is by chance (S. Holm in
/// the Scandinavian Journal of Statistics 6, 1979).
#[expect(
    clippy::cast_precision_loss,
    reason = "there are fewer functions and initcalls than 2^53"
)]
pub fn correct_for_many(p: &mut [f64]) {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|one, other| p[*one].total_cmp(&p[*other]));
    let mut least = 0.0_f64;
    for (rank, index) in order.into_iter().enumerate() {
        let left = (p.len() - rank) as f64;
        least = least.max(p[index] * left).min(1.0);
        p[index] = least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_comparisons_are_corrected() {
        let mut p = [0.01, 0.04, 0.03];
        correct_for_many(&mut p);
        for (found, expected) in p.iter().zip([0.03, 0.06, 0.06]) {
            assert!((found - expected).abs() < 1e-12, "{p:?}");
        }
        correct_for_many(&mut []);
    }
}
