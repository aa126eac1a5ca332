//! Recordings of bare-metal guests.

use std::collections::HashMap;
use std::path::Path;

use kvmprof_abi::kallsyms::KernelSymbol;
use kvmprof_demo_guest::{Mode, ROWS, function_at, process_of, row_of, rows};
use kvmprof_recording::file::{Contents, Recording};
use kvmprof_recording::{HOST_FRAMES, Mode as SampleMode, Sample};

/// The samples of a recording, each with its frames, and the recording's other contents. Its account must balance.
///
/// # Panics
/// If the file is no recording, or its account is wrong.
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

/// The same as [`recorded_with_frames`], without the frames.
///
/// # Panics
/// As [`recorded_with_frames`].
pub fn recorded(path: &Path) -> (Vec<Sample>, Contents) {
    let (samples, contents) = recorded_with_frames(path);
    let samples = samples.into_iter().map(|(sample, _)| sample);
    (samples.collect(), contents)
}

/// The functions of the host in a recording, name and module, by frame.
fn host_functions(contents: &Contents) -> HashMap<u64, HostFrame> {
    let lines = contents.symbol_blocks().flat_map(str::lines);
    let symbols = lines.filter_map(|line| KernelSymbol::parse(line.as_bytes()));
    let of_host = symbols.filter(|symbol| symbol.address >= HOST_FRAMES);
    // Addresses in the upper half are above this limit.
    let of_host = of_host.filter(|symbol| symbol.address < HOST_FRAMES + (1 << 32));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let named = of_host.map(|symbol| {
        let module = text(symbol.module.unwrap_or_default());
        (symbol.address, (text(symbol.name), module))
    });
    named.collect()
}

/// A function of the host in a stack: its name and its module.
pub type HostFrame = (String, String);

/// The host's part of each stack that has one, innermost first.
///
/// # Panics
/// If one of its frames has no name, or one of the guest's frames is a function of the host.
pub fn host_stacks(samples: &[(Sample, Vec<u64>)], contents: &Contents) -> Vec<Vec<HostFrame>> {
    let functions = host_functions(contents);
    let mut stacks = Vec::new();
    for (sample, frames) in samples {
        let (guest, host) = frames.split_at(frames.len() - usize::from(sample.stack.host));
        let is_host = |frame: &u64| functions.contains_key(frame);
        assert!(!guest.iter().any(is_host), "{frames:x?}");
        if host.is_empty() {
            continue;
        }
        assert!(!guest.is_empty());
        let named = host.iter().map(|frame| functions[frame].clone());
        stacks.push(named.collect());
    }
    stacks
}

/// The number of user samples that [`check_demo_processes`] needs.
pub const ENOUGH_SAMPLES: usize = 500;

/// Checks user samples of the demo guest, each a program counter and a pid: a program counter in a process's own code must have that
/// process's pid.
///
/// # Panics
/// If there are too few, or some have another pid.
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

/// The row of the demo guest's truth to which a sample of it belongs.
///
/// # Panics
/// If it belongs to no row.
pub fn demo_row(sample: &Sample) -> usize {
    let mode = match sample.mode {
        SampleMode::User => Mode::User,
        SampleMode::Kernel => Mode::Kernel,
        SampleMode::Interrupt => Mode::Interrupt,
        SampleMode::Idle => Mode::Idle,
    };
    row_of(mode, sample.pid, sample.pc).unwrap_or_else(|| panic!("{sample:x?}"))
}

/// How many of the samples, and of the ticks that were idle without one, are in each row of the demo guest.
///
/// # Panics
/// If a sample belongs to no row.
pub fn counts_of_rows<'a>(samples: impl IntoIterator<Item = &'a Sample>, idle: u64) -> [u64; ROWS] {
    let mut counts = [0; ROWS];
    for sample in samples {
        counts[demo_row(sample)] += 1;
    }
    let row = rows().iter().position(|row| row.mode == Mode::Idle);
    counts[row.unwrap()] += idle;
    counts
}
