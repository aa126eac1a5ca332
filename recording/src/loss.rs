//! Warnings about ticks without samples, which make shares misleading.

/// The share of lost or stolen ticks from which on other shares mislead, in percent.
const MISLEADING: u64 = 5;

/// Whether so many of `ticks` were lost or stolen that shares of the others mislead.
pub fn misleads(ticks: u64, lost: u64, stolen: u64) -> bool {
    let gone = u128::from(lost) + u128::from(stolen);
    gone > 0 && gone * 100 >= u128::from(ticks) * u128::from(MISLEADING)
}

/// A warning about shares of the other ticks if many of `ticks` were lost or stolen; `None` if these are few.
#[expect(
    clippy::cast_precision_loss,
    reason = "it is shown with one digit behind the point"
)]
pub fn loss_warning(ticks: u64, lost: u64, stolen: u64) -> Option<String> {
    let share = |part: u64| part as f64 * 100.0 / ticks.max(1) as f64;
    misleads(ticks, lost, stolen).then(|| {
        format!(
            "{:.1} % of the ticks were lost and {:.1} % stolen, nearly all of them while the guest was busy. The shares \
             below are of the other ticks: idle time is less than they say, and busy code more.",
            share(lost),
            share(stolen)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misleading_loss_gives_a_warning_and_a_small_one_does_not() {
        assert_eq!(loss_warning(1000, 20, 29), None);
        assert_eq!(loss_warning(0, 0, 0), None);
        let warning = loss_warning(1000, 520, 30).unwrap();
        assert!(
            warning.starts_with("52.0 % of the ticks were lost and 3.0 % stolen"),
            "{warning}"
        );
        assert!(misleads(1000, 0, 50) && misleads(1000, 50, 0));
        assert!(loss_warning(u64::MAX, u64::MAX, u64::MAX).is_some());
    }
}
