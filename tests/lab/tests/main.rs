//! Tests of the lab. They are one program: each would link the whole crate again.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod command;
mod machine;
mod vmx;

use std::fs;
use std::time::Duration;

use kvmprof_lab::{Lab, LabError, Outcome};

/// The status and each byte of both streams of a command, which also runs `more` of a script with these bytes in `/lab/bytes`.
fn check_status_and_streams(lab: Lab, more: &str) -> Outcome {
    let bytes: Vec<u8> = (0..=255).cycle().take(300_001).collect();
    let script = format!("cat /lab/bytes; printf 'a\\r\\n\\0b' >/dev/stderr\n{more}\nexit 37");
    let lab = lab.contents("/lab/bytes", 0o600, bytes.clone());
    let outcome = lab.script(&script).run().unwrap();
    let stdout = &outcome.stdout;
    assert_eq!(outcome.status, 37);
    assert!(*stdout == bytes, "{} bytes came", stdout.len());
    assert_eq!(outcome.stderr, b"a\r\n\0b");
    outcome
}

/// A panic of the machine's kernel is reported with the console.
fn check_panic(lab: Lab) {
    let error = lab.script("echo c >/proc/sysrq-trigger").run().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LabError::WentDown { .. }), "{text}");
    let words = "went down before its command was done";
    assert!(text.contains(words), "{text}");
    assert!(text.contains("sysrq triggered crash"), "{text}");
}

/// A machine whose script ends with `hang` is ended, and its output until then returned.
fn check_hang(lab: Lab, hang: &str) -> LabError {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("trap '' TERM INT; echo first >$LAB_OUT/file; echo begun >&2\n{hang}");
    let lab = lab.quiet_limit(Duration::from_secs(10)).out(folder.path());
    let error = lab.script(&script).run().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LabError::Silent { .. }), "{text}");
    let words = "Nothing came from the lab machine for 10 s";
    assert!(text.starts_with(words), "{text}");
    let traces = error.traces().unwrap();
    assert_eq!(traces.out_failure, None, "{text}");
    assert!(traces.stderr.starts_with("begun\n"), "{text}");
    let left = fs::read_to_string(folder.path().join("file")).unwrap();
    assert_eq!(left, "first\n");
    error
}
