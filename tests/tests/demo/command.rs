//! `kvmprof demo`: its table, its object, its flame graph.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kvmprof_client::Connection;
use kvmprof_tests::{Ran, interrupt, kvmprof, ledger_of, on_kvm, run, run_command, until};
use serde_json::Value;

/// `kvmprof demo --json`: one object with the documented fields, and an account that balances.
#[test]
fn demo_prints_one_object() {
    on_kvm(|| {
        let words = [
            "demo",
            "--json",
            "--seconds",
            "1",
            "--hz",
            "500",
            "--cpus",
            "2",
        ];
        let said = run(words).quiet();
        assert_eq!(said.lines().count(), 1);
        let object: Value = serde_json::from_str(&said).unwrap();
        let fields = object.as_object().unwrap().keys().map(String::as_str);
        let fields: BTreeSet<&str> = fields.collect();
        let expected =
            "discarded hz lost merged pending recorded rows schema stolen ticks ungathered vcpus";
        assert_eq!(fields, expected.split(' ').collect());
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
    let mut demo = Command::new(kvmprof());
    run_command(
        demo.args(["demo", "--seconds", "1"])
            .args(options)
            .current_dir(folder),
    )
}

/// A served demo with these options, and its socket.
fn serve(folder: &Path, options: &[&str]) -> (Child, String) {
    let socket = folder.join("socket");
    let mut demo = Command::new(kvmprof());
    demo.arg("demo").args(options).arg("--socket").arg(&socket);
    let demo = demo
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the guest is there", || Connection::connect(&socket).ok());
    (demo, socket.to_str().unwrap().to_owned())
}

/// Without `--json`, a table for people and a flame graph.
#[test]
fn demo_prints_a_table_and_draws_a_flame_graph() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let said = demo_in(folder.path(), &[]).quiet();
        let words = "weaver,spinner,carder,dyer,interrupts off,idle,101,201, ticks = ";
        for word in words.split(',') {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert_eq!(said.lines().last(), Some("flame graph: kvmprof-demo.svg"));
        let path = folder.path().join("kvmprof-demo.svg");
        let mut missing = names_missing_from(&path);
        // It may replace its own file. In one second of a busy host the guest may hardly be idle.
        for round in 0.. {
            let before = fs::metadata(&path).unwrap().ino();
            demo_in(folder.path(), &[]).quiet();
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
    let names = "weaver-101 weave weave_cloth stretch_with_interrupts_off system_call_entry store_wool halt";
    names
        .split(' ')
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
        assert_eq!(ran.quiet().lines().count(), 1);
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
        let (demo, socket) = serve(folder.path(), &["--hz", "1000", "--jitter"]);
        let said = run(["status", "-s", &socket]).quiet();
        assert!(said.contains("1000 Hz by thread with jitter"), "{said}");
        let said = run(["top", "-s", &socket, "--count", "1", "--interval", "2"]).quiet();
        assert!(said.contains("weaver"), "{said}");
        let ran = interrupt(demo);
        let said = &ran.stderr;
        assert!(
            ran.status == 0 && said.starts_with("kvmprof: ") && said.contains(&socket),
            "{ran:?}"
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
            let truth = path(truth);
            let (demo, socket) = serve(folder.path(), &["--truth", truth.to_str().unwrap()]);
            run(["top", "-s", &socket, "--count", "1", "--interval", "1"]).quiet();
            interrupt(demo).status
        };
        assert_eq!(end("truth"), 0);
        let mode = fs::metadata(path("truth")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o600);
        let truth: Value = serde_json::from_slice(&fs::read(path("truth")).unwrap()).unwrap();
        assert!(truth.is_object() || truth.is_array(), "{truth}");
        assert_eq!(end("link"), 1);
        assert_eq!(fs::read(&precious).unwrap(), b"old");
    });
}
