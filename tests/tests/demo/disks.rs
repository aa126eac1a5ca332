//! Disks under a guest other than Linux: every kind of request, requests and chains that no driver should send, and the
//! image on the host after the guest's end, and after kvmprof's.

use std::path::Path;

use kvmprof_machine::disk::DiskOptions;
use kvmprof_test_guest::{DISK_BLOCK, DiskResults, block_of_write};
use kvmprof_tests::{
    Boot, Clock, DiskImage, Guest, Machine, disk_content, make_qcow2, make_raw, on_kvm, until,
};
use kvmprof_vmm::vm::VmConfig;
use rustix::process::Signal;

const BYTES: u64 = 1 << 20;
const BOOT: Boot = Boot::Test("workload=disk");
/// Number of kills of kvmprof with each format, and the variable that overrides it (CONTRIBUTING.md).
const KILLS: u64 = 6;
const KILLS_VARIABLE: &str = "KVMPROF_TEST_KILLS";

/// Both formats, which are the same for the guest.
fn images(folder: &Path) -> [DiskImage; 2] {
    [
        make_raw(folder, "disk.img", BYTES),
        make_qcow2(folder, "disk.qcow2", BYTES, None),
    ]
}

fn start(vcpus: u16, disk: DiskOptions) -> Machine {
    Machine::launch(BOOT, vcpus, Clock::default(), |config| VmConfig {
        disks: vec![disk],
        ..config
    })
}

fn check_steps(results: &DiskResults) {
    for step in &results.steps {
        assert_eq!(step.outcome, step.expected, "{step:?} of {results:?}");
    }
    // The last steps are reached only after all attacks.
    assert_eq!(results.steps.last().unwrap().name, "write for the host");
}

/// The last writes of the workload at each queue's place, with all features that it knows.
fn check_content(content: &[u8], queues: u32) {
    const ALL: u64 = 1 << 9 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 28 | 1 << 29;
    for queue in 0..u64::from(queues) {
        let start = usize::try_from((64 + 64 * queue) * 512).unwrap();
        let words = content[start..start + 16 * 512].chunks_exact(8);
        for (word, number) in words.zip(0..) {
            let expected = ALL << 32 | queue << 16 | number;
            assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), expected);
        }
    }
}

#[test]
fn a_guest_uses_every_request_and_survives_its_own_attacks() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        for image in images(folder.path()) {
            for vcpus in [1, 2] {
                let disk = image.parsed(",serial=the first disk");
                let machine = start(vcpus, disk);
                let results = machine.until_disk_is_tried();
                check_steps(&results);
                assert_eq!(results.sectors, BYTES / 512);
                assert_eq!(results.queues, u32::from(vcpus));
                assert_eq!(results.serial, "the first disk");
                let disk = &machine.status().machine.disks[0];
                let counts = disk.counts;
                assert_eq!(disk.path, image.path.to_str().unwrap());
                assert_eq!(disk.bytes, BYTES);
                let steps = |named: &str| {
                    let named = results.steps.iter().filter(|step| step.name == named);
                    named.count() as u64
                };
                assert!(counts.writes >= steps("write"), "{counts:?}");
                assert!(counts.flushes == steps("flush"), "{counts:?}");
                assert_eq!(counts.discards, steps("discard"), "{counts:?}");
                assert_eq!(counts.errors, 0, "{counts:?}");
                let chains = results.steps.iter().filter(|step| step.expected == -2);
                let chains = chains.count() as u64;
                assert_eq!(counts.queue_faults, chains, "{counts:?}");
                let refused = results.steps.iter().filter(|step| step.expected > 0);
                let refused = refused.count() as u64;
                assert_eq!(counts.refused, refused, "{counts:?}");
                machine.stop();
                check_content(&disk_content(&image), results.queues);
            }
        }
    });
}

#[test]
fn a_readonly_disk_stays_as_it_is() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        for image in images(folder.path()) {
            let before = std::fs::read(&image.path).unwrap();
            let disk = image.parsed(",readonly");
            let machine = start(1, disk);
            let results = machine.until_disk_is_tried();
            // Flush, discard and zeroing aren't offered, and each write is refused.
            assert_eq!(results.features & (1 << 9 | 1 << 13 | 1 << 14), 0);
            let writes = results.steps.iter().filter(|step| step.name == "write");
            assert!(writes.clone().count() > 2 && writes.clone().all(|step| step.outcome == 1));
            machine.stop();
            assert_eq!(std::fs::read(&image.path).unwrap(), before);
        }
    });
}

/// The number of the last write that was flushed for the guest.
fn last_flushed(console: &str) -> u64 {
    // The last line may be incomplete.
    let (lines, _) = console.rsplit_once('\n').unwrap_or_default();
    let mut numbers = (lines.lines().rev()).filter_map(|line| line.strip_prefix("flushed "));
    numbers
        .next()
        .map_or(0, |number| number.trim().parse().unwrap())
}

/// Flushed blocks are there, and nothing else than what was written.
fn check_flushed(content: &[u8], flushed: u64) {
    let blocks = content.len() / DISK_BLOCK;
    let mut least = vec![0; blocks];
    for number in 1..=flushed {
        let block = block_of_write(number, blocks as u64);
        least[usize::try_from(block).unwrap()] = number;
    }
    for (place, block) in content.chunks_exact(DISK_BLOCK).enumerate() {
        let mut words = block.chunks_exact(8);
        let first = words.next().unwrap();
        let number = u64::from_le_bytes(first.try_into().unwrap());
        assert!(words.all(|word| word == first), "block {place} is mixed");
        assert!(
            number >= least[place],
            "block {place}: {number}, not {}",
            least[place]
        );
        if number != 0 {
            assert_eq!(block_of_write(number, blocks as u64), place as u64);
        }
    }
}

#[test]
fn flushed_writes_survive_a_kill_of_kvmprof() {
    let kills = std::env::var(KILLS_VARIABLE).map_or(KILLS, |number| number.parse().unwrap());
    on_kvm(|| {
        for round in 0..kills {
            let folder = tempfile::tempdir().unwrap();
            for image in images(folder.path()) {
                let options = ["--disk", &image.option(""), "--cpus", "2"];
                let mut guest = Guest::start(Boot::Test("workload=disk-writes"), options);
                // At a different moment each time.
                let wanted = 8 * (1 + 7 * (round % KILLS)) + round / KILLS;
                until("enough is flushed", || {
                    (last_flushed(&guest.console()) >= wanted).then_some(())
                });
                guest.signal(Signal::KILL);
                guest.wait();
                let flushed = last_flushed(&guest.console());
                assert!(flushed >= wanted);
                check_flushed(&disk_content(&image), flushed);
            }
        }
    });
}
