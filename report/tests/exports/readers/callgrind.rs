//! Reads the export with `callgrind_annotate`.

use std::collections::HashMap;
use std::process::Command;

use kvmprof_report::export::Format;

use super::{ROUNDS, exported, first, run};

#[test]
fn callgrind_annotate_reads_callgrind() {
    let (_folder, file, expected) = exported(Format::Callgrind);
    let annotate = |arguments: &[&str]| {
        let all = [&["--auto=no", "--threshold=100", "--show=Ticks"], arguments].concat();
        run(Command::new("callgrind_annotate").args(all).arg(&file))
    };
    let text = annotate(&[]);
    let mut own: HashMap<String, u64> = HashMap::new();
    for (function, _, ticks) in callgrind_rows(&text) {
        *own.entry(function).or_default() += ticks;
    }
    assert_eq!(first(own), expected);
    assert!(
        callgrind_rows(&text).contains(&(
            "copy_page_to_iter".to_owned(),
            "server-101 [kernel]".to_owned(),
            21 * ROUNDS
        )),
        "{text}"
    );
    let modes = annotate(&["--show=User,Kernel,Interrupt,Idle"]);
    let totals = modes.lines().find(|line| line.contains("PROGRAM TOTALS"));
    let totals: Vec<&str> = totals.unwrap().split_whitespace().collect();
    let of_modes = [29, 26, 3, 14].map(|ticks: u64| (ticks * ROUNDS).to_string());
    for ticks in of_modes {
        assert!(totals.contains(&ticks.as_str()), "{modes}");
    }
    let inclusive = annotate(&["--inclusive=yes"]);
    assert!(
        callgrind_rows(&inclusive).contains(&(
            "entry_SYSCALL_64".to_owned(),
            "server-101 [kernel]".to_owned(),
            21 * ROUNDS
        )),
        "{inclusive}"
    );
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
