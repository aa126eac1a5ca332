//! Stacks through modules, and the names of their functions, while others are loaded and unloaded.

use std::collections::BTreeMap;

use kvmprof_recording::StackEnd;
use kvmprof_tests::linux::{Finished, print_losses};

use crate::named::{NamedSample, read};

/// One that stays, and two that are loaded and unloaded.
pub const MODULES: [&str; 3] = ["brd", "raid6_pq", "nlmon"];

/// Whether a frame is in `module`.
fn is_in(seen: &NamedSample, module: &str) -> bool {
    let module = format!("[{module}]");
    seen.kernel.iter().any(|frame| frame.module == module)
}

/// Whether the stack reaches its system call.
fn is_whole(seen: &NamedSample) -> bool {
    seen.sample.stack.kernel_end == StackEnd::Complete
        && (seen.kernel.iter()).any(|frame| frame.function == "do_syscall_64")
}

/// The recording of `release`; `said` are functions of the module that stays, as the kernel prints them.
pub fn check(run: &Finished, release: &str, said: &[(&str, u64)]) {
    let (contents, seen) = read(run, &format!("{release}.kvmprof"));
    let account = contents.account;
    assert_eq!(contents.closed, Some(account));
    print_losses(release, account.ticks, account.stolen, account.lost);
    let modules = functions(&contents.symbols);
    for (name, address) in said {
        assert_eq!(modules.get(address), Some(&name.replace('\t', " ")));
    }
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
    let all: Vec<&NamedSample> = seen.iter().filter(|seen| is_in(seen, module)).collect();
    let whole = all.iter().filter(|seen| is_whole(seen)).count();
    let all = all.len();
    println!("{release}: {whole} of {all} through {module} are whole");
    assert!(
        all >= 50 && whole * 100 >= all * percent,
        "{release}: {module}"
    );
}
