//! Chooses where a test that needs a KVM runs.

use std::any::type_name;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kvmprof_lab::{Lab, probe_kvm};
use kvmprof_machine::has_hardware_virtualization;
use kvmprof_profiling::kernel_events::unavailable;
use kvmprof_recording::EventKind;

use crate::linux::debian;
use crate::not_run::{not_run, not_run_in_lab};
use crate::program::{EXAMPLES, example_path, gprof_for_lab, kvmprof, python_for_lab};

/// Set for the tests that run inside the lab.
const IN_LAB: &str = "KVMPROF_TESTS_IN_LAB";
/// Maximum time for which a test may be silent in the lab, which is longer than its own waits.
const LAB_QUIET_LIMIT: Duration = Duration::from_secs(900);

/// Whether this program runs in the lab.
pub fn in_lab() -> bool {
    env::var_os(IN_LAB).is_some()
}

/// Runs the body of a test on this host's KVM. Where that can't be used, runs the whole test again in the lab. Prints which. `body` must be
/// a closure in the test function itself.
///
/// # Panics
/// If the test fails there, or the lab doesn't start.
pub fn on_kvm<F: FnOnce()>(body: F) {
    run_test(&test_name(type_name::<F>()), body, Lab::new());
}

/// Like [`on_kvm`], but always in the lab, for tests that would disturb others on this host.
///
/// # Panics
/// As [`on_kvm`].
pub fn on_kvm_of_lab<F: FnOnce()>(body: F) {
    let name = test_name(type_name::<F>());
    if in_lab() {
        return run_test(&name, body, Lab::new());
    }
    println!("{name}: in the lab, because it would disturb others on this host");
    run_in_lab(&name, Lab::new());
}

/// Like [`on_kvm_of_lab`], with Debian's kernel of this series, `6.1` or `6.12`, as the lab's own, which is the host of guests.
///
/// # Panics
/// As [`on_kvm`].
pub fn on_kvm_of_lab_with<F: FnOnce()>(series: &str, body: F) {
    let name = test_name(type_name::<F>());
    if in_lab() {
        return run_test(&name, body, Lab::new());
    }
    println!("{name}: in the lab with Debian's {series}");
    run_in_lab(&name, Lab::new().kernel(debian(series)));
}

/// Like [`on_kvm`], but runs the test in the lab also if this host doesn't count one of the events `kinds`.
///
/// # Panics
/// As [`on_kvm`], and if the lab doesn't count them.
pub fn on_kvm_that_counts<F: FnOnce()>(kinds: &[EventKind], body: F) {
    let name = test_name(type_name::<F>());
    match kinds.iter().find_map(|kind| unavailable(*kind)) {
        None => run_test(&name, body, Lab::new()),
        Some(why) => {
            assert!(!in_lab(), "{name}: not in the lab: {why}");
            println!("{name}: in the lab, because on this host: {why}");
            // A kernel changes its own code when an event is opened. QEMU's translation of this fails at times if another processor runs
            // the code meanwhile, and the machine hangs.
            run_in_lab(&name, Lab::new().cpus(1));
        }
    }
}

/// Like [`on_kvm`], but runs the test in the lab also if this host's cgroup v2 lacks one of the controllers `names`. `body` gets the top
/// folder of the cgroups.
///
/// # Panics
/// As [`on_kvm`], and if the lab lacks one of them.
pub fn on_kvm_with_cgroups<F: FnOnce(&Path)>(names: &[&str], body: F) {
    let name = test_name(type_name::<F>());
    if in_lab() {
        mount_cgroups();
    }
    match cgroups(names) {
        Some(top) => run_test(&name, || body(&top), Lab::new()),
        None => {
            assert!(!in_lab(), "{name}: the lab has no such control groups");
            println!("{name}: in the lab, because this host has no cgroup v2 with {names:?}");
            run_in_lab(&name, Lab::new());
        }
    }
}

/// The mount point of cgroup v2, if it has these controllers (proc(5), `mountinfo`).
fn cgroups(names: &[&str]) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let top = PathBuf::from(line.split(' ').nth(4)?);
    let has = fs::read_to_string(top.join("cgroup.controllers")).ok()?;
    let has: Vec<&str> = has.split_whitespace().collect();
    names.iter().all(|name| has.contains(name)).then_some(top)
}

