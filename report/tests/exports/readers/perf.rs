//! Reads the export with perf.

use std::collections::{BTreeMap, HashMap};
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

/// The output of perf for the export in `folder`, with the command that the export names.
pub(super) fn perf(folder: &Path, command: &str, arguments: &[&str]) -> String {
    let file = folder.join("perf.data");
    let reading = Format::PerfData.reading_command(&file).unwrap();
    let words = reading.strip_prefix("perf report ").unwrap();
    run(Command::new("perf")
        .arg(command)
        .args(words.split(' '))
        .args(arguments)
        // No pager, and no settings of the tester.
        .env("PERF_CONFIG", "/dev/null")
        .env("HOME", folder)
        .current_dir("/"))
}

/// The output of perf without symbol lookup.
fn perf_without_symbols(folder: &Path, arguments: &[&str]) -> String {
    run(Command::new("perf")
        .args(arguments)
        .arg("-i")
        .arg(folder.join("perf.data"))
        .env("PERF_CONFIG", "/dev/null")
        .env("HOME", folder)
        .current_dir("/"))
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

#[test]
fn perf_report_reads_perf_data() {
    let (folder, expected) = exported();
    let folder = folder.path();
    assert_eq!(first(names(rows(folder, "sym", &[]))), expected);

    let symbols = rows(folder, "sym", &[]);
    // Kernel and user functions, addresses without a name, halted vCPUs: 4 runs of 3 ticks in each round.
    for (symbol, ticks) in [
        ("[k] copy_page_to_iter", 21),
        ("[.] 0x402080", 17),
        ("[k] update_process_times", 3),
        ("[k] [halted]", 12),
    ] {
        assert_eq!(symbols.get(symbol), Some(&(ticks * ROUNDS)), "{symbols:?}");
    }
    // perf's pid column has the thread id.
    let threads = rows(folder, "comm,pid", &[]);
    let threads: BTreeMap<String, u64> = threads.into_iter().collect();
    for (thread, ticks) in [
        ("server;101:server", 24),
        ("server worker;102:server worker", 8),
        ("batch;230:batch", 20),
        ("swapper;0:swapper", 14),
        ("[unknown];-1:[unknown]", 5),
    ] {
        assert_eq!(threads.get(thread), Some(&(ticks * ROUNDS)), "{threads:?}");
    }
    let totals = ["--children", "-F", "overhead_children,sym"];
    let totals = perf(
        folder,
        "report",
        &[&["--stdio", "-g", "none"], &totals[..]].concat(),
    );
    let share = 21.0 / 72.0 * 100.0;
    let total = totals
        .lines()
        .find(|line| line.ends_with(" entry_SYSCALL_64"));
    assert!(total.unwrap().contains(&format!("{share:.2}%")), "{totals}");
}

/// The guest's files are objects with their build ids, for any process, and the header describes the guest.
#[test]
fn perf_lists_the_guests_files() {
    let (folder, _) = exported();
    let folder = folder.path();
    let objects = rows(folder, "dso,sym", &[]);
    for (object, ticks) in [
        ("server;[.] server+0x401300", 11),
        ("batch-230;[.] 0x402080", 17),
        ("[kernel.kallsyms];[k] copy_page_to_iter", 21),
    ] {
        assert_eq!(objects.get(object), Some(&(ticks * ROUNDS)), "{objects:?}");
    }
    let ids = perf_without_symbols(folder, &["buildid-list"]);
    let ids: Vec<&str> = ids.lines().collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert!(
        ids[0].starts_with("00c0ffee") && ids[0].ends_with(" [kernel.kallsyms]"),
        "{ids:?}"
    );
    assert!(
        ids[1].starts_with("0123456789abcdef") && ids[1].ends_with("/server"),
        "{ids:?}"
    );
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

#[test]
fn perf_script_reads_perf_data() {
    let (folder, _) = exported();
    let text = perf(
        folder.path(),
        "script",
        &["-F", "comm,pid,tid,cpu,time,period,event,ip,sym"],
    );
    let samples: Vec<&str> = text
        .split("\n\n")
        .filter(|text| !text.trim().is_empty())
        .collect();
    let of_worker: Vec<&&str> = samples
        .iter()
        .filter(|sample| sample.contains("101/102"))
        .collect();
    assert_eq!(of_worker.len() as u64, 8 * ROUNDS);
    let frames: Vec<&str> = of_worker[0]
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().nth(1).unwrap())
        .collect();
    let kernel = [
        "copy_page_to_iter",
        "ksys_read",
        "do_syscall_64",
        "entry_SYSCALL_64",
    ];
    assert_eq!(
        frames,
        [&kernel[..], &["read@plt", "server::spin", "[cut"]].concat()
    );
    assert!(of_worker[0].contains("cpu-clock:"), "{}", of_worker[0]);
    assert!(
        of_worker[0].starts_with("server worker "),
        "{}",
        of_worker[0]
    );
    // In the order of time.
    let times: Vec<f64> = samples
        .iter()
        .map(|sample| {
            let (_, after_cpu) = sample.split_once(" [00").unwrap();
            let (_, time) = after_cpu.split_once("] ").unwrap();
            time.split_once(':').unwrap().0.trim().parse().unwrap()
        })
        .collect();
    assert!(times.is_sorted(), "{times:?}");
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
    Format::PerfData
        .write_file(&source, &folder.path().join("perf.data"))
        .unwrap();
    let folder = folder.path();
    assert_eq!(first(names(rows(folder, "sym", &[]))), expected(&path));
    let objects = rows(folder, "comm,dso,sym", &[]);
    for (row, ticks) in [
        ("server;server;[.] server+0x401300", 11),
        ("server worker;[kernel.kallsyms];[k] copy_page_to_iter", 8),
    ] {
        assert_eq!(objects.get(row), Some(&(ticks * ROUNDS)), "{objects:?}");
    }
}
