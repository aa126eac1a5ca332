//! Names of a guest whose image lacks a symbol, or has one with an unusual name.

use std::fs;
use std::path::Path;

use kvmprof_demo_guest::symbol;
use kvmprof_tests::{Boot, Guest, on_kvm, recorded_with_frames, run};

/// Another name for the function `weave`, as long in bytes.
const RENAMED: &str = "w\u{f6}ve";

/// The offset of `part` in `bytes`.
fn position(bytes: &[u8], part: &[u8]) -> usize {
    let mut windows = bytes.windows(part.len());
    windows.position(|window| window == part).unwrap()
}

/// Records the demo guest, with the image `elf`. Returns the names of the code of the function `weave` in the recording.
fn names_of_weave(folder: &Path, elf: &[u8]) -> Vec<String> {
    let image = folder.join("image");
    fs::write(&image, elf).unwrap();
    let path = folder.join("recording");
    let record = ["--hz", "1000", "--record", path.to_str().unwrap()];
    let mut guest = Guest::start_kernel(Boot::Demo, &image, record);
    guest.until_recorded(1000);
    guest.control("stop");
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
        let is_named = ["weave", RENAMED].contains(&innermost);
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
fn code_without_its_symbol_gets_no_other_name() {
    on_kvm(|| {
        let mut elf = Boot::Demo.image().elf().to_vec();
        let weave = symbol("weave").unwrap();
        // An Elf64_Sym has its section's number before its value and its size. 0 is none.
        let value = [weave.address.to_le_bytes(), weave.size.to_le_bytes()].concat();
        let at = position(&elf, &value);
        elf[at - 2..at].fill(0);
        let folder = tempfile::tempdir().unwrap();
        let names = names_of_weave(folder.path(), &elf);
        let are_numbers = names.iter().all(|name| name.starts_with("0x6000"));
        assert!(are_numbers, "{names:?}");
    });
}

#[test]
fn a_name_may_have_letters_of_any_language() {
    on_kvm(|| {
        let mut elf = Boot::Demo.image().elf().to_vec();
        let at = position(&elf, b"\0weave\0");
        elf[at + 1..at + 6].copy_from_slice(RENAMED.as_bytes());
        let folder = tempfile::tempdir().unwrap();
        let names = names_of_weave(folder.path(), &elf);
        assert!(names.iter().all(|name| name == RENAMED), "{names:?}");
    });
}
