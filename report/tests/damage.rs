//! Tests of truncated or changed recordings: everything before the damage is reported, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use crate::exports::export;
use crate::shared::read::stacks;
use crate::shared::recordings::{Written, WrittenBlock};
use kvmprof_recording::Mode;
use kvmprof_recording::file::HEADER;
use kvmprof_report::export::Format;
use kvmprof_report::profile::{Profile, SortBy, document};
use serde_json::Value;
use tempfile::TempDir;

const SYMBOLS: &str = "ffffffff81000000 T read\nffffffff81001000 T _end\n";
/// Samples by block. They are few, so that damage at each byte can be tested.
const SAMPLES: [u64; 5] = [3, 1, 4, 2, 6];

/// A recording to damage.
struct DamagedRecording {
    folder: TempDir,
    bytes: Vec<u8>,
    blocks: Vec<WrittenBlock>,
}

/// What must be found in a damaged recording.
#[derive(Debug)]
struct ExpectedRemainder {
    samples: u64,
    /// Bytes of intact blocks, with the file's header.
    whole: usize,
    /// Whether all blocks are intact.
    complete: bool,
}

impl DamagedRecording {
    fn new() -> Self {
        let mut written = Written::with_symbols(SYMBOLS);
        for (index, samples) in SAMPLES.into_iter().enumerate() {
            if index > 0 {
                written.end_block();
            }
            written.gap(samples, 1, 0);
            let stack: (&[u64], &[u64]) = (&[0xffff_ffff_8100_0010], &[0x40_1000]);
            written.samples(samples, (7, b"reader"), Mode::Kernel, stack);
        }
        let (bytes, blocks) = written.finish();
        let folder = tempfile::tempdir().unwrap();
        Self {
            folder,
            bytes,
            blocks,
        }
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join("damaged");
        fs::write(&path, bytes).unwrap();
        path
    }

    /// What is left if the bytes from `place` on are damaged. `None` if not even the recording's properties are.
    fn salvage(&self, place: usize) -> Option<ExpectedRemainder> {
        let whole = self.blocks.partition_point(|block| block.end <= place);
        let whole = &self.blocks[..whole];
        Some(ExpectedRemainder {
            samples: whole.iter().map(|block| block.samples).sum(),
            whole: whole.last()?.end,
            complete: whole.len() == self.blocks.len(),
        })
    }
}

/// Checks that the account, the profile, its stacks and its document have all remaining samples.
fn check_profile(path: &Path, length: usize, expected: &ExpectedRemainder) {
    let profile = Profile::from_file(path, &[]).unwrap();
    let contents = &profile.contents;
    let account = contents.account;
    assert_eq!(account.samples, expected.samples, "{expected:?}");
    assert!(account.balances(), "{account:?}");
    assert_eq!(contents.cut_off, length - expected.whole, "{expected:?}");
    assert_eq!(contents.closed, expected.complete.then_some(account));
    let of_stacks: u64 = profile.stacks().map(|stack| stack.ticks).sum();
    assert_eq!(of_stacks, expected.samples);
    let lines = stacks(&profile);
    let of_reader = lines.iter().filter(|line| line.starts_with("reader"));
    let counts = of_reader.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(counts.sum::<u64>(), expected.samples);
    let document = document(&profile, SortBy::Own, usize::MAX);
    assert_eq!(document["complete"], expected.complete);
    assert_eq!(document["bytes_cut_off"], length - expected.whole);
    // The idle time is counted separately.
    let processes = document["processes"].as_array().unwrap().iter();
    let of_reader = processes.filter(|row| row["name"] == "reader");
    let samples = of_reader.filter_map(|row| row["samples"].as_u64());
    assert_eq!(samples.sum::<u64>(), expected.samples);
}

/// Checks that formats with each sample have all remaining ones.
fn check_exports(path: &Path, expected: &ExpectedRemainder) {
    let export = |format| String::from_utf8(export(path, &[], format)).unwrap();
    let script = export(Format::PerfScript);
    let heads = script.lines().map(str::trim_start);
    let samples = heads.filter(|line| line.starts_with("reader")).count();
    assert_eq!(samples as u64, expected.samples, "{expected:?}");
    let firefox: Value = serde_json::from_str(&export(Format::Firefox)).unwrap();
    let threads = firefox["threads"].as_array().unwrap().iter();
    let of_reader = threads.filter(|thread| thread["name"].as_str().unwrap().starts_with("reader"));
    let samples = of_reader.filter_map(|thread| thread["samples"]["length"].as_u64());
    assert_eq!(samples.sum::<u64>(), expected.samples, "{expected:?}");
}

#[test]
fn a_recording_cut_off_anywhere_has_all_blocks_before() {
    let victim = DamagedRecording::new();
    for length in 0..=victim.bytes.len() {
        let path = victim.file(&victim.bytes[..length]);
        if let Some(expected) = victim.salvage(length) {
            check_profile(&path, length, &expected);
            let into = length - expected.whole;
            if [0, 5, 20].contains(&into) {
                check_exports(&path, &expected);
            }
            continue;
        }
        let error = Profile::from_file(&path, &[]).unwrap_err().to_string();
        let what = ["no recording", "before"][usize::from(length >= HEADER)];
        assert!(error.contains(what), "{length}: {error}");
    }
}

#[test]
fn a_byte_that_changed_leaves_all_blocks_before() {
    let victim = DamagedRecording::new();
    for place in HEADER..victim.bytes.len() {
        for bit in [0x01, 0x80] {
            let mut bytes = victim.bytes.clone();
            bytes[place] ^= bit;
            let path = victim.file(&bytes);
            match victim.salvage(place) {
                Some(expected) => check_profile(&path, bytes.len(), &expected),
                None => assert!(Profile::from_file(&path, &[]).is_err(), "byte {place}"),
            }
        }
    }
}
