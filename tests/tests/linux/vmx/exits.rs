//! Exits and faults of guest memory, where the programs and the checks are those of hosts with SVM, and user stacks in samples by the host's kernel, which doesn't know the
//! stack pointer.

use std::path::Path;

use kvmprof_recording::{Mode, StackEnd};
use kvmprof_tests::linux::{Finished, Program, Scenario, debian, guest_init, guest_program, once};

use crate::attach::COMMON as ATTACHED;
use crate::exits::{
    COMMON, INIT, PERF, VMX, check_port_writes, counts_are_those_of_perf,
    faults_are_the_pages_that_the_guest_touches_first, first_touch, program,
    tables_and_lists_have_all_faults,
};
use crate::record::{NamedSample, most, read};

/// The link address of the program with call stacks.
const CALLS: u64 = 0x2000_0000;

fn calls() -> Program {
    guest_program("calls.c", CALLS, &["-fno-omit-frame-pointer"])
}

fn run() -> Finished {
    once("vmx-exits", || {
        let programs = [
            ("ports", &program()),
            ("first_touch", &first_touch()),
            ("calls", &calls()),
        ];
        Scenario::vmx()
            .memory(2048)
            .unpacked_kernel("vmlinuz", &debian("6.12"))
            .file("guest.cpio", guest_init(INIT, &programs))
            .installed_program(Path::new(PERF))
            .run(&format!(
                "{ATTACHED}\n{COMMON}\n{}",
                include_str!("exits.sh")
            ))
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

/// A frame pointer leads from code in user mode, the registers that the kernel has saved from code in the kernel.
#[test]
fn samples_by_the_hosts_kernel_have_user_stacks() {
    let (contents, seen) = read(&run(), "calls.kvmprof");
    assert!(contents.account.balances());
    let text = calls().text;
    let is_calls = |seen: &&NamedSample| seen.sample.comm.starts_with(b"calls\0");
    let of_calls: Vec<&NamedSample> = seen.iter().filter(is_calls).collect();
    let inner = of_calls
        .iter()
        .copied()
        .filter(|seen| text.contains(&seen.sample.pc) && seen.frames[0] == "inner");
    // The program's file is read while it runs.
    let inner: Vec<&NamedSample> = inner.skip_while(|seen| seen.frames.len() == 1).collect();
    let begin = inner[0].sample.time;
    let outwards = ["middle", "outer", "main"].map(str::to_owned);
    most("calls' stacks lead to main", &inner, 95, |seen| {
        seen.frames.get(1..4) == Some(&outwards)
    });
    let in_kernel = of_calls
        .iter()
        .filter(|seen| seen.sample.time > begin)
        .filter(|seen| seen.sample.mode != Mode::User && seen.sample.stack.user > 0);
    let whole = in_kernel
        .clone()
        .filter(|seen| seen.sample.stack.user_end == StackEnd::Complete);
    let (whole, all) = (whole.count(), in_kernel.count());
    println!("in the kernel {whole} of {all} user stacks are whole");
    assert!(whole > 0 && whole * 10 >= all * 8);
}