fn mount_cgroups() {
    let mut command = Command::new("mount");
    command.args(["-t", "cgroup2", "none", "/sys/fs/cgroup"]);
    assert!(command.status().unwrap().success());
}

/// Whether the host's kernel can sample guests other than Linux (`--clock kernel`), which requires that their privilege level is in its
/// memory. If it can't, notes that a part of the test isn't run.
pub fn is_kernel_clock_for_demo() -> bool {
    let is = !has_hardware_virtualization();
    if !is {
        not_run("--clock kernel: with VT-x and SVM it is for Linux guests");
    }
    is
}

/// The values of `--clock` for guests other than Linux on this host.
pub fn clocks_for_demo() -> impl Iterator<Item = &'static str> {
    let kernel = is_kernel_clock_for_demo().then_some("kernel");
    std::iter::once("thread").chain(kernel)
}

/// Like [`on_kvm`], with the host's Python in the lab too.
///
/// # Panics
/// As [`on_kvm`].
pub fn on_kvm_with_python<F: FnOnce()>(body: F) {
    let mut lab = Lab::new();
    for (from, to) in python_for_lab() {
        lab = lab.add(from, &to);
    }
    run_test(&test_name(type_name::<F>()), body, lab);
}

/// Like [`on_kvm`], with the collector in the lab too.
///
/// # Panics
/// As [`on_kvm`].
pub fn on_kvm_with_collector<F: FnOnce()>(body: F) {
    let collector = kvmprof().with_file_name("kvmprof-collect");
    let lab = Lab::new().add(collector, "/lab/kvmprof-collect");
    run_test(&test_name(type_name::<F>()), body, lab);
}

/// Like [`on_kvm`], with the host's gprof in the lab too.
///
/// # Panics
/// As [`on_kvm`].
pub fn on_kvm_with_gprof<F: FnOnce()>(body: F) {
    let mut lab = Lab::new();
    for (from, to) in gprof_for_lab() {
        lab = lab.add(from, &to);
    }
    run_test(&test_name(type_name::<F>()), body, lab);
}

fn run_test(name: &str, body: impl FnOnce(), lab: Lab) {
    match probe_kvm() {
        Ok(()) => {
            if !in_lab() {
                println!("{name}: on this host's KVM");
            }
            body();
        }
        Err(reason) => {
            assert!(!in_lab(), "{name}: the lab has no KVM: {reason}");
            println!("{name}: in the lab, because on this host: {reason}");
            run_in_lab(name, lab);
        }
    }
}

/// The test's name in libtest, from the type of its body: `crate::path::name::{{closure}}`.
fn test_name(of_type: &str) -> String {
    let path = of_type.trim_end_matches("::{{closure}}");
    path.split_once("::").map_or(path, |(_, name)| name).into()
}

fn run_in_lab(name: &str, lab: Lab) {
    let test = env::current_exe().unwrap();
    let mut lab = lab
        .add(test, "/lab/test")
        .add(kvmprof(), "/lab/kvmprof")
        .quiet_limit(LAB_QUIET_LIMIT);
    for example in EXAMPLES {
        lab = lab.add(example_path(example), &format!("/lab/{example}"));
    }
    let marked = format!("{IN_LAB}=1");
    let command = ["env", &marked, "/lab/test", "--exact", name, "--nocapture"];
    let outcome = lab.command(command).run().unwrap();
    let output = String::from_utf8_lossy(&outcome.stdout);
    let errors = String::from_utf8_lossy(&outcome.stderr);
    print!("{output}");
    eprint!("{errors}");
    not_run_in_lab(&output);
    assert_eq!(outcome.status, 0, "{name} failed in the lab");
    // With a wrong name libtest would run nothing and succeed.
    assert!(
        output.contains("1 passed"),
        "{name} is no test of {:?}",
        env::current_exe()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_by_the_type_of_their_body() {
        fn name_of<F: FnOnce()>(_: F) -> String {
            test_name(type_name::<F>())
        }
        assert_eq!(
            name_of(|| {}),
            "place::tests::tests_are_found_by_the_type_of_their_body"
        );
    }
}
