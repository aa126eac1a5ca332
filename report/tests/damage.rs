//! Tests of truncated recordings: everything before the cut is reported, and nothing else.

use std::fs;
use std::path::Path;

use crate::exports::export;
use crate::shared::read::stacks;
use crate::shared::recordings::{Written, WrittenBlock};
use kvmprof_recording::Mode;
use kvmprof_recording::file::HEADER;
use kvmprof_report::export::Format;
use kvmprof_report::profile::{Profile, SortBy, document};
use serde_json::Value;

const SYMBOLS: &str = "ffffffff81000000 T read\nffffffff81001000 T _end\n";
/// Samples by block. They are few, so that a cut at each byte can be tested.
const SAMPLES: [u64; 5] = [3, 1, 4, 2, 6];

/// What must be found in a truncated recording.
#[derive(Debug)]
struct ExpectedRemainder {
    samples: u64,
    /// Bytes of intact blocks, with the file's header.
    whole: usize,
    /// Whether all blocks are intact.
    complete: bool,
}

fn recording() -> (Vec<u8>, Vec<WrittenBlock>) {
    let mut written = Written::with_symbols(SYMBOLS);
    for (index, samples) in SAMPLES.into_iter().enumerate() {
        if index > 0 {
            written.end_block();
        }
        written.gap(samples, 1, 0);
        let stack: (&[u64], &[u64]) = (&[0xffff_ffff_8100_0010], &[0x40_1000]);
        written.samples(samples, (7, b"reader"), Mode::Kernel, stack);
    }
    written.finish()
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
    let (bytes, blocks) = recording();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut off");
    for length in 0..=bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let whole = &blocks[..blocks.partition_point(|block| block.end <= length)];
        let Some(last) = whole.last() else {
            let error = Profile::from_file(&path, &[]).unwrap_err().to_string();
            let what = match length {
                ..HEADER => "no recording",
                _ => "before",
            };
            assert!(error.contains(what), "{length}: {error}");
            continue;
        };
        let expected = ExpectedRemainder {
            samples: whole.iter().map(|block| block.samples).sum(),
            whole: last.end,
            complete: whole.len() == blocks.len(),
        };
        check_profile(&path, length, &expected);
        if [0, 5, 20].contains(&(length - last.end)) {
            check_exports(&path, &expected);
        }
    }
}
