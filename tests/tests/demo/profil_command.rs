//! `kvmprof profil` and `kvmprof pcsample` with the demo guest: tables of its processes, and histograms that gprof reads.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kvmprof_demo_guest::{Mode, Row, function_at, process_of, rows, symbol};
use kvmprof_recording::status::Status;
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, ProfilTable, Ran, Sampled, TERMINAL_TYPE, Terminal,
    assert_rows, gprof, kvmprof, on_kvm, on_kvm_with_gprof, run_command, sampling_rate, share,
    signal, until,
};
use rustix::process::Signal;

/// The demo guest's processes.
const PROCESSES: [&str; 4] = ["101", "102", "103", "201"];

fn guest() -> Guest {
    let hz = sampling_rate(1000).to_string();
    Guest::start(Boot::Demo, ["--hz", &hz, "--jitter"])
}

/// Starts a command with the guest's `socket`.
fn start(socket: &Path, command: &str, words: &[&str], stderr: Stdio) -> Child {
    let mut kvmprof = Command::new(kvmprof());
    kvmprof.args([command, "--socket"]).arg(socket).args(words);
    kvmprof.env("TERM", TERMINAL_TYPE).stdin(Stdio::null());
    kvmprof
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap()
}

/// Waits for its end. On a busy host it may have reported that it waits for the process.
fn end(child: Child) -> Ran {
    let mut ran = Ran::from(child.wait_with_output().unwrap());
    let said = ran.stderr.split_inclusive('\n');
    let said = said.filter(|line| !line.contains("waiting until process"));
    ran.stderr = said.collect();
    ran
}

/// Runs a command to its own end.
fn command(guest: &Guest, command: &str, words: &[&str]) -> Ran {
    end(start(&guest.socket(), command, words, Stdio::piped()))
}

/// Runs a command until `count` ticks of its process were sampled, and then interrupts it.
fn interrupted(guest: &Guest, command: &str, words: &[&str], count: u64) -> String {
    until("nothing is profiled", || {
        profiles(&guest.status()).is_empty().then_some(())
    });
    let child = start(&guest.socket(), command, words, Stdio::piped());
    until_found(guest, count);
    signal(&child, Signal::INT);
    end(child).quiet()
}

/// The sampled ticks of each profiled process, by the status document.
fn profiles(status: &Status) -> BTreeMap<String, u64> {
    let profiles = status.profil();
    profiles
        .map(|one| (one.pid.to_string(), one.ledger.ticks))
        .collect()
}

/// Whether this many ticks of a process were sampled.
fn is_found(guest: &Guest, count: u64) -> Option<()> {
    let found: u64 = profiles(&guest.status()).values().sum();
    (found >= count).then_some(())
}

/// Waits until this many ticks of a process were sampled.
fn until_found(guest: &Guest, count: u64) {
    until("ticks find the process", || is_found(guest, count));
}

/// The functions of gprof's flat profile, and the share of each in percent.
fn flat_profile(program: &Path, histograms: &[PathBuf]) -> BTreeMap<String, f64> {
    let table = run_command(gprof().args(["-b", "-p"]).arg(program).args(histograms)).quiet();
    println!("{table}");
    let rows = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let share = words.first()?.parse().ok()?;
        Some((words.last()?.to_string(), share))
    });
    rows.collect()
}

