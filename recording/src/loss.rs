//! Warnings about ticks without samples, which make shares misleading.

/// The share of lost or stolen ticks from which on other shares mislead, in percent.
const MISLEADING: u64 = 5;

/// Whether too many of `ticks` were lost or stolen for the shares of the others.
pub fn misleads(ticks: u64, lost: u64, stolen: u64) -> bool {
    let gone = u128::from(lost) + u128::from(stolen);
    gone > 0 && gone * 100 >= u128::from(ticks) * u128::from(MISLEADING)
}

/// A warning about shares of the other ticks if many of `ticks` were lost or stolen; `None` if these are few. Which way the shares are wrong depends: a busy
/// vCPU that waits for a processor of the host has such ticks, and so has a halted one that wakes up late.
pub fn loss_warning(ticks: u64, lost: u64, stolen: u64) -> Option<String> {
    misleads(ticks, lost, stolen).then(|| {
        format!(
            "{}. What the guest did in them isn't known: the shares below are of the other ticks.",
            without_sample(ticks, lost, stolen)
        )
    })
}

/// How many of `ticks` were lost or stolen, as a sentence without its full stop.
#[expect(
    clippy::cast_precision_loss,
    reason = "it is shown with one digit behind the point"
)]
pub fn without_sample(ticks: u64, lost: u64, stolen: u64) -> String {
    let percent = |part: u64| part as f64 * 100.0 / ticks.max(1) as f64;
    let parts = [(stolen, "stolen by the host"), (lost, "lost")];
    let parts = parts.iter().filter(|(part, _)| *part > 0);
    let parts: Vec<String> = parts
        .map(|(part, how)| format!("{:.1} % {how}", percent(*part)))
        .collect();
    format!(
        "{:.1} % of the ticks have no sample ({})",
        percent(lost.saturating_add(stolen)),
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_misleading_loss_gives_a_warning() {
        assert_eq!(loss_warning(1000, 20, 29), None);
        assert_eq!(loss_warning(0, 0, 0), None);
        let warning = loss_warning(1000, 520, 30).unwrap();
        let begin = "55.0 % of the ticks have no sample (3.0 % stolen by the host, 52.0 % lost). ";
        assert!(warning.starts_with(begin), "{warning}");
        let warning = loss_warning(1000, 0, 690).unwrap();
        let begin = "69.0 % of the ticks have no sample (69.0 % stolen by the host). ";
        assert!(warning.starts_with(begin), "{warning}");
        assert!(misleads(1000, 0, 50) && misleads(1000, 50, 0));
        assert!(loss_warning(u64::MAX, u64::MAX, u64::MAX).is_some());
    }
}
