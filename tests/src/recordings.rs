//! Recordings of bare-metal guests.

use std::path::Path;

use kvmprof_demo_guest::{Mode, function_at, process_of, row_of};
use kvmprof_recording::file::{Contents, Recording};
use kvmprof_recording::{Mode as SampleMode, Sample};

/// The samples of a recording, each with its frames, and what else is in it. Its account balances.
///
/// # Panics
/// When it is none, or its account is wrong.
pub fn recorded_with_frames(path: &Path) -> (Vec<(Sample, Vec<u64>)>, Contents) {
    let mut samples = Vec::new();
    let contents = Recording::open(path)
        .unwrap()
        .read(|ticks, frames| {
            samples.extend(ticks.sample.map(|sample| (sample, frames.to_vec())));
        })
        .unwrap();
    assert!(contents.account.balances(), "{:?}", contents.account);
    assert_eq!(contents.account.samples, samples.len() as u64);
    (samples, contents)
}

/// The same without the frames.
///
/// # Panics
/// As [`recorded_with_frames`].
pub fn recorded(path: &Path) -> (Vec<Sample>, Contents) {
    let (samples, contents) = recorded_with_frames(path);
    let samples = samples.into_iter().map(|(sample, _)| sample);
    (samples.collect(), contents)
}

/// So many user samples [`check_demo_processes`] wants.
pub const ENOUGH_SAMPLES: usize = 500;

/// Checks user samples of the demo guest, each a program counter and a pid: a program counter in a process's own code is that
/// process's, and nobody else's.
///
/// # Panics
/// When there are too few, or some have another process.
pub fn check_demo_processes(samples: impl Iterator<Item = (u64, i32)>) {
    let (mut all, mut own) = (0, 0);
    for (pc, pid) in samples {
        let function = function_at(pc).unwrap_or_default();
        all += 1;
        own += usize::from(process_of(function) == Some(pid));
    }
    println!("{own} of {all} user samples name their process");
    assert!(all >= ENOUGH_SAMPLES && own * 100 >= all * 99);
}

/// The row of the demo guest's truth that a sample of it belongs to.
///
/// # Panics
/// When it belongs to none.
pub fn demo_row(sample: &Sample) -> usize {
    let mode = match sample.mode {
        SampleMode::User => Mode::User,
        SampleMode::Kernel => Mode::Kernel,
        SampleMode::Interrupt => Mode::Interrupt,
        SampleMode::Idle => Mode::Idle,
    };
    row_of(mode, sample.pid, sample.pc).unwrap_or_else(|| panic!("{sample:x?}"))
}
