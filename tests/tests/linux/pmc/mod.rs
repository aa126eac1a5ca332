//! pmc(9) in Debian's kernels: programs from the manual page alone, with libkvmprof. The hypervisor counts; the programs know what
//! they have done.

use kvmprof_abi::pmc::{COUNTERS, CounterId, CounterSource};
use kvmprof_library::{SHARED, STATIC, headers};
use kvmprof_tests::linux::{
    Console, Finished, Program, Scenario, SharedProgram, debian, guest_builder, guest_program,
    once, shared_program,
};

/// Modules of a stock kernel that the agent needs in a guest.
const MODULES: [&str; 4] = ["virtio_mmio", "virtio_console", "fuse", "cuse"];
/// Where the programs are linked to; nothing depends on it.
const ADDRESS: u64 = 0x40_0000;
/// How far a share may be from the truth, beside four standard errors of the ticks: a turn's beginning and end aren't work.
const APART: f64 = 0.03;
/// The programs that make checks of their own, in the order in which they run.
const PROGRAMS: [&str; 5] = [
    "pmc_page",
    "pmc_life",
    "pmc_hostile",
    "pmc_shares",
    "pmc_kernel",
];

kvmprof_tests::in_each_kernel! {
    a_process_counts_itself_by_the_page
    counters_follow_processes
    hostile_programs_are_refused
    counters_are_shared_as_the_work_was
    the_kernel_counts_and_profiles
    programs_in_c_and_cpp_count_themselves
    the_node_is_for_every_user
    the_types_are_those_of_the_host
}

fn include() -> String {
    format!("-I{}", headers().display())
}

/// A program of `tests/guests`, with the static library.
fn program(source: &str) -> Program {
    let own = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../guest/library/source");
    guest_program(source, ADDRESS, &[&include(), own, STATIC, "-lstdc++"])
}

/// A guest of that series of kernels in which all programs have run, and, with 6.1, another that may not count.
fn run(series: &str) -> Finished {
    once(&format!("pmc-{series}"), || {
        let kernel = debian(series);
        let programs = PROGRAMS.map(|name| (name, program(&format!("{name}.c"))));
        let (in_c, in_cpp) = (program("pmc_brief.c"), program("pmc_brief.cc"));
        let mut all: Vec<(&str, &Program)> = programs
            .iter()
            .map(|(name, program)| (*name, program))
            .collect();
        all.extend([("pmc_static", &in_c), ("pmc_cpp", &in_cpp)]);
        let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd").unwrap();
        let SharedProgram { file, libraries } =
            shared_program("pmc_brief.c", &[&include(), SHARED]);
        let mut guest = guest_builder(include_str!("init.sh"), &all)
            .add(pcsd, "/bin/pcsd")
            .add(SHARED, "/lib/libkvmprof.so.1")
            .contents("/bin/pmc_shared", 0o755, file)
            .modules(&kernel, &MODULES);
        for (place, library) in libraries {
            guest = guest.add(library, place);
        }
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .file("series", series.into())
            .file("guest.cpio", guest.build().unwrap())
            .run(include_str!("driver.sh"))
    })
}

/// Each check that a program has made holds, and it came to its end.
#[track_caller]
fn held(run: &Finished, program: &str) {
    let console = run.console("guest");
    let text = console.text();
    // What it said is before this, and behind the same of the program before it.
    let (said, _) = text
        .split_once(&format!("{program} ended with 0"))
        .unwrap_or_else(|| panic!("{program} has failed:\n{text}"));
    let said = said
        .rsplit_once(" ended with ")
        .map_or(said, |(_, own)| own);
    println!("{said}");
    let own = Console::new(said);
    let failed = own.failed_checks();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(said.contains(&format!("{program}: ")), "{said}");
    let last = console.after(&format!("{program}: "));
    assert!(
        last.ends_with(", 0 failed") && !last.starts_with("0 checks"),
        "{last}"
    );
}

