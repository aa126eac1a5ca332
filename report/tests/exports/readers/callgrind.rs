//! Reads the export with `callgrind_annotate`.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use kvmprof_recording::Sample;
use kvmprof_report::export::Format;

use super::{ROUNDS, exported, first, run};
use crate::exports::export;
use crate::exports::recording::{info, ticks, write};

#[test]
fn callgrind_annotate_reads_callgrind() {
    let (_folder, file, expected) = exported(Format::Callgrind);
    let annotate = |arguments: &[&str]| annotated(&file, arguments);
    let text = annotate(&[]);
    let mut own: HashMap<String, u64> = HashMap::new();
    for (function, _, ticks) in callgrind_rows(&text) {
        *own.entry(function).or_default() += ticks;
    }
    assert_eq!(first(own), expected);
    let row = |function: &str, ticks| (function.to_owned(), "[kernel]".to_owned(), ticks);
    let copying = row("copy_page_to_iter", 21 * ROUNDS);
    assert!(callgrind_rows(&text).contains(&copying), "{text}");
    let modes = annotate(&["--show=User,Kernel,Interrupt,Idle"]);
    let totals = modes.lines().find(|line| line.contains("PROGRAM TOTALS"));
    let totals: Vec<&str> = totals.unwrap().split_whitespace().collect();
    let of_modes = [29, 26, 3, 14].map(|ticks: u64| (ticks * ROUNDS).to_string());
    for ticks in of_modes {
        assert!(totals.contains(&ticks.as_str()), "{modes}");
    }
    let inclusive = annotate(&["--inclusive=yes"]);
    let entry = row("entry_SYSCALL_64", 21 * ROUNDS);
    assert!(callgrind_rows(&inclusive).contains(&entry), "{inclusive}");
}

fn annotated(file: &Path, arguments: &[&str]) -> String {
    let all = [&["--auto=no", "--threshold=100", "--show=Ticks"], arguments].concat();
    run(Command::new("callgrind_annotate").args(all).arg(file))
}

/// A function of the kernel that several processes call is one row, of no process.
#[test]
fn a_function_of_several_processes_is_one_row() {
    let mut all = ticks(1);
    let of_server = |sample: &&mut Sample| sample.pid == 101;
    let samples = all
        .iter_mut()
        .filter_map(|(ticks, _)| ticks.sample.as_mut());
    // Every second one of the server's belongs to another process.
    for sample in samples.filter(of_server).step_by(2) {
        sample.pid = 230;
    }
    let (folder, path) = write(&info(), &all);
    let file = folder.path().join("exported");
    std::fs::write(&file, export(&path, &[], Format::Callgrind)).unwrap();
    let text = annotated(&file, &[]);
    let mut rows = callgrind_rows(&text);
    rows.retain(|(function, ..)| function == "copy_page_to_iter");
    let expected = ("copy_page_to_iter".to_owned(), "[kernel]".to_owned(), 21);
    assert_eq!(rows, [expected], "{text}");
}

/// The rows of `callgrind_annotate`: function, object, ticks.
fn callgrind_rows(text: &str) -> Vec<(String, String, u64)> {
    let rows = text.lines().filter_map(|line| {
        let (ticks, rest) = line.trim_start().split_once(' ')?;
        let ticks = ticks.replace(',', "").parse().ok()?;
        // The share is in parentheses; the file is before the function, the object in brackets after it.
        let rest = rest.trim_start().strip_prefix('(')?.split_once(')')?.1;
        let (_, rest) = rest.split_once(':')?;
        let (function, object) = rest.split_once(" [")?;
        let object = object.strip_suffix(']')?;
        Some((function.to_owned(), object.to_owned(), ticks))
    });
    rows.collect()
}
