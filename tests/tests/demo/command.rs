//! `kvmprof demo`: its table, its object, its flame graph.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use kvmprof_client::Connection;
use kvmprof_tests::{Ran, kvmprof, ledger_of, on_kvm, run, run_command, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// `kvmprof demo --json`: one object with the documented fields, and an account that balances.
#[test]
fn demo_prints_one_object() {
    on_kvm(|| {
        let ran = run([
            "demo",
            "--json",
            "--seconds",
            "1",
            "--hz",
            "500",
            "--cpus",
            "2",
        ]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        assert_eq!(ran.stdout.lines().count(), 1);
        let object: Value = serde_json::from_str(&ran.stdout).unwrap();
        let mut fields: Vec<&str> = object
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        fields.sort_unstable();
        let expected = [
            "discarded",
            "hz",
            "lost",
            "merged",
            "pending",
            "recorded",
            "rows",
            "schema",
            "stolen",
            "ticks",
            "ungathered",
            "vcpus",
        ];
        assert_eq!(fields, expected);
        let count = |name: &str| object[name].as_u64().unwrap();
        assert_eq!((count("hz"), count("vcpus"), count("pending")), (500, 2, 0));
        assert!(ledger_of(&object).balances(), "{object}");
        for field in ["expected", "observed"] {
            let rows = object["rows"].as_array().unwrap();
            let sum: f64 = rows.iter().map(|row| row[field].as_f64().unwrap()).sum();
            assert!((sum - 1.0).abs() < 0.02, "{field}: {sum}");
        }
        for row in object["rows"].as_array().unwrap() {
            let mode = row["mode"].as_str().unwrap();
            assert!(
                ["user", "kernel", "interrupt", "idle"].contains(&mode),
                "{row}"
            );
            assert!(row["name"].is_string() && (row["pid"].is_i64() || row["pid"].is_null()));
        }
    });
}

/// `kvmprof demo` with more `options`, run in `folder`.
fn demo_in(folder: &Path, options: &[&str]) -> Ran {
    run_command(
        Command::new(kvmprof())
            .args(["demo", "--seconds", "1"])
            .args(options)
            .current_dir(folder),
    )
}

/// Without `--json`, a table for people and a flame graph.
#[test]
fn demo_prints_a_table_and_draws_a_flame_graph() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let ran = demo_in(folder.path(), &[]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        for word in [
            "weaver",
            "spinner",
            "carder",
            "dyer",
            "interrupts off",
            "idle",
            "101",
            "201",
        ] {
            assert!(ran.stdout.contains(word), "{word}: {}", ran.stdout);
        }
        assert!(ran.stdout.contains(" ticks = "), "{}", ran.stdout);
        let last = ran.stdout.lines().last().unwrap();
        assert_eq!(last, "flame graph: kvmprof-demo.svg");
        let path = folder.path().join("kvmprof-demo.svg");
        let mut missing = names_missing_from(&path);
        // It may replace its own file. In one second of a busy host the guest may hardly be idle.
        for round in 0.. {
            let before = fs::metadata(&path).unwrap().ino();
            let ran = demo_in(folder.path(), &[]);
            assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
            assert_ne!(fs::metadata(&path).unwrap().ino(), before);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
            let others = names_missing_from(&path);
            missing.retain(|name| others.contains(name));
            if missing.is_empty() {
                break;
            }
            assert!(round < 10, "{missing:?}");
        }
    });
}

/// The missing parts of the flame graph at `path`: processes, functions of both sides and their callers, on each side and across the boundary, and
/// idle time.
fn names_missing_from(path: &Path) -> Vec<&'static str> {
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<?xml"));
    let names = [
        "weaver-101",
        "weave",
        "weave_cloth",
        "stretch_with_interrupts_off",
        "system_call_entry",
        "store_wool",
        "halt",
    ];
    names
        .into_iter()
        .filter(|name| !svg.contains(name))
        .collect()
}

/// The flame graph replaces no other file, and the table is printed without it.
#[test]
fn demo_keeps_files_and_sockets_of_others() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kvmprof-demo.svg");
        fs::write(&path, "mine").unwrap();
        let ran = demo_in(folder.path(), &[]);
        assert_eq!((ran.status, ran.stderr.lines().count()), (0, 1), "{ran:?}");
        assert!(ran.stderr.contains("--flamegraph"), "{ran:?}");
        assert!(ran.stdout.contains(" ticks = ") && !ran.stdout.contains("flame graph"));
        assert_eq!(fs::read(&path).unwrap(), b"mine");

        // A folder in which no file can be made.
        let ran = demo_in(Path::new("/proc"), &[]);
        assert_eq!((ran.status, ran.stderr.lines().count()), (0, 1), "{ran:?}");
        assert!(ran.stderr.contains("Cannot write"), "{ran:?}");
        assert!(ran.stdout.contains(" ticks = "), "{ran:?}");
        let ran = demo_in(folder.path(), &["--flamegraph", "none/such.svg"]);
        ran.assert_refused(1, &["none/such.svg"]);
        assert!(ran.stdout.contains(" ticks = "), "{ran:?}");

        // The requested file is written, beside one object and no message.
        let ran = demo_in(folder.path(), &["--json", "--flamegraph", "my.svg"]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        assert_eq!(ran.stdout.lines().count(), 1);
        let svg = fs::read_to_string(folder.path().join("my.svg")).unwrap();
        assert!(svg.contains("weaver-101"));
        let ran = demo_in(folder.path(), &["--json"]);
        assert_eq!(ran.status, 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    });
}

/// `kvmprof demo --socket` runs the guest for any client, until it is ended.
#[test]
fn demo_serves_clients() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let mut demo = Command::new(kvmprof())
            .args(["demo", "--hz", "1000", "--jitter", "--socket"])
            .arg(&socket)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("the guest is there", || Connection::connect(&socket).ok());
        let socket = socket.to_str().unwrap();
        let ran = run(["status", "-s", socket]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        assert!(
            ran.stdout.contains("1000 Hz by thread with jitter"),
            "{ran:?}"
        );
        let ran = run(["top", "-s", socket, "--count", "1", "--interval", "2"]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        assert!(ran.stdout.contains("weaver"), "{ran:?}");
        kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
        assert!(demo.wait().unwrap().success());
        let mut said = String::new();
        demo.stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(
            said.starts_with("kvmprof: ") && said.contains(socket),
            "{said}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    });
}

/// The file of `kvmprof demo --truth` is like other results: for its user only, and never written through a link.
#[test]
fn the_truth_is_for_its_user_alone() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let precious = path("precious");
        fs::write(&precious, "old").unwrap();
        symlink(&precious, path("link")).unwrap();
        let end = |truth: &str| {
            let socket = path("socket");
            let mut demo = Command::new(kvmprof())
                .args(["demo", "--truth"])
                .arg(path(truth))
                .arg("--socket")
                .arg(&socket)
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            until("the guest is there", || Connection::connect(&socket).ok());
            let socket = socket.to_str().unwrap();
            let ran = run(["top", "-s", socket, "--count", "1", "--interval", "1"]);
            assert_eq!(ran.status, 0, "{ran:?}");
            kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
            demo.wait().unwrap().code()
        };
        assert_eq!(end("truth"), Some(0));
        let mode = fs::metadata(path("truth")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o600);
        let truth: Value = serde_json::from_slice(&fs::read(path("truth")).unwrap()).unwrap();
        assert!(truth.is_object() || truth.is_array(), "{truth}");
        assert_eq!(end("link"), Some(1));
        assert_eq!(fs::read(&precious).unwrap(), b"old");
    });
}
