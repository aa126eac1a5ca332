//! The independent client in Python against the same socket.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use kvmprof_abi::wire::device;
use serde_json::{Value, json};

use crate::bench::{Bench, HZ, STATUS, VCPUS, idle, user};

const CLIENT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../guest/abi/examples/pcs_client.py"
);
const CHECKS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../guest/abi/examples/page_checks.py"
);

fn command(script: &str, bench: &Bench, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    // Nothing is to be left beside the sources.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.arg(script).arg(bench.path()).args(arguments);
    command
}

fn run(bench: &Bench, arguments: &[&str]) -> String {
    run_script(CLIENT, bench, arguments)
}

fn run_script(script: &str, bench: &Bench, arguments: &[&str]) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command(script, bench, arguments).output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{arguments:?}: {text}{errors}");
    text
}

#[test]
fn records_what_was_fed() {
    let bench = Bench::start();
    for form in [&["--json"][..], &["--json", "--classic", "--limit", "100"]] {
        bench.script([user(7, 150), idle(60), user(8, 45), idle(40), user(7, 5)].concat());
        let arguments = [&["record", "--seconds", "0", "--buffers", "7"], form].concat();
        let mut result: Value = serde_json::from_str(&run(&bench, &arguments)).unwrap();
        assert_eq!(result["types"], json!({"USER": 200, "IDLE": 100}));
        let pids = json!({"7": {"USER": 155}, "8": {"USER": 45}});
        assert_eq!(result["pids"], pids);
        assert_eq!(result["ledger"]["ticks"], 300);
        assert_eq!(result["faults"], json!([]));
        assert_eq!(
            (&result["hz"], &result["vcpus"]),
            (&json!(HZ), &json!(VCPUS))
        );
        assert_eq!(result["lost_by_headers"].take(), 0);
    }
}

#[test]
fn loss_is_counted_alike_by_headers_and_ledger() {
    let bench = Bench::start();
    // Three buffers of 63 records; what follows finds none free.
    bench.script(user(7, 1000));
    let text = run(&bench, &["record", "--seconds", "0", "--json"]);
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["ledger"]["recorded"], 189);
    assert_eq!(result["ledger"]["lost"], 811);
    assert_eq!(result["lost_by_headers"], 811);
}

#[test]
fn table_for_people() {
    let bench = Bench::start();
    bench.script([user(7, 30), idle(10)].concat());
    let text = run(&bench, &["record", "--seconds", "0"]);
    for line in [
        "USER              30    75.0%",
        "7                 30         0         0",
        "ledger: 40 ticks at 1000 Hz on 2 vCPUs: recorded 30, merged 10",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn errors_are_those_of_the_pages() {
    let bench = Bench::start();
    let text = run_script(CHECKS, &bench, &["check"]);
    assert!(text.contains("a second open of pcs: EBUSY"), "{text}");
}

#[test]
fn broken_frames_hurt_nobody_else() {
    let bench = Bench::start();
    let text = run_script(CHECKS, &bench, &["malformed"]);
    assert!(text.contains("a second hello: closed"), "{text}");
    let state = bench.until(|state| state.clients == 0);
    assert_eq!(state.open, 0);
}

#[test]
fn killed_in_a_read_frees_the_device() {
    let bench = Bench::start();
    let mut child = command(CLIENT, &bench, &["hold", "--gather"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "open\n");
    bench.feed(user(7, 10));
    assert_eq!(bench.look().open, 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let state = bench.until(|state| state.clients == 0);
    assert_eq!((state.open, state.ledger.discarded), (0, 10));
    bench.connect().open(device::PCS, 0).unwrap();
}

#[test]
fn status_is_printed() {
    let bench = Bench::start();
    assert_eq!(run(&bench, &["status"]), STATUS);
}
