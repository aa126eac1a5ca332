//! Faults of guest memory in recordings with known ones.

use std::collections::BTreeMap;
use std::path::Path;

use kvmprof_recording::file::{ProcessLabels, Recording, Unobserved};
use kvmprof_recording::{FaultKind, MemoryFault, Mode, Sample, comm_of};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::faults::{FaultRow, FaultWatcher, Faults, TouchedPages};
use kvmprof_report::profile::{Profile, Selection};
use kvmprof_report::symbolize::Resolver;

use crate::shared::recordings::Written;

const SYMBOLS: &str = "ffffffff81000000 T clear_page\nffffffff81001000 T copy_mc\n";
const CLEAR: u64 = 0xffff_ffff_8100_0010;
const COPY: u64 = 0xffff_ffff_8100_1010;
/// Where the second memory slot begins.
const HIGH: u64 = 1 << 32;

/// A fault, of the process with this pid and name, in a function: its address, its kind and its time in ns.
type Known = (i32, &'static str, u64, (Option<u64>, u64), FaultKind, u64);

/// One a tick of 1 ms, from 1 ms on.
const KNOWN: [Known; 7] = {
    use FaultKind::{Device, FirstTouch, Waited, WriteAfterShare};
    [
        (7, "init", CLEAR, (Some(0), 0x5008), FirstTouch, 2000),
        (7, "init", CLEAR, (Some(0), 0x6000), FirstTouch, 4000),
        (8, "nginx", COPY, (Some(HIGH), HIGH + 8), Waited, 90_000),
        // A page that was touched before.
        (8, "nginx", COPY, (Some(0), 0x5ff8), WriteAfterShare, 5000),
        (8, "nginx", CLEAR, (Some(HIGH), HIGH), FirstTouch, 3000),
        (8, "nginx", COPY, (None, 0xfee0_0020), Device, 700),
        (8, "nginx", COPY, (None, 0xfee0_0030), Device, 800),
    ]
};

fn write(path: &Path, known: &[Known]) {
    let mut written = Written::with_symbols(SYMBOLS);
    written.info.hz = 0;
    written.info.event = Some("page-faults:1".parse().unwrap());
    let labels = BTreeMap::from([("container".to_owned(), "4f1d".to_owned())]);
    let of_nginx = ProcessLabels {
        pid: 8,
        time: 1,
        labels,
    };
    written.guest.push(of_nginx.to_block().unwrap());
    for (pid, name, pc, (slot, address), kind, time) in known {
        let sample = Sample {
            pid: *pid,
            tid: *pid,
            comm: comm_of(name),
            mode: Mode::Kernel,
            fault: Some(MemoryFault {
                address: *address,
                slot: *slot,
                kind: *kind,
                time: *time,
            }),
            ..Sample::default()
        };
        written.samples_like(&sample, 1, (&[*pc], &[]));
    }
    written.write(path);
}

fn faults(known: &[Known], selection: &str, top: usize) -> (Faults, TouchedPages) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faults");
    write(&path, known);
    let recording = Recording::open(&path).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let selection = Selection {
        time: selection.parse().unwrap(),
        ..Selection::default()
    };
    let mut watcher = FaultWatcher::default();
    let profile =
        Profile::read_with(&recording, selection, resolver, &Unobserved, &mut watcher).unwrap();
    let budget = OutputBudget::new(1 << 20);
    let faults = Faults::new(&profile, &watcher, top, &budget).unwrap();
    (faults, watcher.into_pages())
}

/// The name, the kind, the count, the time and the longest time of each row.
fn plain(rows: &[FaultRow]) -> Vec<(&str, &str, u64, u64, u64)> {
    let rows = rows.iter();
    rows.map(|row| {
        let FaultRow {
            name,
            kind,
            count,
            time_ns,
            longest_ns,
        } = row;
        (name.as_str(), *kind, *count, *time_ns, *longest_ns)
    })
    .collect()
}

