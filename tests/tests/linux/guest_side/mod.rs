//! A Debian guest that profiles itself through its device nodes, with the tools and from C.

use kvmprof_tests::linux::{
    Console, Finished, Program, Scenario, debian, guest_builder, guest_program, once,
};
use serde_json::Value;

/// Modules of a stock kernel that the agent needs.
pub const MODULES: [&str; 4] = ["virtio_mmio", "virtio_console", "fuse", "cuse"];
/// Where the programs of the guest are linked to.
const HOG: u64 = 0x1000_0000;
const BRIEF: u64 = 0x3000_0000;
const PRF_CPUS: u64 = 0x40_0000;

/// The function of dd: the kernel's read of /dev/zero, with any of its ways to clear memory.
pub const ZEROING: [&str; 5] = [
    "read_zero",
    "rep_stos_alternative",
    "clear_user_rep_good",
    "clear_user_erms",
    "clear_user_original",
];

/// Maximum difference between two consecutive measurements of a process, in addition to the chance of their few samples.
const APART: f64 = 0.15;

struct Run {
    finished: Finished,
    console: Console,
    hog: Program,
    brief: Program,
}

/// A guest with that series of kernels that profiles itself.
fn run(series: &str) -> Run {
    let hog = guest_program("spin.c", HOG, &[]);
    let brief = guest_program("brief.c", BRIEF, &[]);
    let prf_cpus = guest_program("prf_cpus.c", PRF_CPUS, &[]);
    let programs = [
        ("hog_one", &hog),
        ("brief", &brief),
        ("prf_cpus", &prf_cpus),
    ];
    let finished = once(&format!("guest-side-{series}"), || {
        let kernel = debian(series);
        let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd").unwrap();
        let tools = kvmprof_lab::build_program("kvmprof-tools").unwrap();
        let guest = guest_builder(include_str!("init.sh"), &programs)
            .add(pcsd, "/bin/pcsd")
            .add(tools, "/bin/kvmprof-tools")
            .modules(&kernel, &MODULES);
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .file("guest.cpio", guest.build().unwrap())
            .run(include_str!("driver.sh"))
    });
    let console = finished.console("guest");
    println!("{}", console.text());
    Run {
        finished,
        console,
        hog,
        brief,
    }
}

// The nodes are used in each kernel by the tests of the agent.
kvmprof_tests::in_each_kernel! {
    of { in_linux_6_12("6.12") }
    both_sides_see_the_same
    each_cpus_counts_are_within_those_of_all
    only_the_groups_processes_are_recorded
    the_guest_ends_without_errors
    the_workloads_functions_are_named
}

fn the_guest_ends_without_errors(run: &Run) {
    assert_eq!(run.finished.status("guest"), 0);
}

fn each_cpus_counts_are_within_those_of_all(run: &Run) {
    for within in ["each CPU within all", "all within each CPU"] {
        assert!(run.console.has(&format!("check {within}: ok")), "{within}");
    }
}

/// The report of pcstat that the guest printed as `name`.
pub fn report_of(console: &Console, name: &str) -> Value {
    let report: Value = serde_json::from_str(console.after(name)).unwrap();
    assert_eq!(report["problems"], Value::Array(Vec::new()));
    assert!(kvmprof_tests::ledger_of(&report["ledger"]).balances());
    report
}

/// A process in a report: its share of all hits that aren't idle, of its own hits those in user mode and those in the
/// kernel, and twice the largest possible standard error of these.
pub fn process(report: &Value, pid: i32) -> [f64; 4] {
    let hits = |value: &Value| value.as_f64().unwrap_or(0.0);
    let types = &report["types"];
    let busy: f64 = ["USER", "KERNEL", "KERNELI"]
        .map(|kind| hits(&types[kind]))
        .iter()
        .sum();
    let rows = report["processes"].as_array().unwrap();
    let Some(row) = rows.iter().find(|row| row["pid"] == pid) else {
        return [0.0; 4];
    };
    let own = hits(&row["hits"]);
    [
        own / busy,
        hits(&row["user"]) / own,
        hits(&row["kernel"]) / own,
        1.0 / own.sqrt(),
    ]
}

