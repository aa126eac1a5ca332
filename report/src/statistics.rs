//! Statistics of comparisons.

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