fn a_process_counts_itself_by_the_page(run: &Finished) {
    let series = run.text("series");
    let console = run.console("guest");
    assert!(console.after("release ").starts_with(&format!("{series}.")));
    held(run, "pmc_page");
}

fn counters_follow_processes(run: &Finished) {
    held(run, "pmc_life");
}

fn hostile_programs_are_refused(run: &Finished) {
    held(run, "pmc_hostile");
}

fn the_kernel_counts_and_profiles(run: &Finished) {
    held(run, "pmc_kernel");
}

/// The numbers of what a program says after a word.
fn numbers(run: &Finished, start: &str) -> Vec<f64> {
    let console = run.console("guest");
    let words = console.after(start).split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Of two processes with a known ratio of work.
fn counters_are_shared_as_the_work_was(run: &Finished) {
    held(run, "pmc_shares");
    let turns = numbers(run, "turns ");
    let of = |id: CounterId| numbers(run, &format!("counter {}: ", id.number()));
    let reads = of(CounterId::PortReads);
    assert_eq!(reads, turns[2..], "each is counted");
    let share = |pair: &[f64]| pair[0] / (pair[0] + pair[1]);
    let truth = share(&turns[..2]);
    let ticks: f64 = of(CounterId::Ticks).iter().sum();
    let error = (truth * (1.0 - truth) / ticks).sqrt();
    for id in [CounterId::CpuTime, CounterId::Ticks, CounterId::Exits] {
        let counts = of(id);
        let name = id.name();
        println!("{name}: {counts:?}, {ticks} ticks, {truth} in truth");
        if id.source() == CounterSource::Kvm && counts == [-1.0, -1.0] {
            // This host has none.
            continue;
        }
        let apart = (share(&counts) - truth).abs();
        assert!(apart < APART + 4.0 * error, "{name}: {counts:?}, {turns:?}");
    }
    // A tick stands for some 3 ms: in any other unit than ns that is less.
    let nanoseconds: f64 = of(CounterId::CpuTime).iter().sum();
    assert!(
        nanoseconds / ticks > 1e5,
        "{nanoseconds} ns in {ticks} ticks"
    );
}

fn programs_in_c_and_cpp_count_themselves(run: &Finished) {
    let console = run.console("guest");
    for program in ["pmc_static", "pmc_cpp", "pmc_shared"] {
        let said = console.after(&format!("{program}: "));
        assert_eq!(said, "error 0, enabled 1, value 21", "{program}");
    }
}

/// Other nodes have the permissions that pcsd is told.
fn the_node_is_for_every_user(run: &Finished) {
    let text = run.console("guest").text();
    let modes: Vec<&str> = text
        .lines()
        .filter(|line| line.ends_with("/dev/pmc") || line.ends_with("/dev/pcs"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(modes, ["crw-r-----", "crw-rw-rw-"]);
    assert!(text.contains("without pcsd: errors 19 19 19, counters 0, type -1"));
}

fn the_types_are_those_of_the_host(run: &Finished) {
    let text = run.console("guest").text();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("counter ") && line.contains(" type "))
        .collect();
    assert_eq!(lines.len(), COUNTERS, "{text}");
    for (id, line) in CounterId::ALL.into_iter().zip(lines) {
        let (number, source) = (id.number(), id.source() as u8);
        let start = format!("counter {number} type {source} error ");
        let error = line.strip_prefix(&start);
        // What kvmprof counts each host has.
        let expected: &[&str] = match id.source() {
            CounterSource::Kvmprof => &["0"],
            CounterSource::Kvm | CounterSource::Processor => &["0", "19"],
        };
        assert!(
            error.is_some_and(|error| expected.contains(&error)),
            "{line}"
        );
    }
}

#[test]
fn the_host_decides_whether_a_guest_counts() {
    let run = run("6.1");
    let limited = run.console("limited");
    let expected = "refused: errors 13 13 13, counters 0, type -1";
    assert!(limited.has(expected), "{}", limited.text());
    assert_eq!(run.status("limited"), 0, "{}", run.text("limited.stderr"));
}
