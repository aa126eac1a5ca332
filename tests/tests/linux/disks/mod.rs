//! Disks of Debian's kernels: the guest mounts, writes and reads file systems that the host has made, in both formats; the host
//! then finds the guest's data in the images.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{Console, Finished, Scenario, debian, guest_builder, once};
use kvmprof_tests::{DiskImage, disk_content, fill_qcow2, make_qcow2, make_raw};

/// ext4 finds the modules for its checksums by name only.
const MODULES: [&str; 4] = ["crc32c_generic", "virtio_mmio", "virtio_blk", "ext4"];
const BYTES: u64 = 16 << 20;
const CONSTANT_BYTES: u64 = 1 << 20;
const SUCCESS: u8 = 0;

struct Run {
    finished: Finished,
    console: Console,
}

// Debian's whole system, which is of 6.1, has its root on a disk (`debian.rs`).
kvmprof_tests::in_each_kernel! {
    of { in_linux_6_12("6.12") }
    a_readonly_disk_is_as_it_was
    a_recording_has_the_drivers_functions
    the_guest_ends_without_errors
    the_guest_finds_its_disks
    the_guest_reads_what_the_host_has_written
    the_host_reads_what_the_guest_has_written
    the_status_counts_the_requests
}

fn run(series: &str) -> Run {
    let finished = once(&format!("disks-{series}"), || boot(series));
    let console = finished.console("guest");
    println!("{}", console.text());
    Run { finished, console }
}

fn boot(series: &str) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    let raw = make_raw(folder.path(), "raw.img", BYTES);
    make_file_system(folder.path(), &raw);
    let content = fs::read(&raw.path).unwrap();
    let qcow2 = make_qcow2(folder.path(), "disk.qcow2", BYTES, None);
    fill_qcow2(&qcow2, &content);
    let kernel = debian(series);
    let guest = guest_builder(include_str!("init.sh"), &[])
        .modules(&kernel, &MODULES)
        .build();
    Scenario::new()
        .unpacked_kernel("vmlinuz", &kernel)
        .file("guest.cpio", guest.unwrap())
        .file("raw.img", content)
        .file("disk.qcow2", fs::read(&qcow2.path).unwrap())
        .file("constant.img", constant())
        .run(include_str!("driver.sh"))
}

/// The disk's sectors that weren't written.
fn constant() -> Vec<u8> {
    let bytes = usize::try_from(CONSTANT_BYTES).unwrap();
    (0..bytes).map(|at| (at / 4096).to_le_bytes()[0]).collect()
}

/// An ext4 file system with some files.
fn make_file_system(folder: &Path, image: &DiskImage) {
    let root = folder.join("root");
    let files = root.join("from-host");
    fs::create_dir_all(&files).unwrap();
    for number in 0..8_u8 {
        let bytes = vec![number + 1; 3000 * usize::from(number + 1)];
        fs::write(files.join(format!("file-{number}")), bytes).unwrap();
    }
    let mut command = Command::new("/sbin/mke2fs");
    command.args(["-q", "-t", "ext4", "-d"]).arg(&root);
    run_tool(command.arg(&image.path));
}

/// Runs a program of e2fsprogs, which has to succeed.
fn run_tool(command: &mut Command) {
    let ran = command.output().expect("apt-get install e2fsprogs");
    assert!(ran.status.success(), "{command:?}: {ran:?}");
}

/// The checksums of all files in a folder, by name.
fn checksums(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap();
    let sums = entries.map(|entry| {
        let path = entry.unwrap().path();
        let sum = Command::new("sha256sum").arg(&path).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, sum.split_whitespace().next().unwrap().to_owned())
    });
    sums.collect()
}

impl Run {
    /// The guest's checksums of files in `folder` of its file system at `place`, after `word`.
    fn said(&self, word: &str, place: &str, folder: &str) -> BTreeMap<String, String> {
        let text = self.console.text();
        let lines = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(&format!("{word} {place} "))?;
            let (sum, name) = rest.split_once("  ")?;
            let name = name.strip_prefix(folder)?.strip_prefix('/')?;
            Some((name.to_owned(), sum.to_owned()))
        });
        lines.collect()
    }

    /// The images after the guest's end: where they were mounted, and a raw copy.
    fn left(&self, folder: &Path) -> [(&'static str, DiskImage); 2] {
        let raw = DiskImage {
            path: self.finished.path("raw.img"),
            format: "",
        };
        let qcow2 = DiskImage {
            path: self.finished.path("disk.qcow2"),
            format: ",format=qcow2",
        };
        [("/raw", raw), ("/qcow2", qcow2)].map(|(place, image)| {
            let copy = make_raw(folder, &place[1..], 0);
            fs::write(&copy.path, disk_content(&image)).unwrap();
            (place, copy)
        })
    }
}

