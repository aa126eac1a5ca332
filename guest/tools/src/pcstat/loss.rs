//! Warns of ticks without samples, which distort the shares.

use kvmprof_abi::pcs::Ledger;

use super::Profile;
use super::profile::to_f64;

/// From this share of lost or stolen ticks on the shares are misleading.
const MISLEADING: f64 = 0.05;

/// A warning about lost or stolen ticks; `None` if there are few, or the stream lacks the numbers.
pub(super) fn warning(profile: &Profile) -> Option<String> {
    warning_about(&profile.pstat?.status.ledger)
}

fn warning_about(ledger: &Ledger) -> Option<String> {
    let share = |ticks: u64| to_f64(ticks) / to_f64(ledger.ticks.max(1));
    let (lost, stolen) = (share(ledger.lost), share(ledger.stolen));
    (lost + stolen >= MISLEADING).then(|| {
        format!(
            "{:.1} % of the ticks were lost and {:.1} % stolen, nearly all of them while the guest was busy. The shares \
             below are of the other ticks: idle time is less than they say, and busy code more.",
            lost * 100.0,
            stolen * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misleading_loss_gives_a_warning_and_a_small_one_does_not() {
        let ledger = |lost, stolen| Ledger {
            ticks: 1000,
            lost,
            stolen,
            ..Ledger::default()
        };
        assert_eq!(warning_about(&ledger(20, 29)), None);
        assert_eq!(warning_about(&Ledger::default()), None);
        let warning = warning_about(&ledger(520, 30)).unwrap();
        assert!(
            warning.starts_with("52.0 % of the ticks were lost and 3.0 % stolen"),
            "{warning}"
        );
        assert!(warning_about(&ledger(0, 50)).is_some());
        // Classic streams lack the numbers.
        assert_eq!(super::warning(&Profile::default()), None);
    }
}
