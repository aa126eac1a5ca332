//! profil, pcsample and pmc in Debian's kernels: programs from the manual pages, with libkvmprof. The hypervisor stores into their
//! memory and counts; they print their own counts.

use kvmprof_library::{STATIC, headers};
use kvmprof_tests::linux::{
    Finished, Program, Scenario, debian, guest_builder, guest_program, once,
};

/// Modules of a stock kernel that the agent needs in a guest.
const MODULES: [&str; 4] = ["virtio_mmio", "virtio_console", "fuse", "cuse"];
/// Where the programs are linked to; nothing depends on it.
const ADDRESS: u64 = 0x40_0000;
const PROGRAMS: [&str; 5] = [
    "profil_solaris",
    "profil_hostile",
    "profil_life",
    "profil_inherit",
    "pmc_life",
];
/// Maximum difference of a share from the truth, in addition to four standard errors.
const APART: f64 = 0.03;
/// Samples of each program, at least, of which some are outside its two functions.
const SAMPLES: f64 = 200.0;
/// Processes of `profil_life` that are profiled while the host looks: a parent and its children.
const FAMILY: usize = 51;
/// Minimum number of counts of each child.
const OWN: u64 = 4;

kvmprof_tests::in_each_kernel! {
    forked_processes_have_accounts_of_their_own
    processes_are_sampled_without_system_calls
    shares_are_those_of_the_programs_own_count
    documented_behaviour_holds
}

/// A program of `tests/guests`, with the static library.
fn program(source: &str) -> Program {
    let include = format!("-I{}", headers().display());
    let own = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../guest/library/source");
    guest_program(source, ADDRESS, &[&include, own, STATIC])
}

/// A guest with that series of kernels in which all programs have run.
fn run(series: &str) -> Finished {
    once(&format!("profil-{series}"), || {
        let kernel = debian(series);
        let programs = PROGRAMS.map(|name| (name, program(&format!("{name}.c"))));
        let programs = programs.each_ref().map(|(name, program)| (*name, program));
        let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd").unwrap();
        let guest = guest_builder(include_str!("init.sh"), &programs)
            .add(pcsd, "/bin/pcsd")
            .modules(&kernel, &MODULES);
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .file("series", series.into())
            .file("guest.cpio", guest.build().unwrap())
            .run(include_str!("driver.sh"))
    })
}

/// A program's text after a word.
fn numbers(run: &Finished, start: &str) -> Vec<f64> {
    let console = run.console("guest");
    let words = console.after(start).split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The share of the first of two functions equals its share of turns.
#[track_caller]
fn check_share(name: &str, [light, heavy]: [f64; 2], turns: [f64; 2]) {
    let samples = light + heavy;
    let truth = turns[0] / (turns[0] + turns[1]);
    let error = (truth * (1.0 - truth) / samples).sqrt();
    let apart = (light / samples - truth).abs();
    println!("{name}: {light} and {heavy} samples, {truth} in truth, apart {apart}");
    assert!(samples >= SAMPLES, "{name}: {light} and {heavy}");
    assert!(
        apart < APART + 4.0 * error,
        "{name}: {light} and {heavy} samples, {turns:?} turns"
    );
}

const SHARES: [&str; 2] = ["profil", "pcsample"];

fn shares_are_those_of_the_programs_own_count(run: &Finished) {
    println!("{}", run.console("guest").text());
    for name in SHARES {
        let said = numbers(run, &format!("shares {name} "));
        check_share(name, [said[0], said[1]], [said[3], said[4]]);
    }
    for name in SHARES {
        assert_eq!(numbers(run, &format!("status {name} ")), [0.0], "{name}");
    }
}

fn processes_are_sampled_without_system_calls(run: &Finished) {
    for name in SHARES {
        let said = numbers(run, &format!("shares {name} "));
        assert_eq!(said.last(), Some(&0.0), "{name}");
    }
    // The counting client sees one, before and after it.
    assert_eq!(numbers(run, "shares control ").last(), Some(&2.0));
}

/// Each check of a program has a line of its own.
fn documented_behaviour_holds(run: &Finished) {
    let console = run.console("guest");
    let text = console.text();
    println!("{text}");
    assert_eq!(run.status("guest"), 0, "{}", run.text("guest.stderr"));
    let failed = console.failed_checks();
    assert!(failed.is_empty(), "{failed:#?}");
    for name in PROGRAMS {
        assert!(
            console.after(&format!("{name}: ")).ends_with(", 0 failed"),
            "{name}"
        );
    }
    let series = run.text("series");
    assert!(console.after("release ").starts_with(&format!("{series}.")));
    // Other nodes have the permissions that are given to pcsd.
    let modes: Vec<&str> = text
        .lines()
        .filter(|line| line.ends_with("/dev/profil") || line.ends_with("/dev/pcs"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(modes, ["crw-r-----", "crw-rw-rw-"]);
    assert!(text.contains("without pcsd: errno 19"));
}

/// Each of the forked processes has an account with all its ticks.
fn forked_processes_have_accounts_of_their_own(run: &Finished) {
    let parent = run.console("guest").number("parent ");
    let status = run.status_document("children.status");
    let family: Vec<_> = status
        .profil()
        .filter(|process| process.pid >= parent)
        .collect();
    assert_eq!(family.len(), FAMILY, "{:#?}", status.consumers);
    for process in family {
        let ledger = process.ledger;
        assert!(ledger.balances(), "{process:?}");
        assert_eq!(process.state, "on", "{process:?}");
        assert!(ledger.recorded >= OWN, "{process:?}");
        assert_eq!(ledger.discarded, 0, "{process:?}");
    }
}
