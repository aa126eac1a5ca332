//! Machines with VT-x behave like those with SVM.

use std::fs;
use std::time::Duration;

use kvmprof_lab::{Lab, LabError};

#[test]
fn status_both_streams_and_the_output_folder_return_exactly() {
    let bytes: Vec<u8> = (0..=255).cycle().take(300_001).collect();
    let folder = tempfile::tempdir().unwrap();
    let outcome = Lab::new()
        .vmx()
        .contents("/lab/bytes", 0o600, bytes.clone())
        .add(env!("CARGO_BIN_EXE_kvmprof-lab"), "/lab/kvmprof-lab")
        .out(folder.path())
        .script(
            "cat /lab/bytes; printf 'a\\r\\n\\0b' >/dev/stderr; cp /lab/bytes $LAB_OUT
             grep -o -w -m 1 vmx /proc/cpuinfo >$LAB_OUT/machine
             kvmprof-lab probe >>$LAB_OUT/machine; nproc >>$LAB_OUT/machine
             exit 37",
        )
        .run()
        .unwrap();
    assert_eq!(outcome.status, 37);
    assert!(
        outcome.stdout == bytes,
        "{} bytes came",
        outcome.stdout.len()
    );
    assert_eq!(outcome.stderr, b"a\r\n\0b");
    assert!(fs::read(folder.path().join("bytes")).unwrap() == bytes);
    let machine = fs::read_to_string(folder.path().join("machine")).unwrap();
    assert_eq!(machine, "vmx\n/dev/kvm runs guests\n1\n");
}

/// The order to end the command arrives, and its output so far is returned.
#[test]
fn a_machine_that_hangs_is_ended_and_its_output_kept() {
    let folder = tempfile::tempdir().unwrap();
    let error = Lab::new()
        .vmx()
        .quiet_limit(Duration::from_secs(10))
        .out(folder.path())
        .script(
            "trap '' TERM INT; echo first >$LAB_OUT/file; echo begun >&2
             while :; do :; done",
        )
        .run()
        .unwrap_err();
    assert!(matches!(error, LabError::Silent { .. }), "{error}");
    let traces = error.traces().unwrap();
    assert_eq!(traces.out_failure, None, "{error}");
    assert!(traces.stderr.starts_with("begun\n"), "{error}");
    let left = fs::read_to_string(folder.path().join("file")).unwrap();
    assert_eq!(left, "first\n");
}

#[test]
fn a_panic_is_reported_with_the_console() {
    let error = Lab::new()
        .vmx()
        .script("echo c >/proc/sysrq-trigger")
        .run()
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LabError::WentDown { .. }), "{text}");
    assert!(text.contains("sysrq triggered crash"), "{text}");
}
