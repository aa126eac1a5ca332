//! `kvmprof exits` of a guest, and samples of its exits and of its faults of memory, side by side with the host's `perf kvm stat`: both count from one moment at which no vCPU runs to another. Waits for processors are
//! compared with what the host's tracer notes and its scheduler counts. The host is Debian's, with SVM.

mod beside_perf;
mod denied;
mod faults;
mod interrupts;
mod metrics;
mod recorded;
mod shared;
mod tracer;
mod waits;

use std::collections::BTreeMap;
use std::path::Path;

use kvmprof_recording::{Sample, StackEnd};
use kvmprof_tests::host_stacks;
use kvmprof_tests::linux::{Finished, Program, Scenario, debian, guest_init, guest_program, once};
use serde_json::Value;

use super::attach::ONE;
pub use beside_perf::{SVM, VMX, check_port_writes, counts_are_those_of_perf};
use denied::{
    exits_of_processes_have_their_containers, time_without_quota_is_that_of_the_control_group,
};
use faults::{
    each_page_of_a_userfaultfd_is_brought_at_its_first_fault,
    each_page_that_was_in_swap_is_read_at_its_first_fault,
};
pub use faults::{
    faults_are_the_pages_that_the_guest_touches_first, program as first_touch,
    tables_and_lists_have_all_faults,
};
use interrupts::interrupts_are_those_of_the_hosts_tracer;
use metrics::metrics_have_the_exits_that_are_counted_beside_them;
use recorded::a_recording_has_what_is_counted_beside_it;
use shared::vcpus_take_the_time_of_another_guest;
use waits::{waits_are_those_that_the_hosts_tracer_notes, waits_have_what_ran_meanwhile};

/// Functions of scenarios that count and sample exits.
pub const COMMON: &str = include_str!("common.sh");
/// The user space of their guests, with the programs `ports` and `first_touch`.
pub const INIT: &str = include_str!("init.sh");
/// Its path in Debian's package linux-perf.
pub const PERF: &str = "/usr/bin/perf";
/// The port of the program, and how often it writes there.
const PORT: u64 = 0x2345;
const WRITES: u64 = 5000;
/// How often each of two processes writes there, in turn.
const OF_PROCESSES: [u64; 2] = [1200, 700];
/// How often two processes write there while exits are samples, in all.
const SAMPLED: u64 = 1500;
/// The number of ports, and of instructions, that the same program then writes to and has.
const MANY: u64 = 20_000;
/// Maximum difference of times: perf notes an exit and an entry at another moment than kvmprof.
const MARGIN: f64 = 0.05;

kvmprof_tests::in_each_kernel! {
    a_guest_that_makes_many_different_exits_fills_no_map_beyond_its_bound
    a_recording_has_what_is_counted_beside_it
    counting_ends_with_the_guest
    counts_are_those_of_perf
    each_exit_is_a_sample_with_its_reason
    each_page_of_a_userfaultfd_is_brought_at_its_first_fault
    each_page_that_was_in_swap_is_read_at_its_first_fault
    exits_of_all_processes_are_all_exits
    exits_of_processes_are_those_that_the_guest_counts
    exits_of_processes_have_their_containers
    faults_are_the_pages_that_the_guest_touches_first
    interrupts_are_those_of_the_hosts_tracer
    metrics_have_the_exits_that_are_counted_beside_them
    port_writes_are_those_that_the_guest_counts
    samples_of_exits_have_stacks
    tables_and_lists_have_all_faults
    tables_have_what_documents_have
    time_without_quota_is_that_of_the_control_group
    vcpus_take_the_time_of_another_guest
    waits_are_those_that_the_hosts_tracer_notes
    waits_have_what_ran_meanwhile
    without_tracefs_it_says_what_to_do
}

pub fn program() -> Program {
    guest_program("ports.c", ONE, &[])
}

