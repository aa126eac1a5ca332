//! `kvmprof export` and `kvmprof-collect` write a recording as Parquet files. The counts of DuckDB equal those of `kvmprof
//! report`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kvmprof_recording::file::{KERNEL_CLOCK, RecordingInfo};
use kvmprof_recording::{IPL_MASKED, Mode, Sample, StackEnd, Ticks, comm_of};
use serde_json::{Value, json};

use super::python;
use super::recordings::{Written, stack_of};

const SECOND: u64 = 1_000_000_000;
/// The start of the recording: 2026-03-01, 23:59:45.
const BEGAN: u64 = 1_772_409_585;
const NAMES: [&str; 3] = ["weaver", "dyer", "carder"];

/// The ticks with this number, of two vCPUs that alternate, four a second: in all modes, of several processes, and with halts.
fn ticks(number: u64) -> Ticks {
    let index = usize::try_from(number % 3).unwrap();
    let pid = 100 + i32::try_from(index).unwrap();
    let sample = Sample {
        time: 7 * SECOND + number * SECOND / 4,
        vcpu: u16::try_from(number % 2).unwrap(),
        pc: 0xffff_ffff_8100_0010,
        pid,
        tid: pid,
        comm: comm_of(NAMES[index]),
        mode: [Mode::Kernel, Mode::Interrupt][usize::try_from(number / 3 % 2).unwrap()],
        ipl: if number.is_multiple_of(7) {
            IPL_MASKED
        } else {
            0
        },
        stack: stack_of(2, 0, StackEnd::Absent),
        ..Sample::default()
    };
    Ticks {
        vcpu: sample.vcpu,
        idle: number % 5,
        sample: Some(sample),
        ..Ticks::default()
    }
}

fn write_recording(path: &Path) {
    write_recording_of_clock(path, "thread");
}

fn write_recording_of_clock(path: &Path, clock: &str) {
    let symbols = "ffffffff81000000 T work\nffffffff81000100 T main\n";
    let mut written = Written::with_symbols(symbols);
    written.info = RecordingInfo {
        hz: 20,
        clock: clock.to_owned(),
        vcpus: 2,
        began_ns: BEGAN * SECOND,
        began_monotonic_ns: 7 * SECOND,
        ..written.info
    };
    for number in 0..200 {
        let frames = [0xffff_ffff_8100_0010, 0xffff_ffff_8100_0110];
        written.push(&ticks(number), &frames);
    }
    written.write(path);
}

/// The program with this name in the collector's folder.
fn program(name: &str) -> Command {
    let path = Path::new(env!("CARGO_BIN_EXE_kvmprof-collect")).with_file_name(name);
    assert!(path.is_file(), "no {}: run cargo build", path.display());
    Command::new(path)
}

fn succeeded(output: Output) -> Vec<u8> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    output.stdout
}

/// The rows of a query on the files below `lake`.
fn ask(lake: &Path, query: &str) -> Vec<Vec<Value>> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("query.sql");
    fs::write(&file, format!("-- name: it\n{query}")).unwrap();
    let output = python("query.py").arg(file).arg(lake).output().unwrap();
    let mut answers: BTreeMap<String, Vec<Vec<Value>>> =
        serde_json::from_slice(&succeeded(output)).unwrap();
    answers.remove("it").unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.push(path);
        }
    }
    all
}

/// Exports the recording with the further arguments `more`, and compares the files with the report for the same selection.
fn check(recording: &Path, lake: &Path, more: &[&str]) {
    let mut export = program("kvmprof");
    export.args([
        "export", "--format", "parquet", "--host", "h", "--guest", "g/1",
    ]);
    export.arg(recording).arg("-o").arg(lake).args(more);
    succeeded(export.output().unwrap());
    let selection: Vec<&&str> = more
        .iter()
        .filter(|word| !word.starts_with("--window"))
        .collect();
    let mut report = program("kvmprof");
    report
        .args(["report", "--json"])
        .arg(recording)
        .args(selection);
    let report: Value = serde_json::from_slice(&succeeded(report.output().unwrap())).unwrap();
    let sums = ask(
        lake,
        "SELECT sum(ticks)::BIGINT, sum(nanoseconds)::BIGINT FROM samples",
    );
    let ticks = sums[0][0].as_u64().unwrap();
    assert_eq!(ticks, report["samples"], "{report}");
    assert_eq!(sums[0][1], ticks * SECOND / 20);
    // Halted vCPUs run no process.
    let query =
        "SELECT process, mode, sum(ticks)::BIGINT FROM samples WHERE mode <> 'idle' GROUP BY ALL";
    let mut found: Vec<Vec<Value>> = ask(lake, query);
    let mut expected = Vec::new();
    for process in report["processes"].as_array().unwrap() {
        for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Idle) {
            if process[mode.name()].as_u64().unwrap() > 0 {
                let name = process["name"].clone();
                expected.push(vec![name, json!(mode.name()), process[mode.name()].clone()]);
            }
        }
    }
    found.sort_by_key(|row| format!("{row:?}"));
    expected.sort_by_key(|row| format!("{row:?}"));
    assert_eq!(found, expected);
    assert!(!found.is_empty());
}

