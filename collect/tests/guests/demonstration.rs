//! `kvmprof collect demo`: its output agrees with the guests' own counts, and with itself.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_tests::{
    CpuPressure, Sampled, assert_share, in_lab, kvmprof, on_kvm_with_collector, run_command,
    sampling_rate, share, standard_error,
};

use super::parquet_ticks;

/// The programs that `tests/run` installs, in front of the host's: Prometheus, and a Python that has DuckDB. In the lab there are none.
pub fn path() -> OsString {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let own = ["target/prometheus/usr/bin", "target/receivers/bin"];
    let own: Vec<PathBuf> = own.iter().map(|folder| root.join(folder)).collect();
    assert!(
        in_lab() || own.iter().all(|folder| folder.is_dir()),
        "run tests/run"
    );
    let others = env::var_os("PATH").unwrap_or_default();
    env::join_paths(own.into_iter().chain(env::split_paths(&others))).unwrap()
}

/// The fields of a table's rows, from the line after `heading` on.
fn table<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().skip_while(|line| !line.contains(heading));
    let lines = lines.skip(1).skip_while(|line| !line.starts_with("  "));
    // Some have the query above the table.
    let lines = lines.skip_while(|line| !line.contains("TICKS"));
    let lines = lines.skip(1).take_while(|line| !line.is_empty());
    lines
        .map(|line| line.split_whitespace().collect())
        .collect()
}

/// A percentage of the table, as a part of 1.
fn part(word: &str) -> f64 {
    word.parse::<f64>().unwrap() / 100.0
}

/// The output for a guest: each part's name, with the shares that were collected and counted, and its ticks.
fn parts(text: &str, guest: &str) -> Vec<(String, f64, f64, u64)> {
    let rows = table(text, &format!("Guest {guest}, as it has counted"));
    let rows = rows.into_iter().map(|words| match words.as_slice() {
        [_, name @ .., own, "%", collected, "%", ticks] => (
            name.join(" "),
            part(collected),
            part(own),
            ticks.parse().unwrap(),
        ),
        words => panic!("{words:?}"),
    });
    rows.collect()
}

/// The stolen and lost ticks of a guest in the output.
fn unseen(text: &str, guest: &str) -> (u64, u64) {
    let mut lines = text.lines();
    lines.find(|line| line.starts_with(&format!("Guest {guest}, as it has counted")));
    let line = lines
        .find(|line| line.contains("ticks were stolen"))
        .unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let lost = words.iter().position(|word| *word == "lost:").unwrap();
    (words[0].parse().unwrap(), words[lost - 1].parse().unwrap())
}

#[test]
fn it_prints_what_the_guests_counted() {
    on_kvm_with_collector(|| {
        let folder = tempfile::tempdir().unwrap();
        let all = folder.path().join("fleet");
        let hz = sampling_rate(200).to_string();
        let pressure = CpuPressure::begin();
        let mut command = Command::new(kvmprof());
        command.args([
            "collect",
            "demo",
            "--seconds",
            "20",
            "--hz",
            &hz,
            "--folder",
        ]);
        let ran = run_command(command.arg(&all).env("PATH", path()));
        assert_eq!(ran.status, 0, "{ran:?}");
        println!("{}", ran.stdout);
        let mut whole = 0;
        for guest in ["one", "two"] {
            let parts = parts(&ran.stdout, guest);
            assert_eq!(parts.len(), 9, "{parts:?}");
            let ticks = parts.iter().map(|(.., ticks)| ticks).sum();
            assert!(ticks > 0, "{ran:?}");
            whole += ticks;
            let (stolen, lost) = unseen(&ran.stdout, guest);
            let sampled = Sampled::new(ticks, stolen, lost, &pressure);
            for (name, collected, own, _) in parts {
                assert_share(&name, collected, own, sampled);
            }
        }
        assert_eq!(parquet_ticks(&all.join("parquet")), whole);
        check_functions(&ran.stdout, whole);
        if !in_lab() {
            assert!(ran.stdout.contains("by DuckDB:"), "{ran:?}");
            check_processes(&ran.stdout);
        }
    });
}

/// The functions of the fleet are those of both guests.
fn check_functions(text: &str, whole: u64) {
    let functions = table(text, "Functions of the fleet");
    assert!(functions.len() > 5, "{text}");
    let mut sum = 0;
    for words in functions {
        let [_, "%", ticks, _, "one,", "two"] = words.as_slice() else {
            // Rare ones may occur in one guest only.
            assert!(part(words[0]) < 0.05, "{words:?}");
            continue;
        };
        sum += ticks.parse::<u64>().unwrap();
    }
    let idle: u64 = ["one", "two"]
        .iter()
        .flat_map(|guest| parts(text, guest))
        .filter(|(name, ..)| name == "idle")
        .map(|(.., ticks)| ticks)
        .sum();
    let busy = whole - idle;
    assert!(sum <= busy && sum > busy * 8 / 10, "{sum} of {busy}");
}

/// Prometheus has the same shares, of the time until its last scrape.
fn check_processes(text: &str) {
    let mut sums: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for words in table(text, "Processes, by Prometheus") {
        let [ticks, guest, process] = words.as_slice() else {
            panic!("{words:?}");
        };
        sums.insert((guest, process), ticks.parse().unwrap());
    }
    for guest in ["one", "two"] {
        let known: u64 = (sums.iter().filter(|((of, _), _)| *of == guest))
            .map(|(_, ticks)| ticks)
            .sum();
        assert!(known > 0, "{text}");
        let parts = parts(text, guest);
        let ticks: u64 = parts.iter().map(|(.., ticks)| ticks).sum();
        assert!(known <= ticks, "{known} of {ticks}");
        let (_, collected, ..) = parts.iter().find(|(name, ..)| name == "idle").unwrap();
        let idle = share(sums[&(guest, "idle")], known);
        let allowed = 4.0 * standard_error(*collected, known) + 0.03;
        assert!((idle - collected).abs() < allowed, "{idle} and {collected}");
    }
}

/// Without Prometheus and DuckDB it says so, and continues.
#[test]
fn it_continues_without_missing_programs() {
    on_kvm_with_collector(|| {
        let mut command = Command::new(kvmprof());
        command.args(["collect", "demo", "--seconds", "6"]);
        let ran = run_command(command.env("PATH", ""));
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(ran.stderr.contains("apt install prometheus"), "{ran:?}");
        assert!(ran.stdout.contains("by this program"), "{ran:?}");
        for guest in ["one", "two"] {
            assert_eq!(parts(&ran.stdout, guest).len(), 9, "{ran:?}");
        }
        assert!(!ran.stdout.contains("by Prometheus"), "{ran:?}");
        // An existing folder isn't its own.
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(kvmprof());
        command
            .args(["collect", "demo", "--folder"])
            .arg(folder.path());
        let ran = run_command(&mut command);
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.stderr.contains("Cannot make the folder"), "{ran:?}");
    });
}