fn run(series: &str) -> Finished {
    once(&format!("exits-{series}"), || {
        let collector = kvmprof_lab::build_program("kvmprof-collect").unwrap();
        let programs = [("ports", &program()), ("first_touch", &first_touch())];
        let init = guest_init(INIT, &programs);
        let lazy_memory = guest_program("lazy_memory.c", ONE, &[]);
        Scenario::new()
            .memory(4096)
            .host_kernel(debian(series))
            .unpacked_kernel("vmlinuz", &debian("6.12"))
            .file("guest.cpio", init)
            .installed_program(Path::new(PERF))
            .program("kvmprof-collect", &collector)
            .module("loop")
            .program_contents("lazy_memory", &lazy_memory.file)
            .run(&format!(
                "{COMMON}\n{}\n{}",
                include_str!("waits.sh"),
                include_str!("driver.sh")
            ))
    })
}

/// The number of exits, and their time in ns.
type Exits = (u64, f64);

fn number(value: &Value, member: &str) -> u64 {
    value[member]
        .as_u64()
        .unwrap_or_else(|| panic!("{member}: {value}"))
}

/// By reason, of all vCPUs together.
fn by_kvmprof(document: &Value) -> BTreeMap<String, Exits> {
    let mut counts: BTreeMap<String, Exits> = BTreeMap::new();
    for row in document["reasons"].as_array().unwrap() {
        let name = row["reason"].as_str().unwrap().to_owned();
        let (count, time) = counts.entry(name).or_default();
        *count += number(row, "count");
        *time += number(row, "time_ns") as f64;
    }
    counts
}

fn port_writes_are_those_that_the_guest_counts(run: &Finished) {
    check_port_writes(run, &SVM);
}

fn exits_of_processes_are_those_that_the_guest_counts(run: &Finished) {
    let document = run.json("known.json");
    assert_eq!(document["knows_processes"], true);
    let text = program().text;
    let functions = document["functions"].as_array().unwrap().iter();
    let mut writes: BTreeMap<u64, u64> = BTreeMap::new();
    for row in functions.clone().filter(|row| row["process"] == "ports") {
        let address = row["address"].as_str().unwrap().trim_start_matches("0x");
        let address = u64::from_str_radix(address, 16).unwrap();
        if row["reason"] == "io" && text.contains(&address) {
            *writes.entry(number(row, "pid")).or_default() += number(row, "count");
        }
    }
    println!("{writes:?}");
    // The later process has the higher id.
    let counts: Vec<u64> = writes.values().copied().collect();
    assert_eq!(counts, OF_PROCESSES);
    let processes = document["processes"].as_array().unwrap().iter();
    for (pid, writes) in &writes {
        let mut of_process = processes.clone();
        let row = of_process.find(|row| row["pid"] == *pid && row["reason"] == "io");
        // The kernel may service the console's interrupt meanwhile.
        let row = row.unwrap();
        assert!(
            row["process"] == "ports" && number(row, "count") >= *writes,
            "{row}"
        );
    }
    // Idle tasks halt, and who waits in vain for a lock (kvm_wait, `arch/x86/kernel/kvm.c`).
    let mut halts = functions.filter(|row| row["reason"] == "hlt").peekable();
    assert!(halts.peek().is_some());
    for row in halts {
        let function = row["function"].as_str().unwrap_or_default();
        let is_known = match row["pid"].as_u64() {
            Some(0) => !function.is_empty(),
            _ => function == "native_halt",
        };
        assert!(is_known, "{row}");
    }
}

/// At the end no vCPU runs.
fn exits_of_all_processes_are_all_exits(run: &Finished) {
    let document = run.json("known.json");
    assert_eq!(document["lost"]["processes"], 0);
    let mut by_process: BTreeMap<String, u64> = BTreeMap::new();
    let (mut unknown, mut all) = (0, 0);
    for row in document["processes"].as_array().unwrap() {
        let name = row["reason"].as_str().unwrap().to_owned();
        *by_process.entry(name).or_default() += number(row, "count");
        all += number(row, "count");
        unknown += if row["pid"].is_null() {
            number(row, "count")
        } else {
            0
        };
    }
    println!("{unknown} of {all} exits have no process");
    assert!(unknown * 100 <= all);
    let by_reason = by_kvmprof(&document).into_iter();
    let by_reason: BTreeMap<String, u64> =
        by_reason.map(|(name, (count, _))| (name, count)).collect();
    assert_eq!(by_process, by_reason);
}

