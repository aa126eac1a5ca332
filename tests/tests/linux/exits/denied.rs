//! A guest whose vCPUs are always busy, one with a process of a container, and whose control group has little quota.

use kvmprof_tests::linux::Finished;
use serde_json::Value;

use super::number;

/// Its id.
const CONTAINER: &str = "0000000000000000000000000000000000000000000000000000000000000007";

/// How often and for how long the group had no quota left, in ns, until a moment.
fn of_group(run: &Finished, moment: &str) -> [u64; 2] {
    let text = run.text(&format!("throttled.{moment}"));
    ["nr_throttled ", "throttled_usec "].map(|name| {
        let number = text.lines().find_map(|line| line.strip_prefix(name));
        number.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    })
}

pub fn time_without_quota_is_that_of_the_control_group(run: &Finished) {
    let document = run.json("throttled.json");
    let [begin, end] = ["begin", "end"].map(|moment| of_group(run, moment));
    let expected = (end[0] - begin[0], (end[1] - begin[1]) * 1000);
    println!("{expected:?}");
    assert!(expected.0 > 0);
    let counted = ["throttled_count", "throttled_ns"].map(|name| number(&document, name));
    assert_eq!(counted[0], expected.0);
    // The group's file has whole microseconds.
    assert!(counted[1].abs_diff(expected.1) <= 1000, "{counted:?}");
    assert_eq!(number(&document, "host_processors"), 2);
}

pub fn exits_of_processes_have_their_containers(run: &Finished) {
    let document = run.json("throttled.json");
    let contained = run.pid("guest", "contained");
    let container = |row: &Value| row["container"].as_str().map(str::to_owned);
    let rows = document["processes"].as_array().unwrap().iter();
    let mut count = 0;
    for row in rows.clone().filter(|row| row["pid"].is_i64()) {
        if row["pid"] == contained {
            assert_eq!(container(row).as_deref(), Some(CONTAINER), "{row}");
            count += number(row, "count");
        } else {
            // Processes that began later aren't known.
            assert!(container(row).is_none_or(|name| name.is_empty()), "{row}");
        }
    }
    println!("{count} exits of the container");
    assert!(count > 0);
    let without = rows.filter(|row| container(row).as_deref() == Some(""));
    assert!(without.count() > 0);
}
