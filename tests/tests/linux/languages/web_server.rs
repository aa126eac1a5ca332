//! A web server in Python under load: each step of each stack is a call that Python itself has noted.

use std::collections::BTreeSet;

use kvmprof_lab::debian_12_package;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, once, with_libraries};

use super::{LIBRARIES, stacks_of};

/// Samples with functions of Python, at least.
const SAMPLES: u64 = 10_000;
/// The profile function, which any function seems to call.
const NOTE: &str = "note (server.py:";

fn run() -> Finished {
    once("web-server", || {
        let mut builder = guest_builder(include_str!("server-init.sh"), &[]).contents(
            "/server.py",
            0o644,
            include_str!("server.py"),
        );
        for (package, place) in [
            ("python3.11-minimal", "usr/bin/python3.11"),
            ("libpython3.11-minimal", "usr/lib/python3.11"),
            ("libpython3.11-stdlib", "usr/lib/python3.11"),
        ] {
            let package = debian_12_package(package).unwrap();
            builder = builder.add(package.join(place), &format!("/{place}"));
        }
        let more = [("libc6", "libutil.so.1"), ("libexpat1", "libexpat.so.1")];
        let libraries = [&LIBRARIES[..], &more].concat();
        let guest = with_libraries(builder, debian_12_package, &libraries);
        Scenario::new()
            .memory(2048)
            .unpacked_kernel("vmlinuz", &debian("6.12"))
            .file("guest.cpio", guest.build().unwrap())
            .run(include_str!("server-driver.sh"))
    })
}

/// Frames of Python have the line at which their function begins.
fn is_of_python(frame: &str) -> bool {
    let place = frame
        .strip_suffix(')')
        .and_then(|frame| frame.rsplit_once(':'));
    place.is_some_and(|(_, line)| line.parse::<u32>().is_ok())
}

#[test]
fn every_step_of_a_web_servers_stacks_is_a_call_that_it_made() {
    let run = run();
    let console = run.console("server");
    let text = console.text();
    let calls = text.lines().filter_map(|line| line.strip_prefix("call\t"));
    let calls: BTreeSet<(&str, &str)> = calls
        .filter_map(|line| line.trim_end().split_once('\t'))
        .collect();
    assert!(calls.len() > 100, "{calls:?}");
    let (mut samples, mut steps) = (0, BTreeSet::new());
    for (stack, count) in stacks_of(&run.path("server.kvmprof"), "python3.11") {
        let functions: Vec<&str> = stack
            .iter()
            .map(String::as_str)
            .filter(|frame| is_of_python(frame))
            .collect();
        // One whose name couldn't be read stands between two others, and a cut stack has no outermost one.
        let is_whole = stack
            .iter()
            .all(|frame| frame != super::CUT_SHORT && !frame.starts_with("python:0x"));
        if functions.is_empty() || !is_whole {
            continue;
        }
        samples += count;
        let callers = ["-"].into_iter().chain(functions.iter().copied());
        steps.extend(
            callers
                .map(str::to_owned)
                .zip(functions.iter().map(|name| (*name).to_owned())),
        );
    }
    let is_wrong = |(caller, callee): &&(String, String)| {
        !callee.starts_with(NOTE) && !calls.contains(&(caller.as_str(), callee.as_str()))
    };
    let wrong: Vec<_> = steps.iter().filter(is_wrong).collect();
    println!(
        "{samples} samples, {} different steps of {} calls",
        steps.len(),
        calls.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(
        samples >= SAMPLES && steps.len() > 50,
        "{samples}, {steps:?}"
    );
}