/// gprof names the functions of all processes with their shares, which agree with the guest's own counts.
#[test]
fn gprof_names_the_functions_with_their_shares() {
    on_kvm_with_gprof(|| {
        let machine = Machine::start(Boot::Demo, 1, Clock::jittered(1000));
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("demo.elf");
        fs::write(&program, kvmprof_demo_guest::ELF).unwrap();
        let files = PROCESSES.map(|pid| folder.path().join(pid));
        // The guest is held until the first of them samples it.
        let children = PROCESSES.iter().zip(&files).map(|(pid, file)| {
            let words = ["--pid", pid, "--every-tick", "--output"];
            let words = [&words[..], &[file.to_str().unwrap()]].concat();
            start(&machine.socket(), "profil", &words, Stdio::piped())
        });
        let children: Vec<Child> = children.collect();
        let now = || profiles(&machine.status());
        until("all are profiled", || {
            (now().len() == PROCESSES.len()).then_some(())
        });
        let pressure = CpuPressure::begin();
        let before = (machine.truth(), now());
        let found = |now: &BTreeMap<String, u64>, pid: &str| now[pid] - before.1[pid];
        let after = until("ticks find the processes", || {
            let now = now();
            let all: u64 = now.keys().map(|pid| found(&now, pid)).sum();
            (all >= 1500).then_some(now)
        });
        let cycles = machine.truth().cycles_since(&before.0);
        children.iter().for_each(|child| signal(child, Signal::INT));
        let ends = children.into_iter().map(|child| end(child).quiet());
        let ends = ends.inspect(|text| println!("{text}"));
        let tables: Vec<ProfilTable> = ends.map(|text| ProfilTable::parse(&text)).collect();
        let profile = flat_profile(&program, &files);
        let user = |row: &Row| row.mode == Mode::User;
        let of_row = |row: &Row| match row.pid {
            Some(pid) if user(row) => found(&after, &pid.to_string()),
            _ => 0,
        };
        let counts: Vec<u64> = rows().iter().map(of_row).collect();
        let all = counts.iter().sum();
        let sampled = Sampled::new(all, 0, 0, &pressure);
        assert_rows(counts.try_into().unwrap(), cycles, user, sampled);
        let all_stored = tables.iter().map(ProfilTable::stored).sum();
        // gprof takes the end of the section .text for the end of the last function, which is elsewhere.
        let counted = tables.iter().flat_map(|table| &table.rows);
        let counted = counted.map(|(count, words)| (count, words.last().unwrap()));
        for (count, function) in counted.filter(|(_, function)| *function != "dyer") {
            let expected = share(*count, all_stored) * 100.0;
            let by_gprof = profile.get(function).copied().unwrap_or_default();
            // It prints hundredths of a percent.
            assert!(
                (by_gprof - expected).abs() < 0.02,
                "{function}: {by_gprof} %, not {expected} %"
            );
        }
        assert!(
            profile.keys().all(|name| process_of(name).is_some()),
            "{profile:?}"
        );
        machine.stop();
    });
}

/// The same region as Solaris and AIX round, with its name or its addresses, by function or by count.
#[test]
fn tables_have_the_functions_of_the_process() {
    on_kvm(|| {
        let guest = guest();
        let wheel = symbol("turn_wheel").unwrap();
        let address = format!("{:#x}", wheel.address);
        let size = (wheel.size.next_multiple_of(8) / 4).to_string();
        let all = "counts of 8 bytes from 0x200000";
        let function = format!("counts of 8 bytes from {address}");
        for (words, heading) in [
            (&[][..], all),
            (&["--module", "[user]", "--aix"], all),
            (&["--function", "turn_wheel"], &function),
            (
                &["--function", "turn_wheel", "--aix", "--scale", "0x8000"],
                "counts of 4 bytes",
            ),
            (
                &["--offset", &address, "--bufsiz", &size, "--counts"],
                &function,
            ),
            (
                &["--offset", &address, "--bufsiz", "2", "--scale", "2"],
                "in one count (Solaris)",
            ),
        ] {
            let words = [&["--pid", "102", "--every-tick"], words].concat();
            let ran = interrupted(&guest, "profil", &words, 30);
            assert!(ran.starts_with("process 102: "), "{ran}");
            assert!(ran.contains(heading), "{words:?}: {ran}");
            let table = ProfilTable::parse(&ran);
            assert_eq!(table.sum(), table.stored());
            // The process spends little time outside of its main function.
            let is_own = |words: &[String]| words.last().unwrap().starts_with("turn_wheel");
            let own = table.rows.iter().filter(|(_, words)| is_own(words));
            let own: u64 = own.map(|(count, _)| count).sum();
            assert!(own * 10 >= table.ticks * 9 && own > 0, "{words:?}: {ran}");
        }
        guest.stop();
    });
}

#[test]
fn pcsample_ends_when_it_has_enough() {
    on_kvm(|| {
        let guest = guest();
        let words = ["--pid", "103", "--nsamples", "50", "--every-tick"];
        let ran = command(&guest, "pcsample", &words).quiet();
        let table = ProfilTable::parse(&ran);
        assert_eq!((table.ticks, table.stored(), table.sum()), (50, 50, 50));
        assert_eq!(table.rows[0].1.last().unwrap(), "card", "{ran}");

        let raw = [&words[..], &["--raw"]].concat();
        let ran = command(&guest, "pcsample", &raw).quiet();
        assert_eq!(ran.lines().count(), 50, "{ran}");
        for line in ran.lines() {
            let pc = u64::from_str_radix(line.strip_prefix("0x").unwrap(), 16).unwrap();
            let name = function_at(pc).unwrap_or_default();
            assert!(process_of(name) == Some(103), "{line}: {name}");
        }
        guest.stop();
    });
}

