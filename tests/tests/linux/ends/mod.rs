//! Control of guests, and their ends.

mod control;

use std::collections::BTreeSet;

use kvmprof_recording::Mode;
use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_builder, guest_init, once, pcs_kind,
    undescribed_without_mounts,
};

use crate::images::memtest;

/// The drivers of the power button, and of the nodes of input devices.
const BUTTON_MODULES: [&str; 2] = ["button", "evdev"];

/// Statuses of `kvmprof run`.
const SUCCESS: u8 = 0;
const GUEST_PANIC: u8 = 4;

/// All guests, one after the other.
fn run() -> Finished {
    once("ends", || {
        let (old, new) = (debian("6.1"), debian("6.12"));
        let control = guest_builder(include_str!("control_init.sh"), &[]);
        let control = control.modules(&new, &BUTTON_MODULES);
        Scenario::new()
            .unpacked_kernel("vmlinuz", &new)
            .file("control.cpio", control.build().unwrap())
            .kernel("vmlinuz-6.1", &old)
            .kernel("vmlinuz-6.12", &new)
            .file("vmlinux-undescribed", undescribed_without_mounts(&new))
            .file("end.cpio", guest_init(include_str!("init.sh"), &[]))
            .file("memtest", memtest())
            .run(include_str!("driver.sh"))
    })
}

#[test]
fn a_reboot_is_a_success() {
    check_end("reboot", SUCCESS, "");
}

#[test]
fn a_panic_has_a_status_of_its_own() {
    check_end("panic", GUEST_PANIC, "sysrq triggered crash");
}

#[test]
fn a_panic_is_noticed_without_earlier_samples() {
    check_end("unseen", GUEST_PANIC, "sysrq triggered crash");
}

#[test]
fn a_guest_can_be_stopped() {
    check_end("stopped", SUCCESS, "");
}

#[test]
fn a_guest_without_introspection_can_be_run() {
    check_end("blind", SUCCESS, "");
}

/// A kernel without BTF, ORC and names of variables: its code gives the running task. The guest prints which process uses
/// the processor.
#[test]
fn processes_of_a_kernel_without_btf_are_known() {
    check_end("undescribed", SUCCESS, "");
    let run = run();
    let console = run.text("undescribed.console");
    let said = console.lines().find_map(|line| line.strip_prefix("burns "));
    let pid: i32 = said.and_then(|pid| pid.trim().parse().ok()).unwrap();
    let stream = run.stream("undescribed.s");
    stream.check_accounts();
    let known = stream
        .samples
        .iter()
        .filter(|sample| sample.pid == pid)
        .count();
    println!("{known} of {} samples are of {pid}", stream.samples.len());
    assert!(
        known * 2 > stream.samples.len(),
        "{known} of {}",
        stream.samples.len()
    );
    assert_eq!(
        stream.names.get(&pid).map(String::as_str),
        Some("dd"),
        "{:?}",
        stream.names
    );
    let kinds = [pcs_kind::USER, pcs_kind::KERNEL];
    for kind in kinds {
        let found = stream.of_kind(kind).any(|sample| sample.pid == pid);
        assert!(found, "no sample of kind {kind}");
    }
    // The status, the end of a recording, and its report name the missing facts.
    for place in ["told", "recorded", "reported"] {
        let said = run.text(&format!("undescribed.{place}"));
        let expected = [
            "No paths beyond a file's own mount: vfsmount.mnt_root isn't known",
            "No perf maps out of the guest's memory: dentry.d_subdirs isn't known",
        ];
        let gaps = said.lines().filter(|line| line.contains("isn't known ("));
        let gaps: Vec<&str> = gaps.collect();
        assert_eq!(gaps.len(), expected.len(), "{place}: {said}");
        for (gap, expected) in gaps.iter().zip(expected) {
            assert!(gap.contains(expected), "{place}: {said}");
        }
    }
}

/// The status, and one line that names the cause of an error.
fn check_end(name: &str, status: u8, words: &str) {
    let run = run();
    let said = run.text(&format!("{name}.stderr"));
    println!("{name}: {} {said}", run.status(name));
    assert_eq!(run.status(name), status, "{name}: {said}");
    let lines = usize::from(status != SUCCESS);
    assert_eq!(said.lines().count(), lines, "{name}: {said}");
    assert!(
        said.to_lowercase().contains(&words.to_lowercase()),
        "{name}: {said}"
    );
}

/// KASLR moves each boot of a kernel, and the status has the address.
#[test]
fn each_boot_has_another_address() {
    let run = run();
    let slides = ["reboot", "panic", "stopped"].map(|name| {
        let (_, slide) = run.placement(&format!("{name}.placement"));
        slide.unwrap()
    });
    let different = BTreeSet::from(slides);
    assert!(different.len() > 1, "{slides:x?}");
}

/// Samples are taken without introspection of the guest.
#[test]
fn samples_are_taken_without_introspection() {
    let run = run();
    let stream = run.stream("blind.s");
    stream.check_accounts();
    assert!(!stream.samples.is_empty());
    for sample in &stream.samples {
        assert_eq!(sample.pid, -1, "{sample:x?}");
        assert_ne!(sample.kind, pcs_kind::KERNELI, "{sample:x?}");
    }
    assert!(stream.names.is_empty(), "{:?}", stream.names);
}

#[test]
fn memtest_runs_and_is_sampled() {
    let run = run();
    assert_eq!(run.status("memtest"), 0, "{}", run.text("memtest.stderr"));
    let (contents, samples) = run.recording("memtest.kvmprof");
    assert!(contents.account.balances() && contents.kernel.is_none());
    assert!(samples.len() >= 200, "{}", samples.len());
    let is_plain = |mode, pid| mode == Mode::Kernel && pid == -1;
    assert!(
        samples
            .iter()
            .all(|(sample, _)| is_plain(sample.mode, sample.pid))
    );
    // It is at more than one place.
    let mut places: Vec<u64> = samples.iter().map(|(sample, _)| sample.pc).collect();
    places.sort_unstable();
    places.dedup();
    assert!(places.len() > 3, "{places:x?}");
}
