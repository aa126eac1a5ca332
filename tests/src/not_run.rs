//! Notes tests that a machine can't run, on this host or in the lab.

#[path = "../shared/not_run.rs"]
mod on_host;

use crate::in_lab;
use on_host::MARK;
pub(crate) use on_host::note;

/// Reports that this machine can't run the calling test, or a part of it, and why. nextest knows no such result, so the test goes into the
/// list that `tests/run` prints at its end.
///
/// # Panics
/// If there is no such list, because the test would pass as if it had been run.
pub fn not_run(why: &str) {
    if in_lab() {
        // The host adds it to the list.
        println!("{MARK}{why}");
    } else {
        on_host::not_run(why);
    }
}

/// Adds the reports of a test that ran in the lab.
pub(crate) fn not_run_in_lab(output: &str) {
    for line in output.lines() {
        // The line may begin with output of libtest.
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
