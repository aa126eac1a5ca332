//! profil and pcsample in Debian's kernels: programs from the manual pages alone, with libkvmprof. The hypervisor stores into their
//! memory; they themselves say what they have done.

use std::fs;
use std::ops::Range;
use std::process::Command;

use kvmprof_abi::profil::RATE_HZ;
use kvmprof_devices::profiling::Phase;
use kvmprof_library::{SHARED, STATIC, headers};
use kvmprof_recording::Mode;
use kvmprof_recording::file::Recording;
use kvmprof_tests::linux::{
    Finished, Program, Scenario, SharedProgram, debian, guest_builder, guest_program, once,
    shared_program,
};

/// Modules of a stock kernel that the agent needs in a guest.
const MODULES: [&str; 4] = ["virtio_mmio", "virtio_console", "fuse", "cuse"];
/// Where the programs are linked to; nothing depends on it.
const ADDRESS: u64 = 0x40_0000;
/// How far a share may be from the truth, beside four standard errors.
const APART: f64 = 0.03;
/// Samples of each program, at least, of which some are outside its two functions.
const SAMPLES: f64 = 200.0;
/// The rate of the guest's clock.
const HZ: u32 = 300;
/// Processes of `profil_life` that are profiled while the host looks: a parent and its children.
const FAMILY: usize = 51;
/// Counts of each child, at least.
const OWN: u64 = 4;

kvmprof_tests::in_each_kernel! {
    forked_processes_have_accounts_of_their_own
    gprof_names_the_functions_of_a_program_that_is_compiled_by_pg
    nobody_needs_a_system_call_to_be_sampled
    shares_are_those_of_the_programs_own_count
    the_pages_sentences_hold
    the_rate_is_that_of_the_pages_or_of_the_clock
}

/// A program of `tests/guests`, with the static library.
fn program(source: &str) -> Program {
    let folder = |name: &str| format!("-I{}", headers().join(name).display());
    let own = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../guest/library/source");
    guest_program(
        source,
        ADDRESS,
        &[&folder("."), &folder("aix"), own, STATIC],
    )
}

/// A program that its compiler has made a profiled one, for gprof.
fn profiled_program() -> Program {
    guest_program("profil_pg.c", ADDRESS, &["-pg", "-Wl,-u,__profil", STATIC])
}

