//! Web servers under load: each function of each stack is one that the language itself has noted, and so is each step in Python.

use std::collections::BTreeSet;
use std::path::PathBuf;

use kvmprof_lab::debian_12_package;
use kvmprof_tests::linux::{Finished, Scenario, debian, once};

use super::python::PYTHON_3_11;
use super::{NODE_20, Program, stacks_of};

/// Samples with functions of the language, at least.
const SAMPLES: u64 = 10_000;
/// The profile function of Python, which any function seems to call.
const NOTE: &str = "note (server.py:";

const OF_PYTHON: Program = Program {
    name: "python-server",
    files: python_files,
    file: "server.py",
    text: include_str!("server.py"),
    begin: "/usr/bin/python3.11 -S /server.py",
    ..PYTHON_3_11
};
const OF_NODE: Program = Program {
    name: "node-server",
    file: "server.js",
    text: include_str!("server.js"),
    begin: "/usr/bin/node /server.js",
    ..NODE_20
};
/// The functions of that which answer requests, each called by the one before it.
const ANSWERING: [&str; 4] = ["answer", "page", "row", "cells"];

fn python_files() -> Vec<(PathBuf, String)> {
    let packages = [
        ("python3.11-minimal", "usr/bin/python3.11"),
        ("libpython3.11-minimal", "usr/lib/python3.11"),
        ("libpython3.11-stdlib", "usr/lib/python3.11"),
    ];
    let files = packages.map(|(package, place)| {
        let package = debian_12_package(package).unwrap();
        (package.join(place), format!("/{place}"))
    });
    files.into()
}

/// Takes so many `samples` of the `server`, one of whose functions is called `function`.
fn run(server: &Program, function: &str, samples: u64) -> Finished {
    once(server.name, || {
        let driver = format!(
            "function='{function} ('\nsamples={samples}\n{}",
            include_str!("server-driver.sh")
        );
        Scenario::new()
            .memory(2048)
            .unpacked_kernel("vmlinuz", &debian("6.12"))
            .file(
                "guest.cpio",
                server.guest_with(include_str!("server-init.sh")),
            )
            .run(&driver)
    })
}

/// The functions of whole stacks, outermost first, and how often each stack was seen.
fn functions_of(run: &Finished, server: &Program) -> Vec<(Vec<String>, u64)> {
    let stacks = stacks_of(&run.path("server.kvmprof"), server.executes);
    let named = stacks.into_iter().filter_map(|(stack, count)| {
        // One whose name couldn't be read stands between two others, and a cut stack has no outermost one.
        let is_whole = stack
            .iter()
            .all(|frame| frame != super::CUT_SHORT && !is_unread(frame));
        let functions = stack.into_iter().filter(|frame| is_of_language(frame));
        let functions: Vec<String> = functions.collect();
        (is_whole && !functions.is_empty()).then_some((functions, count))
    });
    named.collect()
}

/// Frames of a language have the file, and mostly the line at which their function begins; V8's own functions have none.
fn is_of_language(frame: &str) -> bool {
    let place = frame.strip_suffix(')');
    let place = place.and_then(|frame| frame.rsplit_once(" ("));
    let is_file = |character: char| character.is_ascii_alphanumeric() || "._-:".contains(character);
    place.is_some_and(|(_, place)| place.chars().all(is_file))
}

fn is_unread(frame: &str) -> bool {
    ["python:0x", "javascript:0x"]
        .iter()
        .any(|begin| frame.starts_with(begin))
}

/// What is behind `word` in lines of the guest.
fn noted(run: &Finished, word: &str) -> BTreeSet<String> {
    let text = run.console("server").text().to_owned();
    let lines = text.lines().filter_map(|line| line.strip_prefix(word));
    lines.map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn every_step_of_a_server_in_python_is_a_call_that_it_made() {
    let run = run(&OF_PYTHON, "Handler.do_GET", 12_000);
    let calls = noted(&run, "call\t");
    assert!(calls.len() > 100, "{calls:?}");
    let (mut samples, mut steps) = (0, BTreeSet::new());
    for (functions, count) in functions_of(&run, &OF_PYTHON) {
        samples += count;
        let callers = ["-"]
            .into_iter()
            .chain(functions.iter().map(String::as_str));
        steps.extend(
            callers
                .map(str::to_owned)
                .zip(functions.iter().map(|name| (*name).to_owned())),
        );
    }
    let is_wrong = |(caller, callee): &&(String, String)| {
        !callee.starts_with(NOTE) && !calls.contains(&format!("{caller}\t{callee}"))
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

#[test]
fn every_function_of_a_server_in_javascript_was_called() {
    let run = run(&OF_NODE, "answer", 16_000);
    let called = noted(&run, "called\t");
    // The text of Node's own files often isn't in memory, and the debugger doesn't know all of it: one of both may have no line.
    let without_line = |function: &String| match function.rsplit_once(':') {
        Some((function, _)) => format!("{function})"),
        None => function.clone(),
    };
    let without_lines: BTreeSet<String> = called.iter().map(without_line).collect();
    let (mut samples, mut functions, mut answering) = (0, BTreeSet::new(), 0);
    for (stack, count) in functions_of(&run, &OF_NODE) {
        samples += count;
        let names: Vec<&str> = stack
            .iter()
            .filter(|function| function.contains(" (server.js:"))
            .filter_map(|function| function.split(' ').next())
            .collect();
        for (index, name) in names.iter().enumerate() {
            let Some(place) = ANSWERING.iter().position(|one| one == name) else {
                continue;
            };
            answering += count;
            let caller = index.checked_sub(1).map(|index| names[index]);
            let expected = place.checked_sub(1).map(|place| ANSWERING[place]);
            assert_eq!(caller, expected, "{stack:?}");
        }
        functions.extend(stack);
    }
    let is_wrong = |function: &&String| {
        let is_noted = called.contains(*function) || called.contains(&without_line(function));
        !is_noted && !without_lines.contains(*function)
    };
    let wrong: Vec<&String> = functions.iter().filter(is_wrong).collect();
    println!(
        "{samples} samples, {answering} of {ANSWERING:?}; {} functions of {} that were called",
        functions.len(),
        called.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(
        samples >= SAMPLES && functions.len() > 50 && answering > SAMPLES / 10,
        "{functions:?}"
    );
}
