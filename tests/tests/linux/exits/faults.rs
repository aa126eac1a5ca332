//! Samples of faults of guest memory: a program writes to pages that nobody has touched, twice to each. The guest's kernel leaves this memory alone, so that their addresses are
//! known, and the host makes one page at a time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kvmprof_recording::{FaultKind, MemoryFault, Sample};
use kvmprof_tests::host_stacks;
use kvmprof_tests::linux::{Finished, Program, guest_program};

use super::super::attach::ONE;
use super::number;

/// The memory of the program, and the number of pages that it writes to once the recording has begun: fewer than a vCPU's ring has room for.
const MEMORY: u64 = 0x1800_0000;
const PAGES: u64 = 128;
/// The memory that a handler brings, and the number of its pages that are brought once the recording has begun.
const LAZY: u64 = 0x1_0000;
const LAZY_PAGES: u64 = 64;
/// The program's name, as the kernel has it.
const NAME: &[u8] = b"first_touch\0";

pub fn program() -> Program {
    guest_program("first_touch.c", ONE, &[])
}

/// The faults at which the recording `name` has samples, and the number of those without one.
fn faults(run: &Finished, name: &str) -> (Vec<(Sample, MemoryFault)>, u64) {
    let (contents, samples) = run.recording(name);
    let event = contents.info.event.map(|event| event.to_string());
    assert_eq!(event.as_deref(), Some("page-faults:1"));
    let frames = host_stacks(&samples, &contents);
    let faults = samples.into_iter().map(|(sample, _)| {
        let fault = sample.fault.expect("each has its fault");
        (sample, fault)
    });
    let faults: Vec<(Sample, MemoryFault)> = faults.collect();
    let expected = faults.iter().map(|(_, fault)| {
        let name = fault.kind.name().to_owned();
        vec![(name, "[host:fault]".to_owned())]
    });
    assert_eq!(frames, expected.collect::<Vec<_>>());
    (faults, contents.account.lost)
}

pub fn faults_are_the_pages_that_the_guest_touches_first(run: &Finished) {
    let (faults, lost) = faults(run, "touch.kvmprof");
    let memory = MEMORY..MEMORY + PAGES * MemoryFault::PAGE;
    let of_memory = faults
        .iter()
        .filter(|(_, fault)| memory.contains(&fault.address));
    let of_memory: Vec<&(Sample, MemoryFault)> = of_memory.collect();
    let pages: BTreeSet<u64> = of_memory.iter().map(|(_, fault)| fault.page()).collect();
    let (seen, distinct) = (of_memory.len() as u64, pages.len() as u64);
    println!(
        "{seen} faults of {distinct} of {PAGES} pages; {} of others, {lost} lost",
        faults.len() as u64 - seen
    );
    assert_eq!(seen, distinct, "each page once");
    assert_eq!(seen, PAGES);
    let text = program().text;
    for (sample, fault) in of_memory {
        assert_eq!(fault.kind, FaultKind::FirstTouch, "{sample:?}");
        assert!(sample.comm.starts_with(NAME), "{sample:?}");
        assert!(text.contains(&sample.pc), "{sample:?}");
        assert!(fault.slot.is_some_and(|slot| slot <= fault.address));
        assert!(fault.time > 0);
    }
    // Between an exit and its entry there is no other one of the vCPU.
    let (first, last) = (faults.first().unwrap(), faults.last().unwrap());
    let together: u64 = faults.iter().map(|(_, fault)| fault.time).sum();
    assert!(together <= 2 * (last.0.time - first.0.time + last.1.time));
}

/// What the first fault of each page was among those of the recording `name` at these addresses. Its memory may change while KVM has a page brought: the guest then has
/// another fault, at which the page is there.
fn kinds(run: &Finished, name: &str, addresses: Range<u64>) -> BTreeMap<u64, FaultKind> {
    let (faults, lost) = faults(run, name);
    println!("{} faults, {lost} lost", faults.len());
    let mut kinds = BTreeMap::new();
    let faults = faults.iter().map(|(_, fault)| fault);
    for fault in faults.filter(|fault| addresses.contains(&fault.address)) {
        match kinds.entry(fault.page()) {
            Entry::Vacant(page) => drop(page.insert(fault.kind)),
            Entry::Occupied(_) => assert_eq!(fault.kind, FaultKind::Mapped, "{fault:?}"),
        }
    }
    kinds
}

