//! A guest of QEMU's side by side with the host's `perf kvm`: the kernel's functions have the same shares. Which process of the guest
//! ran, perf doesn't know.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_init, guest_program, kernel_knowledge,
};
use kvmprof_tests::standard_error;

/// Where Debian's package linux-perf has it.
const PERF: &str = "/usr/bin/perf";
const SERIES: &str = "6.12";
/// Where the kernel's addresses begin.
const KERNEL: u64 = 1 << 63;
/// Functions that take a smaller part of the kernel's time aren't compared.
const LEAST: f64 = 0.05;
/// How far shares may be apart beside four standard errors.
const MARGIN: f64 = 0.03;

fn run() -> Finished {
    let one = guest_program("spin.c", super::ONE, &[]);
    let two = guest_program("spin.c", super::TWO, &[]);
    let sometimes = guest_program("brief.c", super::SOMETIMES, &[]);
    let programs = [("one", &one), ("two", &two), ("sometimes", &sometimes)];
    Scenario::new()
        .memory(4096)
        .kernel("vmlinuz", &debian(SERIES))
        .file("guest.cpio", guest_init(include_str!("init.sh"), &programs))
        .qemu()
        .installed_program(Path::new(PERF))
        .run(&format!("{}\n{}", super::COMMON, include_str!("perf.sh")))
}

/// The program counters that perf has sampled in the guest, each with the process that perf takes it for.
fn by_perf(run: &Finished) -> Vec<(i32, u64)> {
    let text = run.text("perf.samples");
    let samples = text.lines().filter_map(|line| {
        let (_, sample) = line.split_once("): ")?;
        let (process, rest) = sample.split_once('/')?;
        let address = rest.split_whitespace().nth(1)?.strip_prefix("0x")?;
        Some((
            process.parse().ok()?,
            u64::from_str_radix(address, 16).ok()?,
        ))
    });
    samples.collect()
}

/// The same of a recording, with the guest's processes.
fn by_kvmprof(run: &Finished, name: &str) -> Vec<(i32, u64)> {
    let (contents, samples) = run.recording(&format!("{name}.kvmprof"));
    assert_eq!(contents.kernel.unwrap().slide, 0);
    samples
        .iter()
        .map(|(sample, _)| (sample.pid, sample.pc))
        .collect()
}

/// The shares of the kernel's functions in what is the kernel's of `samples`, and how many those are.
fn shares(samples: &[(i32, u64)]) -> (BTreeMap<String, f64>, u64) {
    let knowledge = kernel_knowledge(&debian(SERIES));
    let symbols = knowledge.linux().unwrap().symbols();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for (_, address) in samples.iter().filter(|(_, address)| *address >= KERNEL) {
        let name = symbols
            .function_at(*address)
            .map_or("[unknown]", |(name, _)| name);
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    let all = counts.values().sum();
    let share = |count| kvmprof_tests::share(count, all);
    (
        counts
            .into_iter()
            .map(|(name, count)| (name, share(count)))
            .collect(),
        all,
    )
}

#[test]
fn perf_in_the_host_agrees_and_knows_no_process() {
    let run = run();
    let perf = by_perf(&run);
    let (known, all) = shares(&perf);
    assert!(all >= 300, "{all}");
    for name in ["perf", "perf.kernel"] {
        let samples = by_kvmprof(&run, name);
        let (seen, count) = shares(&samples);
        println!("{name}: of {count}, perf kvm: of {all}");
        let names: BTreeSet<&String> = known.keys().chain(seen.keys()).collect();
        let mut compared = 0;
        for function in names {
            let [one, other] =
                [&seen, &known].map(|side| side.get(function).copied().unwrap_or_default());
            if one.max(other) < LEAST {
                continue;
            }
            println!("{:>6.1} {:>6.1}  {function}", 100.0 * one, 100.0 * other);
            let error = standard_error(one, count).hypot(standard_error(other, all));
            assert!(
                (one - other).abs() <= MARGIN + 4.0 * error,
                "{name}: {function}"
            );
            compared += 1;
        }
        assert!(compared >= 3, "{known:?}");
        // What perf lacks.
        let dd: i32 = run
            .console("perf")
            .text()
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("pid dd ")?.trim().parse().ok())
            .unwrap();
        let right = samples.iter().filter(|(pid, _)| *pid == dd).count();
        println!("{name}: {right} of {} are of dd", samples.len());
        assert!(right * 10 >= samples.len() * 9);
    }
    let vmm: i32 = run.text("vmm.pid").trim().parse().unwrap();
    assert!(perf.iter().all(|(pid, _)| *pid == vmm));
}