/// What the scheduler has counted of a thread until a moment.
struct Scheduled {
    /// For how long it has run, and waited, in ns.
    ran: f64,
    waited: f64,
    /// How often it has got a processor.
    turns: u64,
}

/// That of the vCPUs' threads.
fn scheduled(run: &Finished, moment: &str) -> BTreeMap<u64, Scheduled> {
    let text = run.text(&format!("{moment}.schedstat"));
    let rows = text.lines().map(|line| {
        let numbers = line.split_whitespace().map(|word| word.parse().unwrap());
        let [thread, ran, waited, turns]: [u64; 4] =
            numbers.collect::<Vec<_>>().try_into().unwrap();
        let counted = Scheduled {
            ran: ran as f64,
            waited: waited as f64,
            turns,
        };
        (thread, counted)
    });
    rows.collect()
}

/// A sample of an exit: the reason, the sample and its frames.
type ExitSample = (String, Sample, Vec<u64>);

/// The samples of a recording of one of `period` exits, by kvmprof attach, and the number of those without one.
fn sampled(run: &Finished, name: &str, period: u64) -> (Vec<ExitSample>, u64) {
    let (contents, samples) = run.recording(&format!("{name}.kvmprof"));
    let event = contents.info.event.map(|event| event.to_string());
    assert_eq!(event, Some(format!("kvm-exits:{period}")));
    let account = contents.account;
    println!("{account:?}");
    assert_eq!((account.idle, account.stolen), (0, 0));
    let reasons = host_stacks(&samples, &contents).into_iter().map(|frames| {
        let [(reason, module)] = &frames[..] else {
            panic!("{frames:?}")
        };
        assert_eq!(module, "[host:exit]");
        reason.clone()
    });
    let reasons: Vec<String> = reasons.collect();
    assert_eq!(reasons.len(), samples.len(), "each has a reason");
    let samples = reasons.into_iter().zip(samples);
    let samples = samples.map(|(reason, (sample, frames))| (reason, sample, frames));
    (samples.collect(), account.lost)
}

/// Those of the program's writes.
fn sampled_writes(samples: &[ExitSample]) -> Vec<&ExitSample> {
    let text = program().text;
    let writes = samples
        .iter()
        .filter(|(reason, sample, _)| reason == "io" && text.contains(&sample.pc));
    writes.collect()
}

fn each_exit_is_a_sample_with_its_reason(run: &Finished) {
    for (name, period) in [("all", 1), ("some", 7)] {
        let (samples, lost) = sampled(run, name, period);
        let writes = sampled_writes(&samples);
        let (count, all) = (writes.len() as u64, samples.len());
        println!("{all} of every {period} exits, {count} of the program's writes; {lost} lost");
        if period == 1 {
            // Exits that the host hasn't got to at the end are in no recording.
            assert!(count > 0 && count <= SAMPLED);
        } else {
            // Other exits come in between.
            let seen = (count + lost) * period;
            assert!(seen.abs_diff(SAMPLED) <= SAMPLED / 10, "{seen}");
        }
        for (_, sample, _) in writes {
            assert!(sample.comm.starts_with(b"ports\0"), "{sample:?}");
        }
    }
}

