//! Tests of damaged qcow2 images: whatever is written over its tables, the image is refused, or requests fail or return wrong data. Nothing
//! worse happens.
//!
//! The cases run in child processes, because a stack overflow ends its process. `KVMPROF_DAMAGE_CASES` is the number of cases of each image
//! (CONTRIBUTING.md).

use std::env;
use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;

use kvmprof_devices::virtio::block::Extent;

use super::*;

/// The variable that tells a child process the number of its first case, the number of cases, and the path of the image.
const CHILD: &str = "KVMPROF_DAMAGE_CHILD";
const CASES: &str = "KVMPROF_DAMAGE_CASES";
const CASES_DEFAULT: u64 = 30;
/// Maximum number of bytes that are read from each end of a damaged disk.
const READ_MAX: u64 = 256 << 10;

/// Images of 1 MiB: their names, and their options of `qemu-img convert`.
const IMAGES: [(&str, &str); 5] = [
    ("plain", "compat=1.1"),
    ("old", "compat=0.10"),
    ("small", "compat=1.1,cluster_size=512,refcount_bits=1"),
    (
        "wide",
        "compat=1.1,cluster_size=4k,refcount_bits=64,lazy_refcounts=on",
    ),
    (
        "allocated",
        "compat=1.1,cluster_size=1k,preallocation=metadata",
    ),
];

/// Marsaglia's xorshift generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 8).unwrap() % end
    }
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    let field = bytes.get(at..)?.first_chunk()?;
    usize::try_from(u64::from_be_bytes(*field)).ok()
}

/// The ranges of an image's tables: the header, the refcount table and its blocks, and the disk's tables of both levels.
fn tables(image: &[u8]) -> Vec<Range<usize>> {
    let cluster = 1 << image[23];
    let entries = |table: Range<usize>| -> Vec<usize> {
        let all = table.step_by(8).filter_map(|at| long(image, at));
        let offsets = all.map(|entry| entry & 0x00ff_ffff_ffff_fe00);
        offsets.filter(|offset| *offset != 0).collect()
    };
    let word = |at: usize| long(image, at).unwrap() >> 32;
    let level_1 = long(image, 40).unwrap();
    let level_1 = level_1..level_1 + 8 * word(36);
    let refcounts = long(image, 48).unwrap();
    let refcounts = refcounts..refcounts + cluster * word(56);
    let mut tables = vec![
        0..160,
        level_1.clone(),
        refcounts.start..refcounts.start + 64,
    ];
    let second = entries(level_1).into_iter().chain(entries(refcounts));
    tables.extend(second.map(|start| start..(start + cluster).min(image.len())));
    tables.retain(|table| table.start < table.end && table.end <= image.len());
    tables
}

/// Damages one to four entries of an image's tables.
fn damage(image: &mut [u8], random: &mut Random) {
    let tables = tables(image);
    let cluster = 1_u64 << image[23];
    for _ in 0..=random.below(4) {
        let table = &tables[random.below(tables.len())];
        let place = table.start + random.below(table.len());
        // Most values overwrite a whole entry.
        let place = if random.below(8) == 0 {
            place
        } else {
            place & !7
        };
        let other = tables[random.below(tables.len())].start as u64;
        let old = long(image, place).unwrap_or(0) as u64;
        let value = match random.below(10) {
            0 => 0,
            1 => u64::MAX,
            2 => random.next(),
            3 => old ^ 1 << random.below(64),
            4 => (random.next() % 64) * cluster,
            5 => ((random.next() % 64) * cluster) | (1 << 63),
            6 => other & !511,
            7 => other & !511 | 1 << 63,
            8 => old.wrapping_add(512 << random.below(16)),
            _ => (1 << 62) | (random.next() % (1 << 20)),
        };
        let bytes = value.to_be_bytes();
        let count = if place < 160 && random.below(2) == 0 {
            4
        } else {
            8
        };
        let end = (place + count).min(image.len());
        image[place..end].copy_from_slice(&bytes[8 - count..][..end - place]);
    }
}

