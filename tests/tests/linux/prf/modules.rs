//! Stacks through modules, and the names of their functions, while others are loaded and unloaded.

use std::collections::BTreeMap;

use kvmprof_recording::file::Recording;
use kvmprof_recording::{Sample, StackEnd};
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{Finished, print_losses};

/// One that stays, and two that are loaded and unloaded.
pub const MODULES: [&str; 3] = ["brd", "raid6_pq", "nlmon"];

/// A sample, and the names of its frames, innermost first.
struct NamedSample {
    sample: Sample,
    frames: Vec<String>,
}

impl NamedSample {
    /// Whether a frame is in `module`.
    fn is_in(&self, module: &str) -> bool {
        let suffix = format!(" [{module}]");
        self.frames.iter().any(|frame| frame.ends_with(&suffix))
    }

    /// Whether the stack reaches its system call.
    fn is_whole(&self) -> bool {
        self.sample.stack.kernel_end == StackEnd::Complete
            && self.frames.iter().any(|frame| frame == "do_syscall_64")
    }
}

/// The recording of `release`; `said` are functions of the module that stays, as the kernel prints them.
pub fn check(run: &Finished, release: &str, said: &[(&str, u64)]) {
    let recording = Recording::open(&run.path(&format!("{release}.kvmprof"))).unwrap();
    let mut samples = Vec::new();
    let contents = recording
        .read(|ticks, frames| {
            samples.extend(ticks.sample.map(|sample| (sample, frames.to_vec())));
        })
        .unwrap();
    let account = contents.account;
    assert_eq!(contents.closed, Some(account));
    print_losses(release, account.ticks, account.stolen, account.lost);
    let (kernel, modules) = (
        Symbols::parse(&contents.symbols),
        functions(&contents.symbols),
    );
    for (name, address) in said {
        assert_eq!(modules.get(address), Some(&name.replace('\t', " ")));
    }
    let in_module = |address: u64| Some(modules.range(..=address).next_back()?.1.as_str());
    let name = |address: u64| match in_module(address).or_else(|| kernel.find(address)) {
        Some(name) => name.to_owned(),
        None => format!("{address:#x}"),
    };
    let seen: Vec<NamedSample> = samples
        .into_iter()
        .map(|(sample, frames)| NamedSample {
            sample,
            frames: frames.into_iter().map(name).collect(),
        })
        .collect();
    println!("{release}: {} samples", seen.len());
    // While one is being loaded or unloaded, the other may be unknown for a moment.
    check_stacks(release, &seen, MODULES[0], 85);
    // Its first samples make kvmprof read its symbols.
    check_stacks(release, &seen, MODULES[1], 70);
}

/// The functions of modules in the symbols of a recording: `function [module]`, by address. Modules are above everything else.
pub fn functions(symbols: &str) -> BTreeMap<u64, String> {
    symbols
        .lines()
        .filter_map(|line| {
            let (function, module) = line.split_once('\t')?;
            let address = u64::from_str_radix(&function[..16], 16).unwrap();
            Some((address, format!("{} {module}", &function[19..])))
        })
        .collect()
}

/// At least `percent` of the stacks through `module` are complete.
fn check_stacks(release: &str, seen: &[NamedSample], module: &str, percent: usize) {
    let all: Vec<&NamedSample> = seen.iter().filter(|seen| seen.is_in(module)).collect();
    let (whole, cut): (Vec<&NamedSample>, Vec<&NamedSample>) =
        all.iter().partition(|seen| seen.is_whole());
    println!(
        "{release}: {} of {} through {module} are whole",
        whole.len(),
        all.len()
    );
    for seen in cut.iter().take(8) {
        println!("  {:?} {:?}", seen.sample.stack, seen.frames);
    }
    assert!(all.len() >= 50, "{release}: {module}");
    assert!(
        whole.len() * 100 >= all.len() * percent,
        "{release}: {module}"
    );
}
