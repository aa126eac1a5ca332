//! How guests end, and guests that can't begin.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeSet;

use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, pcs_kind, without_btf};

/// Statuses of `kvmprof run`.
const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;
const GUEST_PANIC: u8 = 4;

#[test]
fn guests_end_as_they_should() {
    let (old, new) = (debian("6.1"), debian("6.12"));
    let run = Scenario::new()
        .kernel("vmlinuz-6.1", &old)
        .kernel("vmlinuz-6.12", &new)
        .file("vmlinux-without-btf", without_btf(&new))
        .file("guest.cpio", guest_init(include_str!("init.sh"), &[]))
        .run(include_str!("driver.sh"));
    check_end(&run, "reboot", SUCCESS, "");
    check_end(&run, "panic", GUEST_PANIC, "sysrq triggered crash");
    check_end(&run, "unseen", GUEST_PANIC, "sysrq triggered crash");
    check_end(&run, "stopped", SUCCESS, "");
    check_end(&run, "blind", SUCCESS, "");
    check_end(&run, "no-btf", FAILURE, "BTF");
    check_end(&run, "cut-short", FAILURE, "truncated");
    check_end(&run, "elf-cut-short", FAILURE, "");
    check_end(&run, "text", FAILURE, "/tmp/text");
    check_places(&run);
    check_blind(&run);
}

/// The status, and one line that says what happened unless all is well.
fn check_end(run: &Finished, name: &str, status: u8, words: &str) {
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

/// KASLR puts each boot of a kernel elsewhere, and the status says where.
fn check_places(run: &Finished) {
    let slides: Vec<String> = ["reboot", "panic", "stopped"]
        .iter()
        .map(|name| {
            let status = run.json(&format!("{name}.slide"));
            let words = status["machine"]["introspection"]
                .as_str()
                .unwrap()
                .to_owned();
            let (_, slide) = words
                .split_once("slide ")
                .unwrap_or_else(|| panic!("{words}"));
            slide.to_owned()
        })
        .collect();
    let different: BTreeSet<&String> = slides.iter().collect();
    assert!(different.len() > 1, "{slides:?}");
}

/// Samples flow even if nothing is known of the guest.
fn check_blind(run: &Finished) {
    let stream = run.stream("blind.s");
    stream.check_accounts();
    assert!(!stream.samples.is_empty());
    for sample in &stream.samples {
        assert_eq!(sample.pid, -1, "{sample:x?}");
        assert_ne!(sample.kind, pcs_kind::KERNELI, "{sample:x?}");
    }
    assert!(stream.names.is_empty(), "{:?}", stream.names);
}