fn the_guest_ends_without_errors(run: &Run) {
    assert!(run.console.has("both are unmounted"));
    assert_eq!(run.finished.status("guest"), SUCCESS);
    assert_eq!(run.finished.text("guest.stderr"), "");
}

fn the_guest_finds_its_disks(run: &Run) {
    for line in ["serial vda first", "serial vdb second", "serial vdc third"] {
        assert!(run.console.has(line), "{line}");
    }
    assert!(run.console.has("queues 2"));
    assert!(run.console.has("readonly 1"));
    // Each has an interrupt of its own, behind the console's.
    for device in ["virtio1", "virtio2", "virtio3"] {
        assert!(run.console.has(device), "{device}");
    }
}

fn the_guest_reads_what_the_host_has_written(run: &Run) {
    for place in ["/raw", "/qcow2"] {
        let said = run.said("found", place, "from-host");
        let folder = tempfile::tempdir().unwrap();
        make_file_system(folder.path(), &make_raw(folder.path(), "any.img", BYTES));
        let expected = checksums(&folder.path().join("root/from-host"));
        assert_eq!(said, expected, "{place}");
    }
}

fn the_host_reads_what_the_guest_has_written(run: &Run) {
    let folder = tempfile::tempdir().unwrap();
    for (place, image) in run.left(folder.path()) {
        run_tool(
            Command::new("/sbin/e2fsck")
                .args(["-f", "-n"])
                .arg(&image.path),
        );
        let found = folder
            .path()
            .join(format!("found-in{}", place.replace('/', "-")));
        fs::create_dir(&found).unwrap();
        let dump = format!("rdump /from-guest {}", found.display());
        run_tool(
            Command::new("/sbin/debugfs")
                .args(["-R", &dump])
                .arg(&image.path),
        );
        let said = run.said("wrote", place, "from-guest");
        assert_eq!(said.len(), 22, "{place}");
        assert_eq!(checksums(&found.join("from-guest")), said, "{place}");
    }
}

fn a_readonly_disk_is_as_it_was(run: &Run) {
    let left = fs::read(run.finished.path("constant.img")).unwrap();
    assert!(left == constant());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("constant"), constant()).unwrap();
    let sum = checksums(folder.path())["constant"].clone();
    assert!(run.console.has(&format!("constant {sum}")));
}

fn the_status_counts_the_requests(run: &Run) {
    let disks = run
        .finished
        .status_document("guest.status.json")
        .machine
        .disks;
    let [raw, qcow2, constant] = disks.as_slice() else {
        panic!("{disks:?}");
    };
    for disk in [raw, qcow2] {
        let counts = disk.counts;
        assert!(counts.reads > 10 && counts.writes > 24, "{disk:?}");
        assert!(counts.flushes >= 24 && counts.discards > 0, "{disk:?}");
        assert_eq!(disk.bytes, BYTES);
        let faults = [counts.errors, counts.refused, counts.queue_faults];
        assert_eq!(faults, [0; 3], "{disk:?}");
    }
    assert!(constant.counts.bytes_read >= CONSTANT_BYTES);
    assert_eq!(constant.counts.writes, 0);
}

fn a_recording_has_the_drivers_functions(run: &Run) {
    let (contents, samples) = run.finished.recording("guest.kvmprof");
    let kernel = Symbols::parse(&contents.symbols);
    let frames = samples.iter().flat_map(|(_, frames)| frames);
    let mut names: Vec<&str> = frames.filter_map(|address| kernel.find(*address)).collect();
    names.sort_unstable();
    names.dedup();
    let has = |start: &str| names.iter().any(|name| name.starts_with(start));
    assert!(has("ext4_"), "{names:?}");
    // Of the module virtio_blk.
    assert!(has("virtio_queue_rq") || has("virtblk_"), "{names:?}");
}