/// Another thread waits for the pages, while the vCPU halts.
pub fn each_page_that_was_in_swap_is_read_at_its_first_fault(run: &Finished) {
    let kinds = kinds(
        run,
        "swapped.kvmprof",
        MEMORY..MEMORY + PAGES * MemoryFault::PAGE,
    );
    assert_eq!(kinds.len() as u64, PAGES);
    let reads = kinds.values().all(|kind| *kind == FaultKind::SwapIn);
    assert!(reads, "{kinds:?}");
}

pub fn each_page_of_a_userfaultfd_is_brought_at_its_first_fault(run: &Finished) {
    let kinds = kinds(run, "lazy.kvmprof", LAZY..1 << 20);
    // The first ones were brought before the recording had begun.
    let written = run.text("lazy.pages").lines().count() as u64 - 1;
    let last = LAZY + written * MemoryFault::PAGE;
    let expected = (last - LAZY_PAGES * MemoryFault::PAGE..last).step_by(4096);
    let missing: Vec<u64> = expected.filter(|page| !kinds.contains_key(page)).collect();
    assert!(missing.is_empty(), "{missing:x?}");
    let of_handler = kinds.values().all(|kind| *kind == FaultKind::Userfault);
    assert!(of_handler, "{kinds:?}");
}

pub fn tables_and_lists_have_all_faults(run: &Finished) {
    let (faults, _) = faults(run, "touch.kvmprof");
    let document = run.json("faults.json");
    let of_recording = &document["recordings"][0]["faults"];
    let count = |table: &str, is_wanted: &dyn Fn(&str, &str) -> bool| -> u64 {
        let rows = of_recording[table].as_array().unwrap().iter();
        let word = |row: &serde_json::Value, member: &str| row[member].as_str().unwrap().to_owned();
        rows.filter(|row| is_wanted(&word(row, "name"), &word(row, "kind")))
            .map(|row| number(row, "count"))
            .sum()
    };
    for table in ["kinds", "processes", "functions", "places"] {
        assert_eq!(count(table, &|_, _| true), faults.len() as u64, "{table}");
    }
    let first_touches = faults.iter().filter(|(sample, fault)| {
        sample.comm.starts_with(NAME) && fault.kind == FaultKind::FirstTouch
    });
    let of_program = count("processes", &|name, kind| {
        name.starts_with("first_touch-") && kind == "first-touch"
    });
    // A process that was forked for the program counts under its name, too.
    assert!(of_program >= first_touches.count() as u64);
    let pages: BTreeSet<u64> = faults
        .iter()
        .filter(|(_, fault)| fault.kind != FaultKind::Device)
        .map(|(_, fault)| fault.page())
        .collect();
    assert_eq!(number(of_recording, "pages"), pages.len() as u64);
    let curve = of_recording["curve"].as_array().unwrap();
    assert_eq!(number(curve.last().unwrap(), "pages"), pages.len() as u64);
    let list = run.text("pages");
    let mut listed = BTreeSet::new();
    for line in list.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [address, bytes, slot] = words[..] else {
            panic!("{line}")
        };
        let hexadecimal = |word: &str| u64::from_str_radix(&word[2..], 16).unwrap();
        let (address, bytes) = (hexadecimal(address), bytes.parse::<u64>().unwrap());
        assert!(hexadecimal(slot) <= address && bytes.is_multiple_of(MemoryFault::PAGE));
        let run = (0..bytes / MemoryFault::PAGE).map(|page| address + page * MemoryFault::PAGE);
        assert!(run.into_iter().all(|page| listed.insert(page)), "{line}");
    }
    assert_eq!(listed, pages);
}
