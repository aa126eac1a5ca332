//! Machines with VT-x behave like those with SVM.

use std::fs;

use kvmprof_lab::Lab;

use crate::{check_hang, check_panic, check_status_and_streams};

#[test]
fn status_both_streams_and_the_output_folder_return_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::new()
        .vmx()
        .add(env!("CARGO_BIN_EXE_kvmprof-lab"), "/lab/kvmprof-lab")
        .out(folder.path());
    let outcome = check_status_and_streams(
        lab,
        "cp /lab/bytes $LAB_OUT
         grep -o -w -m 1 vmx /proc/cpuinfo >$LAB_OUT/machine
         kvmprof-lab probe >>$LAB_OUT/machine; nproc >>$LAB_OUT/machine",
    );
    assert!(fs::read(folder.path().join("bytes")).unwrap() == outcome.stdout);
    let machine = fs::read_to_string(folder.path().join("machine")).unwrap();
    assert_eq!(machine, "vmx\n/dev/kvm runs guests\n1\n");
}

/// The order to end the command arrives, and its output so far is returned.
#[test]
fn a_machine_that_hangs_is_ended_and_its_output_kept() {
    check_hang(Lab::new().vmx(), "while :; do :; done");
}

#[test]
fn a_panic_is_reported_with_the_console() {
    check_panic(Lab::new().vmx());
}
