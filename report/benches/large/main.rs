//! Measures `kvmprof report` on a large recording, in time and memory, and `perf report` on an export of the same
//! samples. Each runs once, as a process of its own, with its default number of threads.
//!
//! `KVMPROF_BENCH_SAMPLES` sets the number of samples, 10 million by default. perf takes several minutes for these, and
//! its file 2 GB.

mod process;
mod recording;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kvmprof_report::export::{Format, Source};
use kvmprof_report::profile::{Layout, Look, Profile, SortBy, print as print_report};
use process::{Taken, measure};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SAMPLES: &str = "KVMPROF_BENCH_SAMPLES";
const DEFAULT_SAMPLES: u64 = 10_000_000;
/// The limits of the report for [`DEFAULT_SAMPLES`], on two cores.
const ALLOWED: Taken = Taken {
    time: Duration::from_secs(10),
    bytes: 1 << 30,
};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // cargo test runs benches too, to see that they start.
        ["--test", ..] => Ok(()),
        ["report", recording] => report(Path::new(recording)),
        ["export", recording, output] => export(Path::new(recording), Path::new(output)),
        _ => compare(),
    }
}

/// Does the work of `kvmprof report`.
fn report(recording: &Path) -> Result<()> {
    let profile = Profile::from_file(recording, &[])?;
    let layout = Layout {
        sections: Vec::new(),
        sort: SortBy::default(),
        top: 20,
        look: Look::for_terminal(false),
    };
    print_report(&profile, &layout, &[], &mut std::io::stdout().lock())?;
    Ok(())
}

/// Does the work of `kvmprof export --format perf-data`.
fn export(recording: &Path, output: &Path) -> Result<()> {
    Format::PerfData.write_file(&Source::open(recording, &[])?, output)?;
    Ok(())
}

fn compare() -> Result<()> {
    let samples = match std::env::var(SAMPLES) {
        Ok(word) => word
            .parse()
            .map_err(|_| format!("{SAMPLES}: {word:?} is no number"))?,
        Err(_) => DEFAULT_SAMPLES,
    };
    let folder = tempfile::tempdir()?;
    let recorded = folder.path().join("large.kvmprof");
    let depth = recording::write(&recorded, samples)?;
    let length = std::fs::metadata(&recorded)?.len();
    println!(
        "{samples} samples, {depth:.1} frames each, in a recording of {} MB",
        length / 1_000_000
    );
    println!("{:<30} {:>9} {:>10}", "", "time", "most memory");
    let report = measure(kvmprof()?.arg("report").arg(&recorded))?;
    print("kvmprof report", report);
    let data = folder.path().join("perf.data");
    let mut export = kvmprof()?;
    export.arg("export").arg(&recorded).arg(&data);
    print("kvmprof export --format perf-data", measure(&mut export)?);
    if let Some(perf) = perf(&data)? {
        print("perf report", perf);
        println!(
            "perf report takes {:.1} times as long and {:.1} times as much memory as kvmprof report",
            perf.time.as_secs_f64() / report.time.as_secs_f64(),
            perf.megabytes() / report.megabytes(),
        );
    }
    check(samples, report)
}

fn print(name: &str, taken: Taken) {
    println!(
        "{name:<34} {:>5.1} s {:>7.0} MB",
        taken.time.as_secs_f64(),
        taken.megabytes()
    );
}

/// This program, to do the work of a kvmprof command in a process of its own.
fn kvmprof() -> Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

/// The time and memory of perf for showing the same functions, if perf is installed.
fn perf(data: &Path) -> Result<Option<Taken>> {
    let there = Command::new("perf")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !there.is_ok_and(|status| status.success()) {
        println!("no perf to compare with: apt-get install linux-perf");
        return Ok(None);
    }
    let reading = Format::PerfData.reading_command(data).unwrap_or_default();
    let mut words = reading.split(' ');
    let mut command = Command::new(words.next().unwrap_or("perf"));
    command
        .args(words)
        .args(["--stdio", "--children", "--call-graph", "none"])
        .args(["--sort", "symbol"]);
    measure(&mut command).map(Some)
}

/// Checks the limits, which grow with the number of samples.
fn check(samples: u64, report: Taken) -> Result<()> {
    if samples > DEFAULT_SAMPLES {
        return Ok(());
    }
    println!(
        "allowed for kvmprof report: {:.0} s, {:.0} MB",
        ALLOWED.time.as_secs_f64(),
        ALLOWED.megabytes()
    );
    if report.time > ALLOWED.time || report.bytes > ALLOWED.bytes {
        return Err("kvmprof report takes more than it may".into());
    }
    Ok(())
}