/// Makes all kinds of requests that a guest can make to a damaged disk.
fn use_disk(disk: &Disk, random: &mut Random) {
    let bytes = disk.image.bytes();
    let mut buffer = vec![0; 8192];
    for offset in (0..bytes.min(READ_MAX)).step_by(buffer.len()) {
        let _ = disk.image.read(&mut buffer, offset);
        let _ = disk
            .image
            .read(&mut buffer, bytes.saturating_sub(offset + 8192));
    }
    for round in 0..40 {
        let offset = (random.next() % bytes.clamp(1, 1 << 20)) & !511;
        let extent = Extent {
            offset,
            length: 4096,
            unmap: round % 2 == 0,
        };
        let _ = match round % 8 {
            0 => disk.image.discard(extent),
            1 => disk.image.zero(extent),
            2 => disk.image.flush(),
            _ => disk.image.write(&buffer[..4096], offset),
        };
    }
    let _ = disk.image.flush();
}

/// Runs `count` cases from number `first` on, in a child process. A case fails if it panics.
fn run_cases(path: &Path, first: u64, count: u64) {
    let whole = fs::read(path).unwrap();
    let damaged = path.with_extension("damaged");
    for case in first..first + count {
        // The parent reads this if the child fails.
        fs::write(path.with_extension("case"), case.to_string()).unwrap();
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ case << 20 | 1);
        let mut image = whole.clone();
        damage(&mut image, &mut random);
        fs::write(&damaged, &image).unwrap();
        let words = format!("{},format=qcow2", damaged.display());
        let tried = catch_unwind(AssertUnwindSafe(|| {
            if let Ok(disk) = Disk::open(&words.parse().unwrap()) {
                use_disk(&disk, &mut random);
            }
        }));
        assert!(tried.is_ok(), "case {case} of {}", path.display());
    }
}

#[test]
fn no_damage_of_tables_is_more_than_an_error() {
    if let Ok(words) = env::var(CHILD) {
        let words: Vec<&str> = words.splitn(3, ' ').collect();
        return run_cases(
            Path::new(words[2]),
            words[0].parse().unwrap(),
            words[1].parse().unwrap(),
        );
    }
    let cases = env::var(CASES).map_or(CASES_DEFAULT, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    for (name, options) in IMAGES {
        let image = folder.path().join(name);
        make(&image, options);
        let mut first = 0;
        while first < cases {
            let ran = Command::new(env::current_exe().unwrap())
                .args([
                    "--exact",
                    "disk::damage::no_damage_of_tables_is_more_than_an_error",
                ])
                .args(["--nocapture", "--test-threads=1"])
                .env(
                    CHILD,
                    format!("{first} {} {}", cases - first, image.display()),
                )
                .output()
                .unwrap();
            if ran.status.success() {
                break;
            }
            let case = fs::read_to_string(image.with_extension("case")).unwrap();
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            failures.push(format!("{name}: case {case}: {}: {said}", ran.status));
            first = case.parse::<u64>().unwrap() + 1;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Makes an image with data in some of its clusters.
fn make(path: &Path, options: &str) {
    let qemu_img = |arguments: &[&str]| {
        let ran = Command::new("qemu-img").args(arguments).arg(path).output();
        let ran = ran.expect("apt-get install qemu-utils");
        assert!(ran.status.success(), "{ran:?}");
    };
    let raw = path.with_extension("raw");
    let content: Vec<u8> = (0..1_u32 << 20)
        .map(|at| {
            if at / 65_536 % 3 == 1 {
                (at / 512).to_le_bytes()[0]
            } else {
                0
            }
        })
        .collect();
    fs::write(&raw, content).unwrap();
    qemu_img(&[
        "convert",
        "-O",
        "qcow2",
        "-o",
        options,
        raw.to_str().unwrap(),
    ]);
}
