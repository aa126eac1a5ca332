//! The memory balloon, with a driver that knows which pages it gives up: the host has them, and all others stay as they were.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kvmprof_tests::{Boot, Guest, on_kvm, until};

const MIB: u64 = 1 << 20;
/// What the balloon is to hold, and that in pages.
const HELD: u64 = 24 * MIB;
const PAGES: u64 = HELD / 4096;
/// What the host has to have of it then; beside that, kvmprof may need some memory itself.
const LEAST: u64 = 20 * MIB;
/// Bytes of a block of stat(2).
const BLOCK: u64 = 512;

fn set(guest: &Guest, size: &str) {
    let ran = guest.command("control", &["balloon", size]);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
}

/// What the guest has said so far, once that is a line for each of so many changes: how much the balloon held.
fn held(guest: &Guest, changes: usize) -> Vec<u64> {
    let console = until("the guest has followed", || {
        let console = guest.console();
        assert!(!console.contains("failed"), "{console}");
        let lines = console
            .lines()
            .filter(|line| line.starts_with("wrong "))
            .count();
        (lines == changes && console.ends_with('\n')).then_some(console)
    });
    // Of the pages that it has, none is another one, and those that came back were empty.
    for line in console.lines().filter(|line| line.starts_with("wrong ")) {
        assert_eq!(line.trim_end(), "wrong 0", "{console}");
    }
    let numbers = console
        .lines()
        .filter_map(|line| line.strip_prefix("held "));
    numbers
        .map(|number| number.trim_end().parse().unwrap())
        .collect()
}

/// Bytes of the host's memory or disk that the guest has: of the file, if its memory is one.
fn taken(guest: &Guest, file: Option<&Path>) -> u64 {
    match file {
        Some(file) => fs::metadata(file).unwrap().blocks() * BLOCK,
        None => guest.resident_bytes(),
    }
}

fn check(file: Option<&Path>) {
    let backing = file.map_or_else(String::new, |file| format!(",file={}", file.display()));
    let boot = Boot::Test("workload=balloon");
    let guest = Guest::start_with_memory(boot, &format!("64M{backing}"), ["--balloon"]);
    assert_eq!(held(&guest, 1), [0]);
    let before = taken(&guest, file);
    set(&guest, "24M");
    assert_eq!(held(&guest, 2), [0, PAGES]);
    until("the host has the pages", || {
        (taken(&guest, file) + LEAST <= before).then_some(())
    });
    let balloon = guest.status().machine.balloon.unwrap();
    println!("{balloon:?}");
    let all = [
        balloon.target_bytes,
        balloon.held_bytes,
        balloon.inflated_bytes,
    ];
    assert_eq!(all, [HELD; 3], "{balloon:?}");
    set(&guest, "0");
    assert_eq!(held(&guest, 3), [0, PAGES, 0]);
    assert!(taken(&guest, file) + LEAST > before);
    let balloon = guest.status().machine.balloon.unwrap();
    assert_eq!((balloon.held_bytes, balloon.deflated_bytes), (0, HELD));
    let faults = [
        balloon.refused_pages,
        balloon.queue_faults,
        balloon.refused_queues,
    ];
    assert_eq!(faults, [0; 3], "{balloon:?}");
    guest.stop();
}

#[test]
fn pages_in_the_balloon_are_the_hosts_and_the_others_stay() {
    on_kvm(|| {
        check(None);
        let folder = tempfile::tempdir().unwrap();
        check(Some(&folder.path().join("memory")));
    });
}
