//! The tools of prf on a running guest, over the host's socket.

use std::fs;
use std::path::Path;
use std::process::Command;

use kvmprof_abi::prf::{ALL_VCPUS, STATUS_LOADED, STATUS_ON};
use kvmprof_demo_guest::symbol;
use kvmprof_tests::{Boot, Guest, Prf, Ran, on_kvm, run, run_command, until};
use rustix::process::Signal;

fn guest(options: &[&str]) -> Guest {
    Guest::start(Boot::Demo, options)
}

/// Runs a tool on this guest, which must succeed without a message. Returns its output.
#[track_caller]
fn tool(guest: &Guest, name: &str, arguments: &[&str]) -> String {
    guest.command(name, arguments).quiet()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The rows of a report of one interval, which must have the documented form.
#[track_caller]
fn rows(report: &str) -> Vec<(String, f64)> {
    let mut lines = report.lines();
    for _ in 0..2 {
        let time = lines.next().unwrap();
        // 2001-09-09 01:46:40
        let (date, clock) = time.split_once(' ').unwrap();
        assert_eq!((date.split('-').count(), clock.split(':').count()), (3, 3));
    }
    assert_eq!(lines.next(), Some(""), "{report}");
    lines
        .map(|line| {
            let (name, percent) = line.split_once(' ').unwrap();
            let percent = percent.trim_start();
            assert_eq!(percent.split_once('.').unwrap().1.len(), 2, "{line}");
            (name.to_owned(), percent.parse().unwrap())
        })
        .collect()
}

fn share(rows: &[(String, f64)], name: &str) -> f64 {
    let row = rows.iter().find(|row| row.0 == name);
    row.unwrap_or_else(|| panic!("no {name} in {rows:?}")).1
}

#[test]
fn the_kernels_functions_are_printed_with_user_and_idle() {
    on_kvm(|| {
        let guest = guest(&["--cpus", "2"]);
        let log = guest.folder().join("log");
        assert_eq!(tool(&guest, "prfld", &[]), "");
        assert_eq!(tool(&guest, "prfsnap", &[path(&log)]), "");
        let prf = Prf::open(&guest.connect(), ALL_VCPUS).unwrap();
        prf.until_counted(400);
        tool(&guest, "prfsnap", &[path(&log)]);

        let all = rows(&tool(&guest, "prfpr", &[path(&log), "0"]));
        // A process of the workload computes in the kernel, and the timer interrupts it.
        for name in ["compute", "service_interrupt", "user", "idle"] {
            assert!(share(&all, name) > 0.0, "{all:?}");
        }
        let sum: f64 = all.iter().map(|row| row.1).sum();
        assert!((99.0..101.0).contains(&sum), "{all:?}");
        assert_eq!(all[all.len() - 2].0, "user");
        assert_eq!(all[all.len() - 1].0, "idle");
        let functions = &all[..all.len() - 2];
        let addresses: Vec<u64> = functions
            .iter()
            .filter_map(|(name, _)| Some(symbol(name)?.address))
            .collect();
        assert!(!addresses.is_empty() && addresses.is_sorted(), "{all:?}");

        // Names from a file are the same, and the cutoff omits shares that aren't above it.
        let elf = guest.folder().join("demo.elf");
        let named = tool(&guest, "prfpr", &[path(&log), "0", path(&elf)]);
        assert_eq!(rows(&named), all);
        let cut = rows(&tool(&guest, "prfpr", &[path(&log), "5"]));
        let expected: Vec<_> = all.into_iter().filter(|row| row.1 > 5.0).collect();
        assert_eq!(cut, expected);

        // The default is 1 %, and a third record makes a second interval.
        tool(&guest, "prfsnap", &[path(&log)]);
        let two = tool(&guest, "prfpr", &[path(&log)]);
        let (first, second) = two.split_once("\n\n20").unwrap();
        assert!(rows(first).iter().all(|row| row.1 > 1.0));
        assert!(second.contains("\n\n"), "{two}");
        guest.stop();
    });
}

#[test]
fn a_profiler_is_loaded_shown_and_turned_on_by_name() {
    on_kvm(|| {
        let guest = guest(&["--cpus", "2"]);
        let stat = |arguments: &[&str]| tool(&guest, "prfstat", arguments);
        assert_eq!(stat(&[]), "profiling disabled\n");
        tool(&guest, "prfld", &["-f", "/dev/prf1"]);
        let loaded = stat(&["-f", "1"]);
        let (first, second) = loaded.split_once('\n').unwrap();
        assert_eq!(first, "profiling disabled");
        let (count, rest) = second.split_once(' ').unwrap();
        assert!(count.parse::<usize>().unwrap() > 20, "{loaded}");
        assert_eq!(rest, "kernel text addresses\n");
        let on = loaded.replace("disabled", "enabled");
        assert_eq!(stat(&["-f", "1", "on"]), on);
        assert_eq!(stat(&["-f", "1"]), on);
        // The others are unchanged.
        for other in ["0", "255", "/dev/prf"] {
            assert_eq!(stat(&["-f", other]), "profiling disabled\n");
        }
        let prf = Prf::open(&guest.connect(), 1).unwrap();
        assert_eq!(prf.status(), STATUS_ON | STATUS_LOADED);
        assert_eq!(stat(&["-f", "1", "off"]), loaded);
        assert_eq!(prf.status(), STATUS_LOADED);
        // The file's symbols match the guest's; the loaded table is the same, unslid or not.
        let elf = guest.folder().join("demo.elf");
        tool(&guest, "prfld", &[path(&elf)]);
        tool(&guest, "prfld", &["-f", "0", "--no-slide", path(&elf)]);
        let connection = guest.connect();
        let table = |minor| Prf::open(&connection, minor).unwrap().counts().addresses;
        assert_eq!(table(ALL_VCPUS), table(0));
        assert_eq!(table(0)[0], 0);
        // The running guest has the same functions, so that logs of either table can be mixed.
        tool(&guest, "prfld", &["-f", "0"]);
        assert_eq!(table(ALL_VCPUS), table(0));
        assert!(table(0).contains(&symbol("compute").unwrap().address));
        guest.stop();
    });
}

#[test]
fn prfdc_records_until_a_signal() {
    on_kvm(|| {
        let guest = guest(&[]);
        tool(&guest, "prfld", &[]);
        for (number, signal) in [Signal::INT, Signal::TERM].into_iter().enumerate() {
            let log = guest.folder().join(format!("log{number}"));
            let prfdc = guest.spawn_command(&["prfdc", path(&log), "0.001", "24"]);
            until("prfdc has made three records", || {
                let ran = guest.command("prfpr", &[path(&log)]);
                (ran.stdout.matches("\n\n").count() > 2).then_some(())
            });
            kvmprof_tests::signal(&prfdc, signal);
            Ran::from(prfdc.wait_with_output().unwrap()).quiet();
            let report = tool(&guest, "prfpr", &[path(&log), "0"]);
            assert!(report.matches("\n\n").count() > 2, "{report}");
            let stat = tool(&guest, "prfstat", &[]);
            assert!(stat.starts_with("profiling enabled\n"), "{stat}");
            guest
                .command("prfdc", &[path(&log)])
                .assert_refused(1, &["exists already"]);
        }
        guest.stop();
    });
}

/// Each prints one line that says what to do.
#[test]
fn wrong_uses_of_the_tools() {
    on_kvm(|| {
        let guest = guest(&["--hz", "150", "--prf-addresses", "5"]);
        let log = guest.folder().join("log");
        let refused = |name: &str, arguments: &[&str], words: &[&str]| {
            guest.command(name, arguments).assert_refused(1, words);
        };
        refused("prfld", &[], &["ENOSPC", "this prf takes 5"]);
        refused("prfstat", &["perhaps"], &["eh?", "on or off"]);
        refused("prfstat", &["-f", "1"], &["no minor 1", "1 vCPUs"]);
        let ran = guest.command("prfstat", &["-f", "/dev/pcs"]);
        ran.assert_refused(2, &["/dev/pcs", "which prf", "--help"]);
        for (name, words) in [
            ("prfsnap", "run prfld first"),
            ("prfdc", "run prfld first"),
            ("prfpr", "No such file"),
        ] {
            refused(name, &[path(&log)], &[words]);
        }
        assert!(!log.exists());
        refused("prfld", &["/proc/version"], &["neither an ELF file"]);
        let map = guest.folder().join("map");
        fs::write(&map, "10 T one\n20 T two\n").unwrap();
        let ran = guest.command("prfld", &[path(&map)]);
        assert_eq!((ran.status, ran.stdout.as_str()), (0, ""));
        assert!(ran.stderr.contains("no symbol in common"), "{ran:?}");
        refused("prfstat", &["on"], &["EINVAL", "100 Hz", "--hz"]);
        // kvmprof reports a clock that doesn't fit.
        drop(guest);
    });
}

/// The program's name selects the tool.
#[test]
fn links_pages_and_completions_come_with_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let [bin, pages] = ["bin", "man1"].map(|name| folder.path().join(name));
    run(["install-links".as_ref(), bin.as_os_str()]).quiet();
    let mut prfsnap = Command::new(bin.join("prfsnap"));
    let ran = run_command(&mut prfsnap);
    assert_eq!((ran.status, ran.stderr.lines().count()), (2, 1), "{ran:?}");
    assert!(ran.stderr.starts_with("prfsnap: "), "{ran:?}");
    run(["man".as_ref(), pages.as_os_str()]).quiet();
    for name in ["kvmprof", "kvmprof-run", "getpc", "prfpr"] {
        assert!(pages.join(format!("{name}.1")).exists(), "{name}");
    }
    assert!(run(["completions", "bash"]).quiet().contains("prfsnap"));
}
