//! Reads the export with perf.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use kvmprof_report::export::{Format, Source};
use tempfile::TempDir;

use super::{PERIOD, ROUNDS, expected, first, run};
use crate::exports::recording::{info, recording, ticks, write};

/// A recording for perf in a folder, and the expected functions.
pub(super) fn exported() -> (TempDir, Vec<(String, u64)>) {
    let (folder, path) = recording(ROUNDS);
    let source = Source::open(&path, &[]).unwrap();
    let file = folder.path().join("perf.data");
    Format::PerfData.write_file(&source, &file).unwrap();
    (folder, expected(&path))
}

/// Runs perf without a pager, and without settings of the tester.
fn run_perf(folder: &Path, arguments: &[&str]) -> String {
    let mut perf = Command::new("perf");
    perf.args(arguments).env("PERF_CONFIG", "/dev/null");
    run(perf.env("HOME", folder).current_dir("/"))
}

/// The output of perf for the export in `folder`, with the command that the export names.
pub(super) fn perf(folder: &Path, command: &str, arguments: &[&str]) -> String {
    let reading = Format::PerfData.reading_command(&folder.join("perf.data"));
    let words: Vec<&str> = reading.split(' ').skip(2).collect();
    run_perf(folder, &[&[command], &words[..], arguments].concat())
}

/// The output of perf without symbol lookup.
fn perf_without_symbols(folder: &Path, arguments: &[&str]) -> String {
    let file = folder.join("perf.data");
    run_perf(
        folder,
        &[arguments, &["-i", file.to_str().unwrap()]].concat(),
    )
}

/// The rows of `perf report` with these columns, which begin with the period: the other columns, and ticks.
fn rows(folder: &Path, columns: &str, more: &[&str]) -> HashMap<String, u64> {
    let fields = format!("period,{columns}");
    let mut arguments = vec!["--stdio", "-g", "none", "--no-children", "-t", ";", "-F"];
    arguments.push(&fields);
    arguments.extend(more);
    let text = perf(folder, "report", &arguments);
    let mut rows = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((period, rest)) = line.split_once(';') else {
            continue;
        };
        let columns: Vec<&str> = rest.split(';').map(str::trim).collect();
        let period: u64 = period.trim().parse().unwrap();
        assert_eq!(period % PERIOD, 0, "{text}");
        *rows.entry(columns.join(";")).or_default() += period / PERIOD;
    }
    rows
}

/// The function without the `[k]` of `[k] function`.
fn names(rows: HashMap<String, u64>) -> HashMap<String, u64> {
    let mut names = HashMap::new();
    for (symbol, ticks) in rows {
        let name = symbol.split_once("] ").unwrap().1.to_owned();
        *names.entry(name).or_default() += ticks;
    }
    names
}

/// Asserts that these rows are there, with so many ticks in each round.
fn assert_rows(rows: &HashMap<String, u64>, expected: &[(&str, u64)]) {
    for (row, ticks) in expected {
        assert_eq!(rows.get(*row), Some(&(ticks * ROUNDS)), "{row}: {rows:?}");
    }
}

#[test]
fn perf_report_reads_perf_data() {
    let (folder, expected) = exported();
    let folder = folder.path();
    assert_eq!(first(names(rows(folder, "sym", &[]))), expected);

    // Kernel and user functions, addresses without a name, halted vCPUs: 4 runs of 3 ticks in each round.
    let expected = [
        ("[k] copy_page_to_iter", 21),
        ("[.] 0x402080", 17),
        ("[k] update_process_times", 3),
        ("[k] [halted]", 12),
    ];
    assert_rows(&rows(folder, "sym", &[]), &expected);
    // perf's pid column has the thread id.
    let expected = [
        ("server;101:server", 24),
        ("server worker;102:server worker", 8),
        ("batch;230:batch", 20),
        ("swapper;0:swapper", 14),
        ("[unknown];-1:[unknown]", 5),
    ];
    assert_rows(&rows(folder, "comm,pid", &[]), &expected);
    let options = "--stdio -g none --children -F overhead_children,sym";
    let totals = perf(folder, "report", &options.split(' ').collect::<Vec<_>>());
    let share = format!("{:.2}%", 21.0 / 72.0 * 100.0);
    let mut lines = totals.lines();
    let total = lines.find(|line| line.ends_with(" entry_SYSCALL_64"));
    assert!(total.unwrap().contains(&share), "{totals}");
}

/// The guest's files are objects with their build ids, for any process, and the header describes the guest.
#[test]
fn perf_lists_the_guests_files() {
    let (folder, _) = exported();
    let folder = folder.path();
    let expected = [
        ("server;[.] server+0x401300", 11),
        ("batch-230;[.] 0x402080", 17),
        ("[kernel.kallsyms];[k] copy_page_to_iter", 21),
    ];
    assert_rows(&rows(folder, "dso,sym", &[]), &expected);
    let ids = perf_without_symbols(folder, &["buildid-list"]);
    let [kernel, server] = ids.lines().collect::<Vec<_>>()[..] else {
        panic!("{ids}");
    };
    assert!(kernel.starts_with("00c0ffee") && kernel.ends_with(" [kernel.kallsyms]"));
    assert!(server.starts_with("0123456789abcdef") && server.ends_with("/server"));
    let header = perf_without_symbols(folder, &["report", "--header-only"]);
    for fact in [
        "# os release : 6.1.0-test",
        "# arch : x86_64",
        "# nrcpus online : 2",
        "# perf version : kvmprof 1.2.3",
    ] {
        assert!(header.contains(fact), "{header}");
    }
}

/// The file has the vCPUs' ticks in another order than by time.
#[test]
fn perf_has_names_from_the_first_sample() {
    let mut all = ticks(ROUNDS);
    all.sort_by_key(|(ticks, _)| ticks.vcpu);
    for (ticks, _) in all.iter_mut().filter(|(ticks, _)| ticks.vcpu == 0) {
        ticks.sample.as_mut().unwrap().time += 60_000_000_000;
    }
    let (folder, path) = write(&info(), &all);
    let source = Source::open(&path, &[]).unwrap();
    let folder = folder.path();
    let file = folder.join("perf.data");
    Format::PerfData.write_file(&source, &file).unwrap();
    assert_eq!(first(names(rows(folder, "sym", &[]))), expected(&path));
    let expected = [
        ("server;server;[.] server+0x401300", 11),
        ("server worker;[kernel.kallsyms];[k] copy_page_to_iter", 8),
    ];
    assert_rows(&rows(folder, "comm,dso,sym", &[]), &expected);
}
