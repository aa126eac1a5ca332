//! What is seen from outside agrees with what the guest's own perf sees at the same time, on Debian's kernel 6.1.
//!
//! They can't agree wholly. There is no PMU: perf's clock is a timer of the guest's, which waits while interrupts are off, so
//! that what happens then is found at the first instruction after, and perf's own work in that interrupt is seen from
//! outside alone. So samples in interrupts are left out, and the functions compared are those that take much time.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use kvmprof_devices::profiling::Mode;
use kvmprof_report::file::Recording;
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder};
use kvmprof_tests::{shared_libraries, standard_error};

/// Where Debian's package linux-perf has it.
const PERF: &str = "/usr/bin/perf";
/// The process that both look at.
const NAME: &[u8] = b"dd\0";
/// Functions that take a smaller part of the kernel's time aren't compared.
const LEAST: f64 = 0.05;
/// How far shares may be apart beside four standard errors: what interrupts that are off change.
const MARGIN: f64 = 0.06;
/// What each side has to have.
const LEAST_SAMPLES: u64 = 300;

/// Parts of the kernel's samples: of those in the function itself, and of those with it on the stack.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    own: f64,
    total: f64,
}

/// What one side has seen: the kernel's functions, by name.
#[derive(Debug)]
struct Seen {
    functions: BTreeMap<String, Shares>,
    samples: u64,
}

#[test]
fn the_guests_own_perf_agrees() {
    let mut guest = guest_builder(include_str!("init.sh"), &[]).add(PERF, "/bin/perf");
    for (library, place) in shared_libraries(Path::new(PERF)) {
        guest = guest.add(library, &place);
    }
    let run = Scenario::new()
        .kernel("vmlinuz", &debian("6.1"))
        .file("guest.cpio", guest.build().unwrap())
        .run(include_str!("driver.sh"));
    let (inside, outside) = (by_perf(&run), by_kvmprof(&run));
    for side in [&inside, &outside] {
        assert!(side.samples >= LEAST_SAMPLES, "{side:?}");
    }
    assert_eq!(inside.busiest(), outside.busiest());
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
fn compare(name: &str, inside: &Seen, outside: &Seen) -> bool {
    let of = |side: &Seen| side.functions.get(name).copied();
    let seen = of(outside).unwrap_or_default();
    // Now and then perf can't name the first functions of a system call, where it hardly ever is itself.
    let known = of(inside).unwrap_or(Shares {
        own: 0.0,
        total: seen.total,
    });
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
        let error = standard_error(known.min(1.0), inside.samples)
            .hypot(standard_error(seen, outside.samples));
        assert!((known - seen).abs() <= MARGIN + 4.0 * error, "{name}");
    }
    true
}

impl Seen {
    /// Of counts, which become parts of all `own` ones.
    fn new(mut functions: BTreeMap<String, Shares>, samples: u64) -> Self {
        let whole: f64 = functions.values().map(|shares| shares.own).sum();
        for shares in functions.values_mut() {
            shares.own /= whole;
            shares.total /= whole;
        }
        Self { functions, samples }
    }

    /// The function with the most samples of its own.
    fn busiest(&self) -> &str {
        let all = self.functions.iter();
        let found = all.max_by(|(_, one), (_, other)| one.own.total_cmp(&other.own));
        found.unwrap().0
    }
}

/// What perf printed in the guest: total, own, samples and symbol, for each function.
fn by_perf(run: &Finished) -> Seen {
    let console = run.console("guest").text();
    println!("{console}");
    let (_, report) = console.split_once("\nperf report\n").unwrap();
    let mut samples = 0;
    let rows = report.lines().filter(|line| !line.starts_with('#'));
    let rows = rows.filter_map(|line| {
        let columns: Vec<&str> = line.split(';').map(str::trim).collect();
        let &[total, own, count, symbol] = columns.as_slice() else {
            return None;
        };
        let name = symbol.strip_prefix("[k] ")?.to_owned();
        let share = |word: &str| word.strip_suffix('%').unwrap().parse::<f64>().unwrap();
        samples += count.parse::<u64>().unwrap();
        let shares = Shares {
            own: share(own),
            total: share(total),
        };
        // perf can't name the system call's entry, and has a row for that.
        let is_named = name.contains(|letter: char| !letter.is_ascii_hexdigit());
        is_named.then_some((name, shares))
    });
    let functions = rows.collect();
    Seen::new(functions, samples)
}

/// The same out of the recording.
fn by_kvmprof(run: &Finished) -> Seen {
    let recording = Recording::open(&run.path("guest.kvmprof")).unwrap();
    let mut stacks = Vec::new();
    let contents = recording
        .read(|ticks, frames| {
            let sample = ticks
                .sample
                .filter(|sample| sample.mode == Mode::Kernel && sample.comm.starts_with(NAME));
            if let Some(sample) = sample {
                let kernel = frames.get(..sample.stack.kernel.into());
                let kernel = kernel.filter(|kernel| !kernel.is_empty());
                stacks.push(kernel.map_or_else(|| vec![sample.pc], <[u64]>::to_vec));
            }
        })
        .unwrap();
    println!("{}; {} of dd in the kernel", contents.account, stacks.len());
    let samples = stacks.len() as u64;
    let symbols = Symbols::parse(&contents.symbols);
    let mut functions = BTreeMap::<String, Shares>::new();
    for stack in stacks {
        let names: Vec<&str> = stack
            .iter()
            .filter_map(|frame| symbols.find(*frame))
            .collect();
        if let Some(name) = names.first() {
            functions.entry((*name).to_owned()).or_default().own += 1.0;
        }
        for name in names.into_iter().collect::<HashSet<_>>() {
            functions.entry(name.to_owned()).or_default().total += 1.0;
        }
    }
    Seen::new(functions, samples)
}
