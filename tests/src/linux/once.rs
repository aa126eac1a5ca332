//! Scenarios whose results several tests check.
//!
//! A boot takes long, and each check is a test of its own, in a process of its own. So the first test of a run that needs a scenario runs
//! it. The others wait for it and check its results, in a folder beside the tests' programs. A test that is tried again checks another
//! boot: all second tries check the second boot, and so on.

use std::env;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::Finished;

/// Results of earlier runs are removed after this time.
const KEPT: Duration = Duration::from_secs(24 * 3600);
const TURN_POLL: Duration = Duration::from_millis(200);

/// The results of `run`, which is called once for all tests of this run that ask for `name`.
///
/// # Panics
/// If `run` panics, here or in the test that called it.
pub fn once(name: &str, run: impl FnOnce() -> Finished) -> Finished {
    let attempt = env::var("NEXTEST_ATTEMPT").unwrap_or_else(|_| "1".to_owned());
    once_in(&folder_of_this_run().join(format!("{name}-{attempt}")), run)
}

fn once_in(folder: &Path, run: impl FnOnce() -> Finished) -> Finished {
    fs::create_dir_all(folder).expect("a folder for a scenario");
    let (out, failure) = (folder.join("out"), folder.join("failure"));
    // The lock is released with the descriptor, also if this process is killed.
    let lock = File::create(folder.join("lock")).expect("a lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    if let Ok(reason) = fs::read_to_string(&failure) {
        panic!("the scenario has failed for another test already: {reason}");
    }
    if !out.is_dir() {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(finished) => finished.move_to(&out),
            Err(panic) => {
                let reason = message(panic.as_ref());
                fs::write(&failure, reason).expect("a note of the failure");
                resume_unwind(panic);
            }
        }
    }
    Finished::of(out)
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("see that test's output")
}

/// Waits until another emulated machine can run: this host runs one for each of its processors at a time, however many tests wait for them.
/// Dropping the result ends the machine's turn.
///
/// # Panics
/// If the file of a turn can't be written.
pub fn turn() -> File {
    let folder = scenarios();
    fs::create_dir_all(&folder).expect("a folder for scenarios");
    let turns = thread::available_parallelism().map_or(1, usize::from);
    loop {
        for turn in 0..turns {
            let file = File::create(folder.join(format!("turn-{turn}"))).expect("a lock file");
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return file;
            }
        }
        thread::sleep(TURN_POLL);
    }
}

/// The folder for this run of the tests. Without nextest, all tests of a program run in one process.
fn folder_of_this_run() -> PathBuf {
    let runs = scenarios();
    let run = env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| format!("process-{}", process::id()));
    let folder = runs.join(run);
    if !folder.is_dir() {
        remove_old(&runs);
    }
    folder
}

/// The folder of the scenarios of all runs, beside the tests' programs.
fn scenarios() -> PathBuf {
    let test = env::current_exe().expect("this program's path");
    // PROFILE/deps/test-0123456789abcdef
    let profile = test.ancestors().nth(2).expect("a folder of programs");
    profile.join("scenarios")
}

fn remove_old(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        let age = changed
            .ok()
            .and_then(|time| SystemTime::now().duration_since(time).ok());
        if entry.path().is_dir() && age.is_some_and(|age| age > KEPT) {
            // Another run may be removing the folder, too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn left(text: &str) -> Finished {
        let out = tempfile::tempdir().unwrap();
        fs::write(out.path().join("text"), text).unwrap();
        Finished::of_scenario(out)
    }

    #[test]
    fn a_scenario_runs_once_for_all_tests() {
        let folder = tempfile::tempdir().unwrap();
        let runs = AtomicU32::new(0);
        let ask = || {
            once_in(folder.path(), || {
                runs.fetch_add(1, Ordering::Relaxed);
                left("left")
            })
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(ask().text("text"), "left"));
            }
        });
        assert_eq!(ask().text("text"), "left");
        assert_eq!(runs.into_inner(), 1);
    }

    #[test]
    fn a_failure_fails_all_tests_of_a_scenario() {
        let folder = tempfile::tempdir().unwrap();
        let fail = |run: fn() -> Finished| {
            let panic = catch_unwind(|| once_in(folder.path(), run)).unwrap_err();
            message(panic.as_ref()).to_owned()
        };
        assert_eq!(fail(|| panic!("no boot today")), "no boot today");
        assert_eq!(
            fail(|| left("left")),
            "the scenario has failed for another test already: no boot today"
        );
    }
}
