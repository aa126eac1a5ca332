//! The collector's metrics of exits, beside `kvmprof exits` of the same time.

use std::collections::BTreeMap;

use kvmprof_tests::linux::Finished;

use super::by_kvmprof;

/// The vCPUs of the guest: each is in an exit when it stands still, which only what has counted before knows the begin of.
const VCPUS: u64 = 1;
/// Exits of the time, at least.
const EXITS: u64 = 100;

/// The counts by reason on a page of metrics.
fn by_collector(run: &Finished, page: &str) -> BTreeMap<String, u64> {
    let page = run.text(page);
    let lines = page.lines().filter_map(|line| {
        let labels = line.strip_prefix("kvmprof_guest_exits_total{")?;
        let (labels, count) = labels.rsplit_once("} ")?;
        let (_, reason) = labels.split_once("reason=\"")?;
        let reason = reason.split('"').next()?.to_owned();
        Some((reason, count.parse().unwrap()))
    });
    lines.collect()
}

pub fn metrics_have_the_exits_that_are_counted_beside_them(run: &Finished) {
    let counted = by_kvmprof(&run.json("metered.json"));
    let [begin, end] = ["metrics.begin", "metrics.end"].map(|page| by_collector(run, page));
    println!("{counted:?}; {begin:?}; {end:?}");
    let mut more = 0;
    for (reason, count) in &end {
        let since = count - begin.get(reason).unwrap_or(&0);
        let beside = counted.get(reason).map_or(0, |(count, _)| *count);
        assert!(since >= beside, "{reason}: {since}, {beside} beside");
        more += since - beside;
    }
    assert!(
        counted.keys().all(|reason| end.contains_key(reason)),
        "{end:?}"
    );
    assert!(more <= VCPUS, "{more}");
    let all: u64 = counted.values().map(|(count, _)| count).sum();
    assert!(all >= EXITS && counted.len() >= 3, "{counted:?}");
}
