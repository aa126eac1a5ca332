//! Tests that a machine can't run.

use std::env;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;

use crate::in_lab;

/// Names the file that gets a line for each test that was not run.
const LIST: &str = "KVMPROF_TESTS_NOT_RUN";
/// How the lab tells this machine of one.
const MARK: &str = "not run: ";

/// Says that the calling test, or a part of it, can't be run on this machine, and why. nextest knows no such result: the test
/// goes into the list that `tests/run` prints at its end.
///
/// # Panics
/// Where nobody prints such a list, since the test would pass as if it had been run.
pub fn not_run(why: &str) {
    println!("{MARK}{why}");
    if in_lab() {
        return;
    }
    let Some(list) = env::var_os(LIST) else {
        panic!("{MARK}{why} (with {LIST}=FILE, as in tests/run, this goes into that file instead)");
    };
    let test = thread::current();
    let name = test.name().unwrap_or("a test");
    enter(Path::new(&list), &format!("{name}: {why}\n"));
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

/// Several tests may do so at the same time.
fn enter(list: &Path, line: &str) {
    File::options()
        .create(true)
        .append(true)
        .open(list)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("{}: {error}", list.display()));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
