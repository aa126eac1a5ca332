//! `kvmprof profil` and `kvmprof pcsample` for processes of Debian's kernels, without their help: names and shares, and
//! the causes of their end. KASLR is on.

use kvmprof_tests::linux::{
    Finished, Program, Scenario, SharedProgram, debian, guest_builder, guest_program, once,
    shared_program,
};
use kvmprof_tests::{ProfilTable, share, standard_error};

const FIXED: u64 = 0x6000_0000;
const AFTER: u64 = 0x7000_0000;
/// Each function begins in a count of its own.
const ALIGNED: &str = "-falign-functions=64";
/// Maximum difference of a share from the truth, in addition to four standard errors.
const APART: f64 = 0.03;
/// Minimum number of ticks for a share.
const TICKS: u64 = 300;

// Processes of 6.1 are profiled by the tests of profil.
kvmprof_tests::in_each_kernel! {
    of { in_linux_6_12("6.12") }
    a_missing_process_is_reported
    the_end_is_noticed_with_all_earlier_ticks
    an_exec_ends_counting
    functions_have_the_shares_that_the_programs_count
}

/// It is linked to fixed addresses.
fn fixed() -> Program {
    guest_program("shares.c", FIXED, &[ALIGNED])
}

/// It may be loaded anywhere.
fn pie() -> SharedProgram {
    shared_program("shares.c", &[ALIGNED])
}

/// A guest with that series of kernels whose processes were profiled.
fn run(series: &str) -> Finished {
    once(&format!("profil-command-{series}"), || {
        let kernel = debian(series);
        let (fixed, after) = (fixed(), guest_program("shares.c", AFTER, &[]));
        let programs = [("fixed", &fixed), ("after", &after)];
        let SharedProgram { file, libraries } = pie();
        let mut guest = guest_builder(include_str!("init.sh"), &programs);
        guest = guest.contents("/bin/pie", 0o755, file);
        for (place, library) in libraries {
            guest = guest.add(library, place);
        }
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .file("guest.cpio", guest.build().unwrap())
            .run(include_str!("driver.sh"))
    })
}

/// A command's output.
struct CommandOutput {
    text: String,
    stderr: String,
    status: u8,
}

impl CommandOutput {
    fn of(run: &Finished, name: &str) -> Self {
        let profiled = Self {
            text: run.text(&format!("{name}.stdout")),
            // It may have reported that it waits for the process.
            stderr: run
                .text(&format!("{name}.stderr"))
                .lines()
                .filter(|line| !line.contains("waiting until process"))
                .collect::<Vec<_>>()
                .join("\n"),
            status: run.status(name),
        };
        println!(
            "==> {name}: {}\n{}{}",
            profiled.status, profiled.text, profiled.stderr
        );
        profiled
    }

    /// One that has succeeded.
    #[track_caller]
    fn good(run: &Finished, name: &str, said: &str) -> Self {
        let profiled = Self::of(run, name);
        assert_eq!((profiled.status, profiled.stderr.as_str()), (0, said));
        profiled
    }

    fn table(&self) -> ProfilTable {
        ProfilTable::parse(&self.text)
    }
}

/// The share of turns of the light function of `program`.
fn truth(run: &Finished, program: &str) -> f64 {
    let console = run.console("guest");
    let turns = ["light", "heavy"].map(|name| {
        let turns = console.after(&format!("{program} turns {name} "));
        turns.parse::<u64>().unwrap()
    });
    share(turns[0], turns[0] + turns[1])
}

/// `ticks` of `all` ticks are a share of `expected`.
#[track_caller]
fn check_share(what: &str, ticks: u64, all: u64, expected: f64) {
    let observed = share(ticks, all);
    println!("{what}: {observed:.3} of {all} ticks, {expected:.3} in truth");
    assert!(all >= TICKS, "{what}: {all} ticks");
    let bound = 4.0 * standard_error(expected, all) + APART;
    assert!((observed - expected).abs() < bound, "{what}");
}

fn functions_have_the_shares_that_the_programs_count(run: &Finished) {
    assert_eq!(run.status("guest"), 0, "{}", run.text("guest.stderr"));
    for (name, program) in [
        ("fixed_program", "fixed"),
        ("pie_module", "pie"),
        ("pie_program", "pie"),
        ("fixed_samples", "fixed"),
        ("pie_samples", "pie"),
    ] {
        let table = CommandOutput::good(run, name, "").table();
        let [light, heavy] = ["light", "heavy"].map(|function| table.of(function));
        check_share(name, light, light + heavy, truth(run, program));
        assert_eq!(table.sum(), table.stored());
        // They do little else.
        assert!((light + heavy) * 10 >= table.ticks * 9, "{name}: {table:?}");
    }
    for name in ["fixed_samples", "pie_samples"] {
        let table = CommandOutput::of(run, name).table();
        assert_eq!((table.ticks, table.stored()), (400, 400));
    }
}

/// The last counted tick belongs to the previous program.
fn an_exec_ends_counting(run: &Finished) {
    let said = "kvmprof: ended early: the process has executed another program";
    let table = CommandOutput::good(run, "after", said).table();
    assert!(table.ticks >= 50 && table.stored() > 0);
    assert_eq!(table.of("light") + table.of("heavy"), 0);
    // Its code still has its name.
    for (_, row) in &table.rows {
        assert!(row.iter().any(|word| word == "busybox"), "{row:?}");
    }
    let raw = CommandOutput::good(run, "after_raw", said);
    let after = guest_program("shares.c", AFTER, &[]).text;
    let samples = raw.text.lines().map(|line| {
        let digits = line.strip_prefix("0x").unwrap();
        u64::from_str_radix(digits, 16).unwrap()
    });
    let samples: Vec<u64> = samples.collect();
    assert!(samples.len() >= 50, "{}", samples.len());
    assert!(!samples.iter().any(|pc| after.contains(pc)));
}

/// Also in a guest without other activity; this one's table is a document.
fn the_end_is_noticed_with_all_earlier_ticks(run: &Finished) {
    let said = "kvmprof: ended early: the process has ended";
    for name in ["leaving", "leaving_samples"] {
        let table = CommandOutput::good(run, name, said).table();
        assert!(table.ticks >= 50 && table.stored() > 0, "{name}");
    }
    let last = CommandOutput::good(run, "last", said);
    let document: serde_json::Value = serde_json::from_str(&last.text).unwrap();
    assert_eq!(document["ended"], "ended");
    let count = |member: &str| document[member].as_u64().unwrap();
    assert!(count("ticks") >= 50);
    let parts = ["stored", "outside", "waiting", "lost"].map(count);
    assert_eq!(parts.iter().sum::<u64>(), count("ticks"));
    assert_eq!(document["rows"][0]["module"], "busybox");
}

fn a_missing_process_is_reported(run: &Finished) {
    for (name, expected) in [
        (
            "nobody",
            "The guest has no process 30000 any more, if it had one",
        ),
        (
            "nobody_sampled",
            "Process 30000 has ended before a tick found it",
        ),
    ] {
        let profiled = CommandOutput::of(run, name);
        assert_eq!((profiled.status, profiled.text.as_str()), (1, ""));
        assert!(profiled.stderr.contains(expected));
    }
}
