//! A whole Debian system on a qcow2 disk, booted by `cargo lab debian`: over passt and recorded, and over a tap.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kvmprof_recording::file::Recording;
use kvmprof_recording::{Mode, Sample, StackEnd};
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{Console, lab_command};
use kvmprof_tests::read_status;

/// A boot's console, and the status document before it was shut down.
fn check_boot(out: &Path, name: &str) {
    let read = |end: &str| fs::read_to_string(out.join(format!("{name}.{end}"))).unwrap();
    let console = Console::new(&read("console"));
    println!("{}", console.text());
    assert!(console.has("debian login: "));
    assert!(console.has("root ext4"));
    assert!(console.has("checks passed"));
    assert_eq!(console.after("failed units: ").trim(), "");
    assert_eq!(read("status").trim(), "0");
    let machine = read_status(read("status.json")).machine;
    let disk = machine.disks[0].counts;
    assert_eq!((disk.errors, disk.refused), (0, 0), "{disk:?}");
    assert_eq!(disk.queue_faults, 0, "{disk:?}");
    let network = &machine.networks[0];
    assert!(network.received.bytes > 100 << 20, "{network:?}");
    let faults = [network.queue_faults, network.refused_queues];
    assert_eq!((faults, network.link_losses), ([0; 2], 0), "{network:?}");
}

/// The number of `samples` with a complete part of their stack, of those that have that part.
fn whole<'a>(
    samples: impl Iterator<Item = &'a Sample>,
    end: impl Fn(&Sample) -> StackEnd,
) -> (usize, usize) {
    let ends: Vec<_> = samples
        .map(end)
        .filter(|end| *end != StackEnd::Absent)
        .collect();
    let whole = ends.iter().filter(|end| **end == StackEnd::Complete);
    (whole.count(), ends.len())
}

fn check_recording(path: &Path) {
    let mut samples = Vec::new();
    let recording = Recording::open(path).unwrap();
    let contents = recording.read(|ticks, frames| {
        samples.extend(ticks.sample.map(|sample| (sample, frames.to_vec())));
    });
    let kernel = Symbols::parse(&contents.unwrap().symbols);

    let threads: BTreeSet<String> = samples
        .iter()
        .map(|(sample, _)| {
            let name = String::from_utf8_lossy(&sample.comm);
            name.trim_end_matches('\0').to_owned()
        })
        .collect();
    let has_thread = |start: &str| threads.iter().any(|name| name.starts_with(start));
    for name in [
        "systemd",
        "systemd-journal",
        "systemd-udevd",
        "systemd-network",
        "jbd2/vda",
        "kworker/",
        "wget",
        "fio",
    ] {
        assert!(has_thread(name), "{name}: {threads:?}");
    }

    let frames = samples.iter().flat_map(|(_, frames)| frames);
    let names: BTreeSet<&str> = frames.filter_map(|address| kernel.find(*address)).collect();
    let has_function = |start: &str| names.iter().any(|name| name.starts_with(start));
    // Of the kernel's start, of modules of the file system, the disk and the network, and of their interrupts.
    for name in [
        "start_kernel",
        "ext4_",
        "jbd2_",
        "virtio_queue_rq",
        "virtnet_",
        "vm_interrupt",
        "blk_",
    ] {
        assert!(has_function(name), "{name}");
    }
    assert!(
        samples
            .iter()
            .any(|(sample, _)| sample.mode == Mode::Interrupt)
    );

    let all = || samples.iter().map(|(sample, _)| sample);
    let of = |mode| all().filter(move |sample| sample.mode == mode);
    let kernel_parts = whole(of(Mode::Kernel), |sample| sample.stack.kernel_end);
    let interrupts = whole(of(Mode::Interrupt), |sample| sample.stack.kernel_end);
    let user_parts = whole(all(), |sample| sample.stack.user_end);
    println!(
        "whole: {kernel_parts:?} of the kernel, {interrupts:?} of interrupts, {user_parts:?} of user code"
    );
    for (whole, all) in [kernel_parts, interrupts] {
        assert!(100 * whole >= 95 * all, "{whole} of {all}");
    }
}

#[test]
fn a_debian_system_is_used_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("boot.kvmprof");
    let out = folder.path().to_str().unwrap();
    lab_command(&["debian", "--net", "passt,tap", "--out", out], &recording);
    for name in ["passt", "tap"] {
        check_boot(folder.path(), name);
    }
    check_recording(&recording);
}
