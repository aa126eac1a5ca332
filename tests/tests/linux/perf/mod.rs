//! kvmprof's view from outside agrees with that of the guest's own perf at the same time.
//!
//! There is no PMU: perf's clock is a timer of the guest, which waits while interrupts are off. So kvmprof's samples with
//! interrupts off, and those in interrupts, are excluded. perf's samples at the first instruction after, where a system call
//! turns interrupts on, are excluded on both sides.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use kvmprof_lab::shared_libraries;
use kvmprof_recording::file::Recording;
use kvmprof_recording::{IPL_MASKED, Mode};
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, print_losses};
use kvmprof_tests::standard_error;

/// Its path in Debian's package linux-perf.
const PERF: &str = "/usr/bin/perf";
/// The process that both sample.
const NAME: &[u8] = b"dd\0";
/// Where a system call turns interrupts on.
const INTERRUPTS_ON: &str = "do_syscall_64";
/// Functions with a smaller part of the kernel's time aren't compared.
const LEAST: f64 = 0.05;
/// Maximum difference of shares in addition to four standard errors: for other effects of interrupts that are off.
const MARGIN: f64 = 0.06;
/// Minimum number of samples of each side.
const LEAST_SAMPLES: u64 = 300;

/// Parts of the kernel's samples: of those in the function itself, and of those with it on the stack.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    own: f64,
    total: f64,
}

/// One side's result: the kernel's functions, by name.
#[derive(Debug, Default)]
struct KernelProfile {
    functions: BTreeMap<String, Shares>,
    samples: u64,
}

#[test]
fn perf_in_the_guest_agrees() {
    let mut guest = guest_builder(include_str!("init.sh"), &[]).add(PERF, "/bin/perf");
    for (library, place) in shared_libraries(Path::new(PERF)) {
        guest = guest.add(library, &place);
    }
    let run = Scenario::new()
        .unpacked_kernel("vmlinuz", &debian("6.12"))
        .file("guest.cpio", guest.build().unwrap())
        .run(include_str!("driver.sh"));
    let (inside, outside) = (by_perf(&run), by_kvmprof(&run));
    for side in [&inside, &outside] {
        assert!(side.samples >= LEAST_SAMPLES, "{side:?}");
    }
    println!("  own: inside outside  total: inside outside, percent");
    let names: BTreeSet<&String> = inside
        .functions
        .keys()
        .chain(outside.functions.keys())
        .collect();
    let compared = names
        .into_iter()
        .filter(|name| compare(name, &inside, &outside));
    // Reading and writing have that many.
    assert!(compared.count() >= 5, "{inside:?}");
}

/// Compares the two sides' shares of the function `name`, if they are large.
fn compare(name: &str, inside: &KernelProfile, outside: &KernelProfile) -> bool {
    let of = |side: &KernelProfile| side.functions.get(name).copied().unwrap_or_default();
    let (known, seen) = (of(inside), of(outside));
    if known.total.max(seen.total) < LEAST {
        return false;
    }
    println!(
        "{:>13.1} {:>7.1} {:>14.1} {:>7.1}  {name}",
        known.own * 100.0,
        seen.own * 100.0,
        known.total * 100.0,
        seen.total * 100.0
    );
    for (known, seen) in [(known.own, seen.own), (known.total, seen.total)] {
        let error =
            standard_error(known, inside.samples).hypot(standard_error(seen, outside.samples));
        assert!((known - seen).abs() <= MARGIN + 4.0 * error, "{name}");
    }
    true
}

impl KernelProfile {
    /// Stacks, innermost function first, and their number of samples.
    fn new<'a>(stacks: impl IntoIterator<Item = (u64, Vec<&'a str>)>) -> Self {
        let mut seen = Self::default();
        let stacks = stacks.into_iter();
        let compared = stacks.filter(|(_, stack)| stack[0] != INTERRUPTS_ON);
        for (samples, stack) in compared {
            seen.samples += samples;
            let mut functions = HashSet::new();
            for (depth, name) in stack.into_iter().enumerate() {
                let shares = seen.functions.entry(name.to_owned()).or_default();
                if depth == 0 {
                    shares.own += samples as f64;
                }
                if functions.insert(name) {
                    shares.total += samples as f64;
                }
            }
        }
        for shares in seen.functions.values_mut() {
            shares.own /= seen.samples as f64;
            shares.total /= seen.samples as f64;
        }
        seen
    }
}

/// perf's output in the guest.
fn by_perf(run: &Finished) -> KernelProfile {
    let console = run.console("guest").text();
    println!("{console}");
    let (_, stacks) = console.split_once("\nperf stacks\n").unwrap();
    let (stacks, _) = stacks.split_once("perf reported").unwrap();
    let stacks = stacks.lines().filter(|line| !line.trim().is_empty());
    KernelProfile::new(stacks.map(|line| {
        let mut words = line.split_whitespace();
        let samples = words.next().unwrap().parse().unwrap();
        (samples, words.collect())
    }))
}

/// The same from the recording.
fn by_kvmprof(run: &Finished) -> KernelProfile {
    let recording = Recording::open(&run.path("guest.kvmprof")).unwrap();
    let mut stacks = Vec::new();
    let contents = recording
        .read(|ticks, frames| {
            let sample = ticks.sample.filter(|sample| {
                sample.mode == Mode::Kernel
                    && sample.ipl != IPL_MASKED
                    && sample.comm.starts_with(NAME)
            });
            if let Some(sample) = sample {
                let kernel = frames.get(..sample.stack.kernel.into());
                let kernel = kernel.filter(|kernel| !kernel.is_empty());
                stacks.push(kernel.map_or_else(|| vec![sample.pc], <[u64]>::to_vec));
            }
        })
        .unwrap();
    let account = contents.account;
    print_losses("recording", account.ticks, account.stolen, account.lost);
    println!("{} of dd in the kernel", stacks.len());
    let symbols = Symbols::parse(&contents.symbols);
    KernelProfile::new(stacks.iter().map(|stack| {
        let names = stack.iter();
        let names = names.map(|frame| symbols.find(*frame).unwrap_or("[unknown]"));
        (1, names.collect())
    }))
}
