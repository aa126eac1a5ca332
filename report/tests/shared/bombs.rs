//! Small recordings that are made to take much memory.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::fs;
use std::path::PathBuf;

use kvmprof_recording::file::{Block, KernelInfo, Kind, RecordingInfo, header};
use tempfile::TempDir;

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
pub fn recording(blocks: &[(Kind, Vec<u8>)], length: usize) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb");
    let digits = ballast(length / 2);
    let kernel = KernelInfo {
        release: digits.iter().map(|byte| format!("{byte:02x}")).collect(),
        ..KernelInfo::default()
    };
    let mut bytes = header().to_vec();
    bytes.extend(RecordingInfo::default().to_block().unwrap());
    bytes.extend(kernel.to_block().unwrap());
    for (kind, contents) in blocks {
        bytes.extend(Block::encode(*kind, contents).unwrap());
    }
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// A function whose name is as long as some are in C++, at each address of [`deep_stack`].
pub fn long_name() -> (Kind, Vec<u8>) {
    let symbols = format!("1000 T {}\nf000 T end\n", "x".repeat(4000));
    (Kind::Symbols, symbols.into_bytes())
}

/// A stack of 128 frames in the kernel.
fn deep_stack() -> Vec<u8> {
    [&[2, 128, 0, 1, 1, 0x88, 0x40][..], &[2; 127]].concat()
}

/// So many samples of a few bytes, each of one deep stack of functions with long names: by turns of `threads` threads.
pub fn deep_samples(samples: u32, threads: u8) -> (TempDir, PathBuf) {
    let mut block = deep_stack();
    for thread in 0..threads {
        block.extend([1, thread << 1, thread << 1, 0, 0]);
    }
    for sample in 0..samples {
        let thread = sample.to_le_bytes()[0] % threads;
        block.extend([3, 0, 2, 1, 0, 0, thread, 0, 0]);
    }
    recording(&[long_name(), (Kind::Samples, block)], 32 << 10)
}

/// Out of some KiB, tables of gigabytes: a thread and a stack, and samples that are all the same.
pub fn unpacks_to_much() -> (TempDir, PathBuf) {
    let tables = [1, 0, 0, 0, 0, 2, 0, 0, 0, 0];
    let samples = [&tables[..], &[3, 0, 2, 0, 3, 0, 0, 0, 0].repeat(400_000)].concat();
    let all: Vec<_> = (0..16).map(|_| (Kind::Samples, samples.clone())).collect();
    recording(&all, 0)
}

/// Stacks of 128 addresses, each from one that no other stack has, and a sample of each.
pub fn many_addresses() -> (TempDir, PathBuf) {
    let mut block = vec![1, 0, 0, 0, 0];
    for stack in 0..10_000_u32 {
        let digits = [stack << 1, stack >> 6, stack >> 13, stack, stack >> 7];
        let [low, middle, high, index, index_high] = digits.map(|digits| digits.to_le_bytes()[0]);
        let first = [0x80, 0x80 | low, 0x80 | middle, high];
        block.extend([&[2, 128, 0, 1, 1][..], &first, &[2; 127]].concat());
        block.extend([3, 0, 0, 1, 0, 0, 0, 0x80 | index, index_high, 0]);
    }
    recording(&[(Kind::Samples, block)], 32 << 10)
}
