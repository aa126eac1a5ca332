//! Warns of ticks without samples, which distort the shares.

use kvmprof_recording::loss_warning;

use super::Profile;

/// A warning about lost or stolen ticks; `None` if there are few, or the stream lacks the numbers.
pub(super) fn warning(profile: &Profile) -> Option<String> {
    let ledger = &profile.pstat?.status.ledger;
    loss_warning(ledger.ticks, ledger.lost, ledger.stolen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classic_streams_have_no_loss_numbers() {
        assert_eq!(warning(&Profile::default()), None);
    }
}
