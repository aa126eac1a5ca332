//! A host with one processor, which a guest keeps busy: the threads of kvmprof that read the guest's kernel run only after a while. No sample is
//! taken before.

use kvmprof_recording::{Mode, Sample};
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, guest_program, once};

use super::attach::{COMMON, check_pids, of_program};

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

/// The number of these samples without a process.
fn unknown(name: &str, samples: &[(Sample, Vec<u64>)]) -> usize {
    let unknown = samples.iter().filter(|(sample, _)| sample.pid < 0).count();
    println!("{name}: {unknown} of {} have no process", samples.len());
    unknown
}

/// From the first sample of the kernel on.
#[test]
fn a_recording_from_the_start_has_all_processes() {
    let run = run();
    assert_eq!(run.status("own"), 0, "{}", run.text("own.stderr"));
    let (contents, samples) = run.recording("own.kvmprof");
    let account = contents.account;
    assert_eq!(contents.closed, Some(account));
    assert!(account.balances() && account.samples == samples.len() as u64);
    let is_early = |(one, _): &&(Sample, Vec<u64>)| one.mode == Mode::Kernel && one.pc < KERNEL;
    let early = samples.iter().filter(is_early).count();
    println!("{early} samples are of its first instructions");
    // It has no tasks until it has set up their location, which takes no longer than a tick.
    assert!(unknown("own", &samples) <= early + 1);
    let pid = run.pid("own", "one");
    check_pids("own", &of_program(&samples, ONE), pid, 5, 100);
}

/// Both captures get samples, and the first one has its process, too.
#[test]
fn attached_guests_have_all_processes() {
    let run = run();
    let pid = run.pid("own", "one");
    for name in ["traced", "copied"] {
        let (_, samples) = run.attached(name);
        let unknown = unknown(name, &samples) as u64;
        // The host's kernel doesn't wait for an absent page, and counts it.
        let unread = run
            .status_document(&format!("{name}.json"))
            .clock
            .unread_processes;
        assert!(unknown <= unread, "{name}: {unread} unread");
        assert!(samples.len() >= 60, "{name}");
        let of_program = of_program(&samples, ONE);
        assert!(of_program.len() >= 5, "{name}");
        assert!(of_program.iter().all(|one| one.pid == pid || one.pid < 0));
    }
}
