//! Measures name resolution: a million kernel addresses, looked up in the symbols of a recording.
//!
//! There are as many symbols as in a distribution kernel with modules. The addresses are random and all different, so
//! that no cache helps, neither the processor's nor the resolver's: real recordings have fewer different addresses. The
//! second pass looks up the same addresses again.

#[path = "../tests/shared/random.rs"]
mod random;

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use kvmprof_recording::file::Contents;
use kvmprof_report::symbolize::{CodeAddress, MappingSet, Resolver, Symbols};
use random::Random;

/// Number of addresses.
const ADDRESSES: usize = 1_000_000;
/// The time limit.
const ALLOWED: Duration = Duration::from_secs(1);
/// Functions of the kernel, and of each of its modules.
const FUNCTIONS: u64 = 150_000;
const MODULE_FUNCTIONS: u64 = 500;
const MODULES: u64 = 100;
/// Their addresses, and bytes of each function.
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const MODULE_SPACE: u64 = 0xffff_ffff_c000_0000;
const LENGTH: u64 = 144;

fn main() {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let text = kallsyms();
    let begin = Instant::now();
    let symbols = Symbols::parse(&text);
    println!("reading {} symbols: {:.0?}", symbols.len(), begin.elapsed());
    let addresses = addresses();
    measure("looking up the function", &addresses, |address| {
        black_box(symbols.locate(address));
    });
    let resolver = Resolver::from_contents(&Contents {
        symbol_ends: vec![text.len()],
        symbols: text,
        ..Contents::default()
    });
    let resolve = |address| {
        let asked = CodeAddress {
            mappings: MappingSet::default(),
            address,
            is_kernel: true,
        };
        black_box(resolver.resolve(asked));
    };
    measure("resolving for the first time", &addresses, resolve);
    measure("resolving again", &addresses, resolve);
}

fn measure(what: &str, addresses: &[u64], look_up: impl Fn(u64)) {
    let begin = Instant::now();
    for address in addresses {
        look_up(*address);
    }
    let time = begin.elapsed();
    let share = time.as_secs_f64() / ALLOWED.as_secs_f64();
    println!("{what}, {ADDRESSES} kernel addresses: {time:.0?}, {share:.2} of what is allowed");
}

fn kallsyms() -> String {
    let mut text = String::new();
    for index in 0..FUNCTIONS {
        let address = KERNEL + index * LENGTH;
        // Writing to a string can't fail.
        let _ = writeln!(text, "{address:x} t some_function_of_the_kernel_{index}");
    }
    for index in 0..MODULES * MODULE_FUNCTIONS {
        let (address, module) = (MODULE_SPACE + index * LENGTH, index / MODULE_FUNCTIONS);
        let _ = writeln!(text, "{address:x} t a_function_{index}\t[module_{module}]");
    }
    text
}

fn addresses() -> Vec<u64> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let address = |_| {
        if random.below(10) == 0 {
            MODULE_SPACE + random.below(MODULES * MODULE_FUNCTIONS * LENGTH)
        } else {
            KERNEL + random.below(FUNCTIONS * LENGTH)
        }
    };
    (0..ADDRESSES).map(address).collect()
}
