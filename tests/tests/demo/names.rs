//! Names of a guest whose image lacks a symbol, or has one with an unusual name.

use std::path::Path;
use std::process::Command;

use kvmprof_demo_guest::symbol;
use kvmprof_tests::{Boot, Guest, on_kvm, recorded_with_frames, run, until, write_kernel};

/// Records the demo guest, whose image objcopy(1) has changed with `options`. Returns the names of the code of the function `weave`, by
/// the recording.
fn names_of_weave(folder: &Path, options: &[&str]) -> Vec<String> {
    let image = write_kernel(Boot::Demo, folder);
    let status = Command::new("objcopy").args(options).arg(&image).status();
    assert!(status.unwrap().success());
    let path = folder.join("recording");
    let record = ["--hz", "1000", "--record", path.to_str().unwrap()];
    let mut guest = Guest::start_kernel(Boot::Demo, &image, record);
    until("enough is recorded", || {
        let status = guest.status();
        let ledger = status.recorders().next()?.ledger;
        (ledger.recorded >= 1000).then_some(())
    });
    assert_eq!(guest.command("control", &["stop"]).status, 0);
    assert_eq!(guest.wait().status, 0);
    let weave = symbol("weave").unwrap();
    let (samples, _) = recorded_with_frames(&path);
    let is_in_weave = |pc: u64| pc.wrapping_sub(weave.address) < weave.size;
    let ticks = samples
        .iter()
        .filter(|(sample, _)| is_in_weave(sample.pc))
        .count();
    let folded = run(["export", "--format", "folded", path.to_str().unwrap()]).stdout;
    let mut names = Vec::new();
    let mut counted = 0;
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let innermost = stack.rsplit(';').next().unwrap();
        let hexadecimal = innermost.strip_prefix("0x");
        let address = hexadecimal.and_then(|text| u64::from_str_radix(text, 16).ok());
        let is_named = ["weave", "gr\u{f6}\u{df}e"].contains(&innermost);
        if is_named || address.is_some_and(is_in_weave) {
            names.push(innermost.to_owned());
            counted += count.parse::<u64>().unwrap();
        }
    }
    assert_eq!(counted, u64::try_from(ticks).unwrap(), "{folded}");
    assert!(counted > 0);
    names
}

#[test]
fn code_whose_symbol_was_removed_is_named_after_no_other_function() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let names = names_of_weave(folder.path(), &["--strip-symbol=weave"]);
        assert!(
            names.iter().all(|name| name.starts_with("0x6000")),
            "{names:?}"
        );
    });
}

#[test]
fn a_name_may_have_letters_of_any_language() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let options = ["--redefine-sym", "weave=gr\u{f6}\u{df}e"];
        let names = names_of_weave(folder.path(), &options);
        assert!(
            names.iter().all(|name| name == "gr\u{f6}\u{df}e"),
            "{names:?}"
        );
    });
}