/// Both sides see the same activity of the same processes. Their shares of the time aren't compared: they run on
/// separate vCPUs, which the lab machine runs irregularly.
fn both_sides_see_the_same(run: &Run) {
    let [one, copy, idle] =
        ["one is ", "copy is ", "idle is "].map(|name| run.console.number(name));
    let (within, without) = (
        report_of(&run.console, "picture "),
        run.finished.json("guest.picture.json"),
    );
    for (side, report) in [("within", &within), ("the host", &without)] {
        let [share, user, ..] = process(report, one);
        assert!(share > 0.02 && user > 0.7, "{side}: {share} {user}");
        let [share, _, kernel, _] = process(report, copy);
        assert!(share > 0.02 && kernel > 0.7, "{side}: {share} {kernel}");
        let [share, ..] = process(report, idle);
        assert!(share < 0.02, "{side}: {share}");
    }
    for pid in [one, copy] {
        let ([_, user, kernel, chance], [_, other_user, other_kernel, other_chance]) =
            (process(&within, pid), process(&without, pid));
        let apart = (user - other_user).abs().max((kernel - other_kernel).abs());
        assert!(
            apart < APART + chance.hypot(other_chance),
            "{pid}: {user} and {kernel} within, {other_user} and {other_kernel} from the host"
        );
    }
}

/// Only processes of the group are recorded; its members start and end.
fn only_the_groups_processes_are_recorded(run: &Run) {
    let report = report_of(&run.console, "group ");
    let types = report["types"].as_object().unwrap();
    let hits = |kind: &str| types.get(kind).and_then(Value::as_u64).unwrap_or(0);
    assert!(
        hits("USER") > 0 && hits("KERNEL") == 0 && hits("MKERNEL") > 0,
        "{types:?}"
    );
    let processes = report["processes"].as_array().unwrap();
    let last_pid = i64::from(run.console.accounts("group").last_pid);
    assert!(processes.len() >= 3, "members come and go: {processes:?}");
    for process in processes {
        let pid = process["pid"].as_i64().unwrap();
        assert!((1..=last_pid).contains(&pid), "{process}");
    }
    let mut of_brief = 0;
    for counter in report["program_counters"].as_array().unwrap() {
        let address = counter["pc"].as_str().unwrap().trim_start_matches("0x");
        let address = u64::from_str_radix(address, 16).unwrap();
        assert!(
            !run.hog.text.contains(&address),
            "not of the group: {counter}"
        );
        if run.brief.text.contains(&address) {
            of_brief += counter["hits"].as_u64().unwrap();
        }
    }
    assert!(
        of_brief * 2 > hits("USER"),
        "{of_brief} of {} in its program",
        hits("USER")
    );
}

/// The percentage of `names` in the profile that the guest printed.
pub fn profile_share(console: &Console, names: &[&str]) -> f64 {
    let text = console.text();
    let (_, profile) = text.split_once("profile begins\n").unwrap();
    let (profile, _) = profile.split_once("profile ends").unwrap();
    println!("{profile}");
    let rows = profile.lines().filter_map(|line| line.rsplit_once(' '));
    rows.filter(|(name, _)| names.contains(&name.trim()))
        .map(|(_, percent)| percent.parse::<f64>().unwrap())
        .sum()
}

/// prfpr names the functions in which the workload spends its time.
fn the_workloads_functions_are_named(run: &Run) {
    let zeroing = profile_share(&run.console, &ZEROING);
    // cat: /proc/kallsyms is decompressed and printed.
    let printing = profile_share(
        &run.console,
        &[
            "kallsyms_expand_symbol.constprop.0",
            "kallsyms_expand_symbol",
            "vsnprintf",
            "number",
            "format_decode",
            "string_nocheck",
            "s_show",
        ],
    );
    assert!(zeroing > 3.0 && printing > 3.0, "{zeroing}, {printing}");
    assert!(run.console.has("profiling disabled"));
}
