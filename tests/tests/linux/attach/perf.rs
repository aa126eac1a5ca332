//! A guest of QEMU side by side with the host's `perf kvm`: the kernel's functions have the same shares. perf doesn't have the guest's
//! processes and stacks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_init, guest_program, kernel_knowledge,
};
use kvmprof_tests::{share, standard_error};

/// Its path in Debian's package linux-perf.
const PERF: &str = "/usr/bin/perf";
const SERIES: &str = "6.12";
/// The start of the kernel's addresses.
const KERNEL: u64 = 1 << 63;
/// The processor's mode in perf's records (perf_event_open(2)): samples of the guest, in its kernel or in user mode. On hosts before 6.9
/// the mode is often wrong.
const OF_GUEST: [&str; 2] = ["0x4", "0x5"];
/// Each sets the timer, which is an exit: the host's time for it is the guest's for kvmprof, and the host's for perf.
const EXITS: [&str; 2] = ["native_write_msr", "native_apic_msr_eoi"];
/// How many functions are compared: those with the largest shares.
const COMPARED: usize = 8;
/// Maximum difference of shares in addition to four standard errors.
const MARGIN: f64 = 0.02;
/// Minimum number of samples of each side in the kernel.
const LEAST_SAMPLES: u64 = 300;

fn run() -> Finished {
    let one = guest_program("spin.c", super::ONE, &[]);
    let init = guest_init(include_str!("perf_init.sh"), &[("one", &one)]);
    Scenario::new()
        .memory(4096)
        .kernel("vmlinuz", &debian(SERIES))
        .file("guest.cpio", init)
        .qemu()
        .installed_program(Path::new(PERF))
        .run(&format!("{}\n{}", super::COMMON, include_str!("perf.sh")))
}

/// A sample of perf: the process, the program counter, and the number of frames of a stack.
struct PerfSample {
    pid: i32,
    pc: u64,
    frames: u64,
}

/// perf's samples of the guest, as `perf report -D` prints them.
fn by_perf(run: &Finished) -> Vec<PerfSample> {
    let text = run.text("perf.dump");
    let records = text.split("PERF_RECORD_SAMPLE(IP, ").skip(1);
    let mut of_host = 0;
    let samples = records.filter_map(|record| {
        // 0x5): 211/215: 0xffffffff81234567 period: 19300000 addr: 0, and on a line of its own ... FP chain: nr:0
        let (mode, rest) = record.split_once("): ").unwrap();
        if !OF_GUEST.contains(&mode) {
            of_host += 1;
            return None;
        }
        let (pid, rest) = rest.split_once('/').unwrap();
        let (_, pc) = rest.split_once(": 0x").unwrap();
        let pc = pc.split_whitespace().next().unwrap();
        let (_, frames) = record.split_once("chain: nr:").unwrap();
        Some(PerfSample {
            pid: pid.parse().unwrap(),
            pc: u64::from_str_radix(pc, 16).unwrap(),
            frames: frames.lines().next().unwrap().trim().parse().unwrap(),
        })
    });
    let samples = samples.collect();
    println!("perf kvm: {of_host} samples of the host");
    samples
}

/// The shares of the kernel's functions in those program counters that are the kernel's, and the number of those.
fn shares(counters: impl Iterator<Item = u64>) -> (BTreeMap<String, f64>, u64) {
    let knowledge = kernel_knowledge(&debian(SERIES));
    let symbols = knowledge.linux().unwrap().symbols();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for address in counters.filter(|address| *address >= KERNEL) {
        let function = symbols.function_at(address);
        let name = function.map_or("[unknown]", |(name, _)| name);
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    for name in EXITS {
        println!("{:?} samples in {name}", counts.remove(name));
    }
    let all = counts.values().sum();
    let shares = counts.into_iter();
    let shares = shares.map(|(name, count)| (name, share(count, all)));
    (shares.collect(), all)
}

fn check_page(run: &Finished) {
    let (contents, samples) = run.recording("db1.kvmprof");
    assert_eq!(contents.closed, Some(contents.account));
    assert_eq!(contents.kernel.unwrap().release, debian(SERIES).version);
    println!("by record: {} samples", samples.len());
    assert!(samples.iter().any(|(sample, _)| sample.pid > 0));
    let page = run.text("db1.html");
    assert!(page.trim_end().ends_with("</html>"));
    assert!(page.contains("do_syscall_64"));
}

#[test]
fn perf_in_the_host_agrees_but_lacks_processes_and_stacks() {
    let run = run();
    let perf = by_perf(&run);
    let (known, all) = shares(perf.iter().map(|sample| sample.pc));
    assert!(all >= LEAST_SAMPLES, "{all}");
    for name in ["perf.kernel", "perf"] {
        let (contents, samples) = run.recording(&format!("{name}.kvmprof"));
        assert_eq!(contents.kernel.unwrap().slide, 0);
        let (seen, count) = shares(samples.iter().map(|(sample, _)| sample.pc));
        assert!(count >= LEAST_SAMPLES, "{name}: {count}");
        println!("{name}: of {count}, perf kvm: of {all}");
        let names: BTreeSet<&String> = known.keys().chain(seen.keys()).collect();
        let shares = names.into_iter().map(|function| {
            let shares =
                [&seen, &known].map(|side| side.get(function).copied().unwrap_or_default());
            (shares, function)
        });
        let mut shares: Vec<_> = shares.collect();
        shares.sort_by(|([one, other], _), ([first, second], _)| {
            first.max(*second).total_cmp(&one.max(*other))
        });
        assert!(shares.len() >= COMPARED, "{known:?}");
        for ([one, other], function) in shares.into_iter().take(COMPARED) {
            let error = standard_error(one, count).hypot(standard_error(other, all));
            println!(
                "{:>6.1} {:>6.1} +- {:.1}  {function}",
                100.0 * one,
                100.0 * other,
                100.0 * error
            );
            assert!(
                (one - other).abs() <= MARGIN + 4.0 * error,
                "{name}: {function}"
            );
        }
        // The data that perf lacks.
        for process in ["dd", "one"] {
            let of_process = samples
                .iter()
                .filter(|(one, _)| one.pid == run.pid("db1", process));
            let of_process = of_process.count();
            println!("{name}: {of_process} of {} are of {process}", samples.len());
            assert!(of_process * 5 >= samples.len(), "{name}: {process}");
        }
        let kernel = samples.iter().filter(|(one, _)| one.pc >= KERNEL);
        let stacks = kernel.filter(|(_, frames)| frames.len() > 1).count();
        assert!(stacks >= 300, "{name}: {stacks}");
    }
    check_page(&run);
    let vmm: i32 = run.text("vmm.pid").trim().parse().unwrap();
    assert!(perf.iter().all(|sample| sample.pid == vmm));
    // The mark of the mode, and the program counter again.
    let frames = perf.iter().map(|sample| sample.frames).max();
    assert_eq!(frames, Some(2));
}
