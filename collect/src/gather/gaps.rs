//! Ticks without a sample. They have no time of their own: it is computed from the clock's rate.

use std::collections::BTreeMap;

use kvmprof_recording::Ticks;
use kvmprof_recording::file::Account;

/// The ticks without a sample of one block, by vCPU, until the time of the last one is known.
#[derive(Debug, Default)]
pub struct Gaps(BTreeMap<u16, Account>);

impl Gaps {
    /// Adds `ticks` without their sample.
    pub fn enter(&mut self, ticks: &Ticks) {
        let ticks = Ticks {
            sample: None,
            ..*ticks
        };
        if ticks.total() > 0 {
            self.0.entry(ticks.vcpu).or_default().enter(&ticks);
        }
    }

    /// Removes and returns the ticks of this vCPU.
    pub fn take(&mut self, vcpu: u16) -> Account {
        self.0.remove(&vcpu).unwrap_or_default()
    }

    /// The ticks of each vCPU.
    pub fn into_accounts(self) -> impl Iterator<Item = Account> {
        self.0.into_values()
    }
}

/// Splits the ticks of a vCPU, of which there are `hz` per second: those of the last `time` ns stay in `gap`, and earlier ones are returned. If `hz` is 0,
/// because the clock doesn't make the ticks, all of them stay.
pub fn split_off_earlier(gap: &mut Account, hz: u32, time: u64) -> Account {
    let late = u128::from(time) * u128::from(hz) / 1_000_000_000;
    let all = u128::from(gap.ticks);
    if hz == 0 || late >= all {
        return Account::default();
    }
    let mut earlier = Account::default();
    let (mut sum, mut late_sum) = (0, 0);
    let parts = [
        (&mut gap.idle, &mut earlier.idle),
        (&mut gap.stolen, &mut earlier.stolen),
        (&mut gap.lost, &mut earlier.lost),
        (&mut gap.ungathered, &mut earlier.ungathered),
    ];
    gap.ticks = 0;
    for (part, earlier_part) in parts {
        // The order of the ticks isn't known: each kind is split in the same ratio, rounded such that the sum is exact.
        sum += u128::from(*part);
        let next = sum * late / all;
        let stays = u64::try_from(next - late_sum).unwrap_or(*part).min(*part);
        late_sum = next;
        *earlier_part = *part - stays;
        *part = stays;
        gap.ticks += stays;
        earlier.ticks += *earlier_part;
    }
    earlier
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn splitting_a_gap_keeps_its_ticks(
            parts in prop::array::uniform4(0..1000_u64),
            hz in 0..200_u32,
            time in 0..20_000_000_000_u64,
        ) {
            let [idle, stolen, lost, ungathered] = parts;
            let mut late = Account::default();
            late.enter(&Ticks { idle, stolen, lost, ungathered, ..Ticks::default() });
            let all = late;
            let early = split_off_earlier(&mut late, hz, time);
            prop_assert!(early.balances() && late.balances());
            if hz > 0 {
                let wanted = (time * u64::from(hz) / 1_000_000_000).min(all.ticks);
                prop_assert_eq!(late.ticks, wanted);
            }
            let mut sum = early;
            sum.merge(&late);
            prop_assert_eq!(sum, all);
        }
    }
}
