//! Exits and faults of guest memory: the program and the checks are those of hosts with SVM.

use std::path::Path;

use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, once};

use crate::exits::{
    COMMON, INIT, PERF, ReasonNames, check_port_writes, counts_are_those_of_perf,
    faults_are_the_pages_that_the_guest_touches_first, first_touch, program,
    tables_and_lists_have_all_faults,
};

const VMX: ReasonNames = ReasonNames {
    port: "IO_INSTRUCTION",
    halt: "HLT",
};

fn run() -> Finished {
    once("vmx-exits", || {
        let programs = [("ports", &program()), ("first_touch", &first_touch())];
        Scenario::vmx()
            .memory(2048)
            .unpacked_kernel("vmlinuz", &debian("6.12"))
            .file("guest.cpio", guest_init(INIT, &programs))
            .installed_program(Path::new(PERF))
            .run(&format!("{COMMON}\n{}", include_str!("exits.sh")))
    })
}

#[test]
fn exits_are_counted_as_by_perf_and_by_the_guest() {
    counts_are_those_of_perf(&run());
    check_port_writes(&run(), &VMX);
}

#[test]
fn faults_are_those_that_the_guest_makes() {
    faults_are_the_pages_that_the_guest_touches_first(&run());
    tables_and_lists_have_all_faults(&run());
}
