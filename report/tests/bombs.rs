//! Small recordings that are made to take much memory: they are refused, or reported in bounded memory.
#![expect(clippy::unwrap_used, reason = "tests fail by it")]

use std::fs;
use std::path::PathBuf;

use kvmprof_recording::file::{Block, Kind, RecordingInfo, header};
use kvmprof_report::export::{Format, Source};
use kvmprof_report::profile::{Profile, SortBy, document};
use tempfile::TempDir;

/// The most memory that this program may have taken, in KiB: a few times what the largest tables are allowed.
const MAX_MEMORY_KIB: u64 = 1 << 20;

/// Bytes that no packer makes smaller, so that the rest of a file may unpack to more.
fn ballast(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let bytes = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_be_bytes()[0]
    });
    bytes.take(length).collect()
}

/// A recording with these blocks, behind a kernel's properties that make it long enough for them.
fn recording(blocks: &[(Kind, Vec<u8>)], length: usize) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb");
    let info = serde_json::to_vec(&RecordingInfo::default()).unwrap();
    let digits: String = ballast(length / 2)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kernel = format!("{{\"release\":\"{digits}\"}}");
    let mut bytes = header().to_vec();
    bytes.extend(Block::encode(Kind::Info, &info).unwrap());
    bytes.extend(Block::encode(Kind::Kernel, kernel.as_bytes()).unwrap());
    for (kind, contents) in blocks {
        bytes.extend(Block::encode(*kind, contents).unwrap());
    }
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// The most memory that this process has had, in KiB (`VmHWM`, proc(5)).
fn memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn assert_memory(most_kib: u64) {
    let memory = memory_kib();
    assert!(memory < most_kib, "{memory} KiB");
}

/// Makes everything of a recording that has these blocks.
fn survives(blocks: &[(Kind, Vec<u8>)], length: usize) {
    let (_folder, path) = recording(blocks, length);
    let profile = Profile::from_file(&path, &[]).unwrap();
    assert!(document(&profile, SortBy::Own, 10).is_object());
    drop(profile);
    let source = Source::open(&path, &[]).unwrap();
    for format in [Format::Folded, Format::Firefox, Format::Speedscope] {
        format.write(&source, &mut std::io::sink()).unwrap();
    }
    assert_memory(MAX_MEMORY_KIB);
}

fn repeat(head: &str, item: &str, tail: &str, length: usize) -> Vec<u8> {
    let items = item.repeat(length / item.len());
    [head, items.as_str(), tail].concat().into_bytes()
}

const LONG: usize = 60 << 20;
const ENOUGH: usize = 1 << 20;

#[test]
fn symbols_that_fill_the_memory() {
    survives(&[(Kind::Symbols, repeat("", "0 t a\n", "", LONG))], ENOUGH);
}

#[test]
fn mappings_that_fill_the_memory() {
    let mappings = repeat("{\"mappings\":[", "{},", "{}]}", LONG);
    survives(&[(Kind::Mappings, mappings)], ENOUGH);
}

#[test]
fn functions_that_fill_the_memory() {
    let mapping = "{\"mappings\":[{\"begin\":1,\"end\":99,\"binary\":0}]}";
    let functions = (Kind::Binary, repeat("{\"id\":0}\n", "0 0\n", "", LONG / 2));
    let mapping = (Kind::Mappings, mapping.as_bytes().to_vec());
    survives(&[mapping, functions], ENOUGH);
}

#[test]
fn segments_that_fill_the_memory() {
    let segments = repeat("{\"segments\":[", "{},", "{}]}\n", LONG);
    survives(&[(Kind::Binary, segments)], ENOUGH);
}

/// Samples of as many processes, all with the same long stack.
#[test]
fn stacks_that_fill_the_memory() {
    let stack = [&[2, 0, 128, 0, 1][..], &[2; 128]].concat();
    let mut block = stack.clone();
    let mut blocks = Vec::new();
    let mut threads = 0_u8;
    for pid in 0..400_000_u32 {
        // A thread of this pid without a name, and its sample.
        let digits = [pid << 1, pid >> 6, pid >> 13].map(|digits| digits.to_le_bytes()[0]);
        let pid = [digits[0] | 0x80, digits[1] | 0x80, digits[2] & 0x7f];
        block.extend([&[1][..], &pid, &[0, 0, 0]].concat());
        block.extend([3, 0, 0, 0, 3, 0, threads, 0, 0]);
        threads += 1;
        if threads == 128 {
            blocks.push((Kind::Samples, std::mem::replace(&mut block, stack.clone())));
            threads = 0;
        }
    }
    drop(block);
    let (_folder, path) = recording(&blocks, ENOUGH);
    drop(blocks);
    let profile = Profile::from_file(&path, &[]).unwrap();
    assert_eq!(profile.samples(), 400_000 / 128 * 128);
    let frames = profile.stacks.keys().map(|(_, stack)| stack.frames.len());
    let length = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
    let most = (8 * length).max(16 << 20) + 400_000;
    assert!(most < 400_000 * 100, "{length} bytes allow for too much");
    assert!(frames.sum::<usize>() <= most);
    assert_memory(MAX_MEMORY_KIB);
}

/// What took gigabytes out of kilobytes says what is wrong with it.
#[test]
fn a_small_recording_that_unpacks_to_much_is_refused() {
    // A thread and a stack, and samples that are all the same.
    let tables = [1, 0, 0, 0, 0, 2, 0, 0, 0, 0];
    let samples = [&tables[..], &[3, 0, 2, 0, 3, 0, 0, 0, 0].repeat(400_000)].concat();
    let all: Vec<_> = (0..16).map(|_| (Kind::Samples, samples.clone())).collect();
    let (_folder, path) = recording(&all, 0);
    assert!(fs::metadata(&path).unwrap().len() < 64 << 10);
    let error = Profile::from_file(&path, &[]).unwrap_err().to_string();
    assert!(
        error.contains("bomb is damaged: it unpacks to far more"),
        "{error}"
    );
}
