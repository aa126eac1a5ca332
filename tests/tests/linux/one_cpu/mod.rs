//! A host with one processor, which a guest keeps busy: the threads of kvmprof that read the guest's kernel run only after a while. No sample is
//! taken before.

use kvmprof_recording::{Mode, Sample};
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, guest_program, once};

use super::attach::COMMON;

/// The link address of the busy program.
const ONE: u64 = 0x1000_0000;
/// The start of the kernel's addresses. Its first instructions run below.
const KERNEL: u64 = 1 << 63;

fn run() -> Finished {
    once("one-cpu", || {
        let one = guest_program("spin.c", ONE, &[]);
        let init = guest_init(include_str!("init.sh"), &[("one", &one)]);
        Scenario::new()
            .cpus(1)
            // Its guest needn't unpack it, so that it has processes sooner.
            .unpacked_kernel("vmlinux", &debian("6.12"))
            .file("guest.cpio", init)
            .run(&format!("{COMMON}\n{}", include_str!("driver.sh")))
    })
}

/// The samples of a recording, which is complete, and the number of those without a process.
fn samples(run: &Finished, name: &str) -> (Vec<Sample>, usize) {
    let (contents, samples) = run.recording(&format!("{name}.kvmprof"));
    let account = contents.account;
    println!("{name}: {account:?}");
    assert_eq!(contents.closed, Some(account), "{name}");
    assert!(account.balances() && account.samples == samples.len() as u64);
    let samples: Vec<Sample> = samples.into_iter().map(|(sample, _)| sample).collect();
    let unknown = samples.iter().filter(|sample| sample.pid < 0).count();
    println!("{name}: {unknown} of {} have no process", samples.len());
    (samples, unknown)
}

fn of_program(samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    let text = ONE..ONE + 0x100_0000;
    (samples.iter()).filter(move |one| one.mode == Mode::User && text.contains(&one.pc))
}

/// From the first sample of the kernel on.
#[test]
fn a_recording_from_the_start_has_all_processes() {
    let run = run();
    assert_eq!(run.status("own"), 0, "{}", run.text("own.stderr"));
    let (samples, unknown) = samples(&run, "own");
    let is_early = |one: &&Sample| one.mode == Mode::Kernel && one.pc < KERNEL;
    let early = samples.iter().filter(is_early).count();
    println!("{early} samples are of its first instructions");
    // It has no tasks until it has set up their location, which takes no longer than a tick.
    assert!(unknown <= early + 1);
    let pid = run.console("own").number("pid one ");
    assert!(of_program(&samples).count() >= 5);
    assert!(of_program(&samples).all(|one| one.pid == pid));
}

/// Both captures get samples, and the first one has its process, too.
#[test]
fn attached_guests_have_all_processes() {
    let run = run();
    let pid = run.console("own").number("pid one ");
    for name in ["traced", "copied"] {
        let said = run.text(&format!("{name}.attach"));
        let status = run.text(&format!("{name}.attach.status"));
        assert_eq!(status.trim(), "0", "{said}");
        let (samples, unknown) = samples(&run, name);
        // The host's kernel doesn't wait for an absent page, and counts it.
        let unread = run
            .status_document(&format!("{name}.json"))
            .clock
            .unread_processes;
        assert!(
            unknown as u64 <= unread,
            "{name}: {unknown}, {unread} unread"
        );
        assert!(samples.len() >= 60, "{name}");
        assert!(of_program(&samples).count() >= 5, "{name}");
        assert!(of_program(&samples).all(|one| one.pid == pid || one.pid < 0));
    }
}
