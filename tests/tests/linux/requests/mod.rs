//! The cost of a guest's 4 KiB requests to a disk, compared with QEMU's virtio-blk: over virtio-mmio, like kvmprof's,
//! and over PCI.

use std::collections::BTreeMap;

use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, guest_program};

const MODULES: [&str; 3] = ["virtio_mmio", "virtio_pci", "virtio_blk"];
const PROGRAM: u64 = 0x1000_0000;

/// Number of requests of each of this number of processes, as in `driver.sh`.
const LOADS: [(u64, u64); 2] = [(3000, 1), (1000, 4)];

fn run() -> Finished {
    let kernel = debian("6.12");
    let reads = guest_program("reads.c", PROGRAM, &[]);
    let guest = guest_builder(include_str!("init.sh"), &[("reads", &reads)])
        .modules(&kernel, &MODULES)
        .build();
    Scenario::new()
        .memory(2048)
        .kernel("vmlinuz", &kernel)
        .file("guest.cpio", guest.unwrap())
        .qemu()
        .run(include_str!("driver.sh"))
}

/// The counts of one moment, by name.
fn counts(run: &Finished, name: &str) -> BTreeMap<String, u64> {
    let text = run.text(name);
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// The increase of each count by one request of `processes` at a time.
fn each(run: &Finished, guest: &str, requests: u64, processes: u64) -> BTreeMap<String, f64> {
    let before = counts(run, &format!("{guest}.{processes}.before"));
    let after = counts(run, &format!("{guest}.{processes}.after"));
    let requests = requests * processes;
    before
        .iter()
        .map(|(name, before)| {
            (
                name.clone(),
                (after[name] - before) as f64 / requests as f64,
            )
        })
        .collect()
}

#[test]
fn requests_take_no_more_exits_than_with_qemu() {
    let run = run();
    for (requests, processes) in LOADS {
        let [ours, mmio, pci] =
            ["kvmprof", "microvm", "pc"].map(|guest| each(&run, guest, requests, processes));
        println!(
            "{} at a time: {ours:.2?}\nQEMU, virtio-mmio: {mmio:.2?}\nQEMU, PCI: {pci:.2?}",
            processes
        );
        assert!(ours["exits"] <= 1.1 * mmio["exits"], "{ours:?} {mmio:?}");
    }
}
