//! Tests that a machine can't run, on this host or in the lab.

#[path = "../shared/not_run.rs"]
mod on_host;

use crate::in_lab;
use on_host::MARK;

/// Says that the calling test, or a part of it, can't be run on this machine, and why. nextest knows no such result: the test
/// goes into the list that `tests/run` prints at its end.
///
/// # Panics
/// Where nobody prints such a list, since the test would pass as if it had been run.
pub fn not_run(why: &str) {
    if in_lab() {
        // The host enters it.
        println!("{MARK}{why}");
    } else {
        on_host::not_run(why);
    }
}

/// Takes over what a test that ran in the lab said there.
pub(crate) fn not_run_in_lab(output: &str) {
    for line in output.lines() {
        // libtest may have begun the line.
        if let Some((_, why)) = line.split_once(MARK) {
            not_run(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::on_host::enter;

    #[test]
    fn lines_are_added_to_the_list() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("list");
        enter(&list, "one: reason\n");
        enter(&list, "two: reason\n");
        assert_eq!(
            fs::read_to_string(&list).unwrap(),
            "one: reason\ntwo: reason\n"
        );
    }
}