fn samples_of_exits_have_stacks(run: &Finished) {
    let (mut whole, mut ends) = (0, Vec::new());
    let text = program().text;
    for (name, period) in [("all", 1), ("some", 7)] {
        let (samples, _) = sampled(run, name, period);
        let of_program = samples
            .iter()
            .filter(|(_, sample, _)| text.contains(&sample.pc));
        let of_program: Vec<&ExitSample> = of_program.collect();
        let is_whole = |sample: &&&ExitSample| {
            let (_, sample, frames) = sample;
            let user = &frames[..usize::from(sample.stack.user)];
            let is_there = user.len() >= 3 && user.iter().all(|frame| text.contains(frame));
            is_there && sample.stack.user_end == StackEnd::Complete
        };
        let found = of_program.iter().filter(is_whole).count();
        println!(
            "{name}: {found} of {} user stacks are whole",
            of_program.len()
        );
        whole += found;
        let halts = samples.iter().filter(|(reason, ..)| reason == "hlt");
        ends.extend(halts.map(|(_, sample, _)| sample.stack.kernel_end));
    }
    // A process may have ended when its stack is unwound.
    assert!(whole > 0);
    let complete = ends.iter().filter(|end| **end == StackEnd::Complete);
    let complete = complete.count();
    println!("{complete} of {} stacks of halts are whole", ends.len());
    assert!(!ends.is_empty() && complete * 100 >= ends.len() * 95);
}

fn a_guest_that_makes_many_different_exits_fills_no_map_beyond_its_bound(run: &Finished) {
    let document = run.json("many.json");
    let lost = &document["lost"];
    println!("{lost}");
    for (map, most) in [("accesses", 8192), ("functions", 16384)] {
        let entries = document[map].as_array().unwrap();
        let counted: u64 = entries.iter().map(|row| number(row, "count")).sum();
        println!("{map}: {} entries, {counted} exits", entries.len());
        assert_eq!(entries.len(), most);
        assert!(number(lost, map) >= MANY - most as u64);
    }
    // By reason all are there.
    let (io, _) = by_kvmprof(&document)["io"];
    let accesses = document["accesses"].as_array().unwrap().iter();
    let in_map = accesses.filter(|row| row["reason"] == "io");
    let in_map: u64 = in_map.map(|row| number(row, "count")).sum();
    assert!(
        io >= MANY && io <= in_map + number(lost, "accesses"),
        "{io}"
    );
    assert_eq!((number(lost, "threads"), number(lost, "reasons")), (0, 0));
}

fn tables_have_what_documents_have(run: &Finished) {
    let text = run.text("table");
    println!("{text}");
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    let tables = (text.lines()).filter(|line| line.starts_with("  REASON"));
    assert_eq!(tables.count(), count(" exits of 2 vCPUs in "));
    assert!((2..=3).contains(&count(" exits of 2 vCPUs in ")));
    assert!(count("  hlt") > 0);
    // The idle tasks of all processors are process 0.
    assert!(text.contains("  PROCESS  ") && text.contains(" (0)  "));
    // The last one has the names of the kernel's functions, in which alone the idle tasks are.
    let (_, last) = text.rsplit_once("  FUNCTION").unwrap();
    let idle: Vec<&str> = (last.lines().filter(|line| line.contains("  swapper/"))).collect();
    let named = |line: &&str| {
        line.split_whitespace()
            .next()
            .is_some_and(|name| !name.starts_with("0x"))
    };
    assert!(!idle.is_empty() && idle.iter().all(named), "{last}");
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|widest| widest <= 80), "{widest:?}");
}

fn counting_ends_with_the_guest(run: &Finished) {
    assert_eq!(
        run.text("end.status").trim(),
        "0",
        "{}",
        run.text("end.said")
    );
    let document = run.json("end.json");
    assert!(!document["reasons"].as_array().unwrap().is_empty());
}

fn without_tracefs_it_says_what_to_do(run: &Finished) {
    let said = run.text("unmounted.said");
    assert_eq!(run.text("unmounted.status").trim(), "1", "{said}");
    let expected = "the host's tracefs isn't mounted: mount -t tracefs tracefs /sys/kernel/tracing";
    assert!(said.contains(expected), "{said}");
}
