//! Tests that a machine can't run. Crates below `kvmprof-tests` have this file as a module of their tests.

use std::env;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;

/// Names the file that gets a line for each test that was not run.
const LIST: &str = "KVMPROF_TESTS_NOT_RUN";
/// The prefix of its line in the output.
pub const MARK: &str = "not run: ";

/// Says that the calling test, or a part of it, can't be run on this machine, and why. nextest knows no such result: the test
/// goes into the list that `tests/run` prints at its end.
///
/// # Panics
/// If there is no such list: the test would pass as if it had been run.
pub fn not_run(why: &str) {
    assert!(
        note(why),
        "{MARK}{why} (with {LIST}=FILE, as in tests/run, this goes into that file instead)"
    );
}

/// Adds a note about the calling test to the list. Returns whether there is a list.
pub fn note(what: &str) -> bool {
    println!("{MARK}{what}");
    let Some(list) = env::var_os(LIST) else {
        return false;
    };
    let test = thread::current();
    let name = test.name().unwrap_or("a test");
    enter(Path::new(&list), &format!("{name}: {what}\n"));
    true
}

/// Several tests may do so at the same time.
pub fn enter(list: &Path, line: &str) {
    File::options()
        .create(true)
        .append(true)
        .open(list)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("{}: {error}", list.display()));
}
