//! Two nodes, each in a network namespace: one Prometheus and one OTLP receiver have the guests of both.

use std::path::Path;
use std::process::Command;

use kvmprof_tests::{kvmprof, not_run, run_command};

/// The exit status where it can't be run.
const CANNOT: i32 = 77;

#[test]
fn prometheus_and_a_receiver_have_the_guests_of_both_nodes() {
    let mut nodes = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nodes"));
    let ran = run_command(nodes.arg(kvmprof().parent().unwrap()));
    if ran.status == CANNOT {
        not_run(ran.stderr.trim());
        return;
    }
    assert_eq!(ran.status, 0, "{ran:?}");
    let mut lines: Vec<String> = ran.stdout.lines().map(str::to_owned).collect();
    lines.retain(|line| !line.ends_with(": 0 ticks"));
    for (line, begin) in lines.iter().zip([
        "Prometheus: node-1, guest 1: ",
        "Prometheus: node-2, guest 2: ",
        "OTLP receiver: node-1, guest 1: ",
        "OTLP receiver: node-2, guest 2: ",
    ]) {
        assert!(line.starts_with(begin), "{ran:?}");
    }
    assert_eq!(lines.len(), 4, "{ran:?}");
}