#[test]
fn sums_are_those_of_the_samples() {
    let (found, _) = faults(&KNOWN, ":", usize::MAX);
    let expected = [
        ("waited", "waited", 1, 90_000, 90_000),
        ("first-touch", "first-touch", 3, 9000, 4000),
        ("write-after-share", "write-after-share", 1, 5000, 5000),
        ("device", "device", 2, 1500, 800),
    ];
    assert_eq!(plain(&found.kinds), expected);
    let expected = [
        ("nginx-8", "waited", 1, 90_000, 90_000),
        ("init-7", "first-touch", 2, 6000, 4000),
        ("nginx-8", "write-after-share", 1, 5000, 5000),
        ("nginx-8", "first-touch", 1, 3000, 3000),
        ("nginx-8", "device", 2, 1500, 800),
    ];
    assert_eq!(plain(&found.processes), expected);
    let expected = [
        ("4f1d", "waited", 1, 90_000, 90_000),
        ("-", "first-touch", 2, 6000, 4000),
        ("4f1d", "write-after-share", 1, 5000, 5000),
        ("4f1d", "first-touch", 1, 3000, 3000),
        ("4f1d", "device", 2, 1500, 800),
    ];
    assert_eq!(plain(&found.containers), expected);
    let expected = [
        ("copy_mc ([kernel])", "waited", 1, 90_000, 90_000),
        ("clear_page ([kernel])", "first-touch", 3, 9000, 4000),
        ("copy_mc ([kernel])", "write-after-share", 1, 5000, 5000),
        ("copy_mc ([kernel])", "device", 2, 1500, 800),
    ];
    assert_eq!(plain(&found.functions), expected);
    let expected = [
        ("slot at 0x100000000", "waited", 1, 90_000, 90_000),
        ("slot at 0x0", "first-touch", 2, 6000, 4000),
        ("slot at 0x0", "write-after-share", 1, 5000, 5000),
        ("slot at 0x100000000", "first-touch", 1, 3000, 3000),
        ("page 0xfee00000", "device", 2, 1500, 800),
    ];
    assert_eq!(plain(&found.places), expected);
}

#[test]
fn the_curve_has_the_pages_touched_until_then() {
    let (found, pages) = faults(&KNOWN, ":", usize::MAX);
    assert_eq!(
        (found.pages, pages.count(), found.pages_left_out),
        (3, 3, 0)
    );
    assert_eq!(found.curve.len(), 20);
    let at = |time_ns: u64| {
        let point = found.curve.iter().find(|point| point.time_ns >= time_ns);
        point.unwrap().pages
    };
    // The last fault is at 7 ms.
    assert_eq!(found.curve.last().unwrap().time_ns, 7_000_000);
    assert_eq!(
        [700_000, 1_050_000, 2_100_000, 3_150_000].map(at),
        [0, 1, 2, 3]
    );
    assert_eq!(found.curve.last().unwrap().pages, 3);
}

#[test]
fn a_part_has_its_own_faults() {
    // From 2.5 ms to 5.5 ms.
    let (found, pages) = faults(&KNOWN, "0.0025:0.0055", 2);
    let expected = [
        ("nginx-8", "waited", 1, 90_000, 90_000),
        ("nginx-8", "write-after-share", 1, 5000, 5000),
    ];
    assert_eq!(plain(&found.processes), expected);
    let of_part: Vec<u64> = pages.in_order().iter().map(|page| page.address).collect();
    assert_eq!(of_part, [HIGH, 0x5000]);
    assert_eq!(found.curve.last().unwrap().time_ns, 2_500_000);
}

#[test]
fn recordings_have_common_pages() {
    let (_, all) = faults(&KNOWN, ":", 1);
    let (_, some) = faults(&KNOWN[1..4], ":", 1);
    let (_, others) = faults(&KNOWN[5..], ":", 1);
    assert_eq!((all.count(), some.count(), others.count()), (3, 3, 0));
    assert_eq!([&some, &others].map(|one| all.common(one)), [3, 0]);
    let mut list = Vec::new();
    some.write_list(&mut list).unwrap();
    let expected = "0x6000 4096 0x0\n0x100000000 4096 0x100000000\n0x5000 4096 0x0\n";
    assert_eq!(String::from_utf8(list).unwrap(), expected);
}