/// A guest of that series of kernels in which all programs have run, and, with 6.1, another that may not profile itself.
fn run(series: &str) -> Finished {
    once(&format!("profil-{series}"), || {
        let kernel = debian(series);
        let names = [
            "profil_rates",
            "profil_solaris",
            "profil_aix",
            "profil_hostile",
            "profil_life",
            "profil_inherit",
        ];
        let programs = names.map(|name| (name, program(&format!("{name}.c"))));
        let profiled = profiled_program();
        let mut all: Vec<(&str, &Program)> = programs
            .iter()
            .map(|(name, program)| (*name, program))
            .collect();
        all.push(("profil_pg", &profiled));
        let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd").unwrap();
        let SharedProgram { file, libraries } = shared_program("profil_preload.c", &[]);
        let mut guest = guest_builder(include_str!("init.sh"), &all)
            .add(pcsd, "/bin/pcsd")
            .add(SHARED, "/lib/libkvmprof.so.1")
            .contents("/bin/profil_preload", 0o755, file)
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

/// What a program says after a word.
fn numbers(run: &Finished, start: &str) -> Vec<f64> {
    let console = run.console("guest");
    let words = console.after(start).split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The share of the first of two functions is that of its turns.
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

const SHARES: [&str; 5] = ["profil", "pcsample", "aix", "aix-ranges", "preload"];

fn shares_are_those_of_the_programs_own_count(run: &Finished) {
    println!("{}", run.console("guest").text());
    for name in SHARES {
        let said = numbers(run, &format!("shares {name} "));
        check_share(name, [said[0], said[1]], [said[3], said[4]]);
    }
    for name in &SHARES[..4] {
        assert_eq!(numbers(run, &format!("status {name} ")), [0.0], "{name}");
    }
    // glibc's profil, which this one is in place of, has a timer.
    assert_eq!(run.console("guest").number("timer "), 0);
}

fn nobody_needs_a_system_call_to_be_sampled(run: &Finished) {
    for name in &SHARES[..4] {
        let said = numbers(run, &format!("shares {name} "));
        assert_eq!(said.last(), Some(&0.0), "{name}");
    }
    // What counts them sees one, before and after it.
    assert_eq!(numbers(run, "shares control ").last(), Some(&2.0));
}

/// Each check that a program made has a line of its own.
fn the_pages_sentences_hold(run: &Finished) {
    let console = run.console("guest");
    let text = console.text();
    println!("{text}");
    assert_eq!(run.status("guest"), 0, "{}", run.text("guest.stderr"));
    let failed = console.failed_checks();
    assert!(failed.is_empty(), "{failed:#?}");
    for name in [
        "profil_solaris",
        "profil_aix",
        "profil_hostile",
        "profil_life",
        "profil_inherit",
    ] {
        assert!(
            console.after(&format!("{name}: ")).ends_with(", 0 failed"),
            "{name}"
        );
    }
    let series = run.text("series");
    assert!(console.after("release ").starts_with(&format!("{series}.")));
    // Other nodes have the permissions that pcsd is told.
    let modes: Vec<&str> = text
        .lines()
        .filter(|line| line.ends_with("/dev/profil") || line.ends_with("/dev/pcs"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(modes, ["crw-r-----", "crw-rw-rw-"]);
    assert!(text.contains("without pcsd: errno 19"));
}

/// A recording has all ticks: of those in a function that worked while pcsample was on, exactly every third one of the clock's, or
/// every one, was stored. Whatever the emulation loses, it loses for both.
fn the_rate_is_that_of_the_pages_or_of_the_clock(run: &Finished) {
    let pid = run.console("guest").number("rates of ");
    for (name, rate_hz) in [("limited", RATE_HZ), ("all", HZ)] {
        let console = run.console("guest");
        let said = console.after(&format!("rate {name} "));
        let words: Vec<&str> = said.split_whitespace().collect();
        let address = |word: &&str| u64::from_str_radix(word, 16).unwrap();
        assert_eq!(words[0], "1", "{name}: {said}");
        let code = address(&words[2])..address(&words[3]);
        let stored: Vec<u64> = words[4..].iter().map(address).collect();
        let (all, due) = recorded(run, pid, &code, rate_hz);
        println!(
            "{name}: {} stored, {} due of {all} recorded",
            stored.len(),
            due.len()
        );
        assert!(stored.len() >= 50, "{name}: {}", stored.len());
        assert_eq!(stored, due, "{name}");
        assert!(name == "all" || all > due.len(), "{name}: {all}");
    }
}

/// The samples of process `pid` in `code`: how many there are, and the program counters of those that are to be stored at a rate.
fn recorded(run: &Finished, pid: i32, code: &Range<u64>, rate_hz: u32) -> (usize, Vec<u64>) {
    let recording = Recording::open(&run.path("rates.kvmprof")).unwrap();
    // The recording begins with the clock.
    let mut phases = [Phase::new(HZ, rate_hz); 2];
    let (mut all, mut due) = (0, Vec::new());
    let contents = recording.read(|ticks, _| {
        let phase = &mut phases[usize::from(ticks.vcpu)];
        phase.pass(ticks.total() - u64::from(ticks.sample.is_some()));
        let Some(sample) = &ticks.sample else {
            return;
        };
        let is_due = phase.pass(1) == 1;
        if sample.pid == pid && sample.mode == Mode::User && code.contains(&sample.pc) {
            all += 1;
            if is_due {
                due.push((sample.time, sample.pc));
            }
        }
    });
    assert_eq!(contents.unwrap().info.hz, HZ);
    // It may have run on one vCPU after the other.
    due.sort_unstable();
    (all, due.into_iter().map(|(_, pc)| pc).collect())
}

/// Each of the forked processes has an account, in which every tick is.
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

fn gprof_names_the_functions_of_a_program_that_is_compiled_by_pg(run: &Finished) {
    let turns = numbers(run, "pg turns ");
    assert_eq!(run.console("guest").number("pg timer "), 0);
    let text = run.console("guest").text();
    let (_, dump) = text.split_once("gmon begin\n").unwrap();
    let (dump, _) = dump.split_once("\ngmon end").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("dump"), dump).unwrap();
    fs::write(path("program"), profiled_program().file).unwrap();
    let shell = "base64 -d dump | gzip -dc >gmon.out && gprof -b -p program gmon.out";
    let ran = Command::new("sh")
        .args(["-c", shell])
        .current_dir(folder.path())
        .output();
    let ran = ran.expect("gprof: apt-get install binutils");
    let profile = String::from_utf8_lossy(&ran.stdout).into_owned();
    println!("{profile}{}", String::from_utf8_lossy(&ran.stderr));
    // Percent, seconds in all, seconds in the function, and more; the name is last.
    let samples = |name: &str| -> f64 {
        let row = profile
            .lines()
            .find(|line| line.split_whitespace().last() == Some(name));
        let seconds = row
            .unwrap_or_else(|| panic!("no {name}"))
            .split_whitespace()
            .nth(2);
        seconds.unwrap().parse::<f64>().unwrap() * 100.0
    };
    check_share(
        "gprof",
        [samples("light"), samples("heavy")],
        [turns[0], turns[1]],
    );
}

#[test]
fn the_host_decides_whether_a_guest_profiles_itself() {
    let run = run("6.1");
    let limited = run.console("limited");
    assert!(limited.has("refused: errno 13"), "{}", limited.text());
    assert_eq!(run.status("limited"), 0, "{}", run.text("limited.stderr"));
}
