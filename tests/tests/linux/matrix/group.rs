//! A process group whose members start and end.

use std::collections::BTreeSet;

use kvmprof_tests::linux::pcs_kind;
use kvmprof_tests::share;

use super::Run;

pub fn the_members_of_a_group_are_sampled(run: &Run) {
    let stream = run.stream("group");
    let group = run.console.number("group is ");
    assert_eq!(stream.calls.last().map(|call| call.data[0]), Some(group));
    let accounts = run.console.accounts("group");
    let members: BTreeSet<i32> = stream.samples.iter().map(|sample| sample.pid).collect();
    assert!(members.len() >= 3, "members come and go: {members:?}");
    assert!(
        members
            .iter()
            .all(|pid| (1..=accounts.last_pid).contains(pid)),
        "{members:?}"
    );
    for sample in &stream.samples {
        assert_eq!(sample.kind, pcs_kind::USER);
        assert!(
            !run.hog_one.text.contains(&sample.pc),
            "not of the group: {sample:x?}"
        );
    }
    // Only its members run this program.
    let brief = stream
        .samples
        .iter()
        .filter(|sample| run.brief.text.contains(&sample.pc));
    let brief = brief.count() as u64;
    assert!(
        share(brief, stream.samples.len() as u64) > 0.5,
        "{brief} samples of its program"
    );
    // The others are counted.
    assert!(stream.ticks(pcs_kind::MUSER, None) > 0);
    assert!(stream.ticks(pcs_kind::MKERNEL, None) > 0);
    assert_eq!(stream.ticks(pcs_kind::KERNEL, None), 0);
}
