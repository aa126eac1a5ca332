//! Ticks that left no sample, and what they make of the shares.

use kvmprof_abi::pcs::Ledger;

use super::Profile;
use super::profile::to_f64;

/// The share of ticks without a sample from which on the shares of the others mislead.
const MISLEADING: f64 = 0.05;

/// What a reader of the shares has to know of the ticks that were lost or stolen; `None` if these are few, or the
/// stream doesn't tell.
pub(super) fn warning(profile: &Profile) -> Option<String> {
    of_ledger(&profile.pstat?.status.ledger)
}

fn of_ledger(ledger: &Ledger) -> Option<String> {
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
    fn a_loss_that_misleads_is_told_and_a_small_one_is_not() {
        let ledger = |lost, stolen| Ledger {
            ticks: 1000,
            lost,
            stolen,
            ..Ledger::default()
        };
        assert_eq!(of_ledger(&ledger(20, 29)), None);
        assert_eq!(of_ledger(&Ledger::default()), None);
        let warning = of_ledger(&ledger(520, 30)).unwrap();
        assert!(
            warning.starts_with("52.0 % of the ticks were lost and 3.0 % stolen"),
            "{warning}"
        );
        assert!(of_ledger(&ledger(0, 50)).is_some());
        // Classic streams don't tell.
        assert_eq!(super::warning(&Profile::default()), None);
    }
}
