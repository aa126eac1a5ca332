//! A guest of QEMU's that is attached to 200 times, and 100 more times by a kvmprof that is killed at some moment, by ptrace and by the host's kernel in turn:
//! it goes on, and nothing is left behind.

use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, guest_program, once};

use super::{COMMON, ONE};

fn run() -> Finished {
    once("attach-often", || {
        let one = guest_program("spin.c", ONE, &[]);
        Scenario::new()
            .memory(4096)
            .kernel("vmlinuz", &debian("6.12"))
            .file(
                "guest.cpio",
                guest_init(include_str!("often_init.sh"), &[("one", &one)]),
            )
            .qemu()
            .run(&format!("{COMMON}\n{}", include_str!("often.sh")))
    })
}

#[test]
fn attachments_leave_nothing_behind() {
    let run = run();
    let before = run.text("before");
    for count in ["traced 0", "programs 0", "processes 0"] {
        assert!(before.lines().any(|line| line == count), "{before}");
    }
    assert_eq!(run.text("attached"), before);
}

#[test]
fn a_killed_kvmprof_leaves_nothing_behind() {
    let run = run();
    assert_eq!(run.text("killed"), run.text("before"));
}