#[test]
fn duckdb_counts_agree_with_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("out.kvmprof");
    write_recording(&recording);
    let lake = folder.path().join("lake");
    check(&recording, &lake, &[]);
    let columns = "SELECT date::TEXT, host, guest, hz, function, stack, epoch_ms(time)::TEXT, seconds FROM samples";
    let rows = ask(
        &lake,
        &format!("{columns} WHERE mode = 'kernel' ORDER BY time LIMIT 1"),
    );
    let expected = json!([
        "2026-03-01",
        "h",
        "g/1",
        20,
        "work",
        ["work", "main"],
        BEGAN / 10 * 10_000,
        10
    ]);
    let mut expected: Vec<Value> = expected.as_array().unwrap().clone();
    expected[6] = expected[6].to_string().into();
    assert_eq!(rows, [expected]);
    // The recording begins 15 s before midnight and has 50 s.
    let windows = ask(
        &lake,
        "SELECT count(DISTINCT time), count(DISTINCT date) FROM samples",
    );
    assert_eq!(windows, [[json!(6), json!(2)]]);
    let before = files(&lake);
    assert_eq!(before.len(), 2);
    // A second export replaces the files.
    check(&recording, &lake, &[]);
    assert_eq!(files(&lake), before);
}

/// `kvmprof stalls` counts the same. When the host's kernel takes the samples, they are unknown.
#[test]
fn duckdb_counts_of_ticks_with_interrupts_off_agree() {
    let folder = tempfile::tempdir().unwrap();
    let query = "SELECT sum(interrupts_off)::BIGINT, count(*) - count(interrupts_off) FROM samples";
    for clock in ["thread", KERNEL_CLOCK] {
        let recording = folder.path().join(format!("{clock}.kvmprof"));
        write_recording_of_clock(&recording, clock);
        let lake = folder.path().join(clock);
        check(&recording, &lake, &[]);
        let rows = ask(&lake, "SELECT count(*) FROM samples")
            .remove(0)
            .remove(0);
        let found = ask(&lake, query).remove(0);
        if clock == KERNEL_CLOCK {
            assert_eq!(found, [Value::Null, rows]);
            continue;
        }
        let mut stalls = program("kvmprof");
        stalls.args(["stalls", "--json"]).arg(&recording);
        let stalls: Value = serde_json::from_slice(&succeeded(stalls.output().unwrap())).unwrap();
        let off = &stalls["stalls"]["samples_with_interrupts_off"];
        assert_eq!(*off, 200_u64.div_ceil(7));
        assert_eq!(found, [off.clone(), json!(0)]);
    }
}

#[test]
fn counts_of_a_time_range_agree_with_the_report() {
    for (number, more) in [
        ["--window=1", "--time", "2:9.5"],
        ["--window=60", "--pid", "101,102"],
        ["--window=7", "--comm", "dyer"],
        ["--window=7", "--mode", "interrupt"],
        ["--window=7", "--vcpu", "1"],
        ["--window=7", "--grep", "wor[k]"],
    ]
    .iter()
    .enumerate()
    {
        let folder = tempfile::tempdir().unwrap();
        let recording = folder.path().join(format!("{number}.kvmprof"));
        write_recording(&recording);
        check(&recording, &folder.path().join("lake"), more);
    }
}

#[test]
fn wrong_options_and_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_recording(&folder.path().join("out.kvmprof"));
    for (words, status, message) in [
        ("parquet out.kvmprof", 2, "--output"),
        ("parquet - -o x", 2, "is a file"),
        ("folded --guest g out.kvmprof", 2, "parquet"),
        ("parquet out.kvmprof -o x --sysroot /", 2, "--sysroot"),
        ("parquet out.kvmprof -o x --window 0", 2, "window"),
        ("parquet out.kvmprof -o x --comm nobody", 1, "nothing"),
        (
            "parquet out.kvmprof -o x --output-limit 1K",
            1,
            "Cannot export",
        ),
        ("parquet /dev/null -o x", 1, "/dev/null"),
    ] {
        let mut export = program("kvmprof");
        export.args(["export", "--format"]).args(words.split(' '));
        let output = export.current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words}: {said}");
        assert!(said.contains(message), "{words}: {said}");
    }
    assert!(!folder.path().join("x").exists());
}

/// A recording can have ticks at any times; each of these needs its own window.
#[test]
fn windows_count_for_the_output_limit() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("it.kvmprof");
    write_recording(&recording);
    let export = |window: &str, name: &str| {
        let mut export = program("kvmprof");
        export.args(["export", "--format", "parquet", "--output-limit", "256K"]);
        export.args(["--window", window]).arg(&recording);
        export.arg("-o").arg(folder.path().join(name));
        export.output().unwrap()
    };
    succeeded(export("60", "few"));
    let output = export("1", "many");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("more than 262144 bytes"), "{said}");
    assert!(!folder.path().join("many").exists());
}