/// Ctrl-C ends it with the data so far, and a terminal shows the count meanwhile; so does the guest's end.
#[test]
fn collected_data_is_printed_at_the_end() {
    on_kvm(|| {
        let mut guest = guest();
        for command in ["profil", "pcsample"] {
            let words: &[&str] = match command {
                "profil" => &["--pid", "101"],
                _ => &["--pid", "101", "--nsamples", "500000"],
            };
            let mut terminal = Terminal::open(100, 24);
            let mut child = start(&guest.socket(), command, words, terminal.stdio());
            terminal.until_shown("profiling process 101", &mut child);
            until("ticks find the process", || {
                terminal.catch_up();
                is_found(&guest, 20)
            });
            signal(&child, Signal::INT);
            let ran = end(child);
            assert_eq!(ran.status, 0, "{ran:?}");
            assert!(ProfilTable::parse(&ran.stdout).stored() >= 20, "{ran:?}");
            until("the clock stands still", || {
                (!guest.status().clock.running).then_some(())
            });
        }
        let child = start(&guest.socket(), "profil", &["--pid", "101"], Stdio::piped());
        until_found(&guest, 20);
        guest.signal(Signal::TERM);
        let ran = end(child);
        assert_eq!(ran.status, 0, "{ran:?}");
        assert_eq!(ran.stderr, "kvmprof: ended early: the guest has ended\n");
        assert!(ProfilTable::parse(&ran.stdout).stored() >= 20, "{ran:?}");
        assert_eq!(guest.wait().status, 0);
    });
}

/// As a new user would try it.
#[test]
fn wrong_uses_are_reported() {
    on_kvm(|| {
        let guest = guest();
        let file = |name: &str| guest.folder().join(name).to_str().unwrap().to_owned();
        let recording = file("recording");
        let ran = guest.record(10, &["-o", &recording]);
        assert_eq!(ran.status, 0, "{ran:?}");
        let before = fs::read(&recording).unwrap();
        for (words, expected) in [
            (&["--function", "sing"][..], "has no function called sing"),
            (
                &["--module", "libc.so.6"],
                "no file called libc.so.6: it has [user]",
            ),
            (&["--sysroot", "/nonexistent"], "/nonexistent"),
            (
                &["--output", &recording],
                "is a recording, which would be lost",
            ),
            (
                &["--output", "/nonexistent/gmon.out"],
                "Cannot write /nonexistent/gmon.out",
            ),
        ] {
            let words = [&["--pid", "101"], words].concat();
            command(&guest, "profil", &words).assert_refused(1, &[expected]);
        }
        assert_eq!(fs::read(&recording).unwrap(), before);
        // No process has this pid. An older file stays.
        let older = file("older");
        fs::write(&older, "older").unwrap();
        let nobody = "Process 999 did not run in user mode in this time";
        let nowhere = ["--offset", "0x0", "--bufsiz", "2", "--output", &older];
        let words = [&["--pid", "999", "--seconds", "0.5"], &nowhere[..]].concat();
        command(&guest, "profil", &words).assert_refused(1, &[nobody, "kvmprof top"]);
        assert_eq!(fs::read_to_string(&older).unwrap(), "older");
        let words = ["--pid", "999", "--seconds", "0.5", "--nsamples", "5"];
        command(&guest, "pcsample", &words).assert_refused(1, &[nobody]);
        guest.stop();
    });
}

#[test]
fn unsuitable_clocks_are_reported() {
    on_kvm(|| {
        let without = Guest::start(Boot::Demo, ["--hz", "0"]);
        let pcsample = ["--pid", "101", "--nsamples", "5"];
        for (command, words) in [("profil", &["--pid", "101"][..]), ("pcsample", &pcsample)] {
            let ran = self::command(&without, command, words);
            ran.assert_refused(1, &["clock is off"]);
        }
        without.stop();
        let mut odd = Guest::start(Boot::Demo, ["--hz", "250"]);
        let ran = command(&odd, "pcsample", &pcsample);
        ran.assert_refused(1, &["no multiple of 100 Hz", "--every-tick"]);
        let every = [&pcsample[..], &["--every-tick"]].concat();
        let ran = command(&odd, "pcsample", &every).quiet();
        assert!(ran.contains("250 ticks a second"), "{ran}");
        // It has reported the refusal, too.
        odd.signal(Signal::TERM);
        assert_eq!(odd.wait().status, 0);
    });
}
