//! Measures `kvmprof report`, of all and of a hundredth of the time, and `kvmprof html` on a large recording, in time and memory, how long a browser takes to open that
//! page and to show what a user does there, `kvmprof export --format perf-script` of a tenth as many samples, and `perf report` on an export of the same samples.
//! Each runs once, as a process of its own, with its default number of threads.
//!
//! `KVMPROF_BENCH_SAMPLES` sets the number of samples, 10 million by default. perf takes several minutes for these, and
//! its file 2 GB. `KVMPROF_BENCH_PERF=no` leaves perf out. With the argument `page` only the page is made and used.

mod opened;
mod process;
mod recording;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::export::{Format, Source};
use kvmprof_report::html::page_of;
use kvmprof_report::profile::{
    Layout, Profile, Selection, SortBy, TableStyle, print as print_report,
};
use kvmprof_report::symbolize::Resolver;
use opened::PageMeasurement;
use process::{ProcessCost, measure};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SAMPLES: &str = "KVMPROF_BENCH_SAMPLES";
const PERF: &str = "KVMPROF_BENCH_PERF";
const DEFAULT_SAMPLES: u64 = 10_000_000;
/// One in this many samples is in the recording that is exported as text.
const TEXT_PART: u64 = 10;
/// The limits for [`DEFAULT_SAMPLES`], on two cores.
const ALLOWED: [(&str, ProcessCost); 4] = [
    ("kvmprof report", allowed(10)),
    ("kvmprof report --time", allowed(2)),
    ("kvmprof html", allowed(15)),
    ("kvmprof export --format perf-script", allowed(5)),
];

const fn allowed(seconds: u64) -> ProcessCost {
    ProcessCost {
        time: Duration::from_secs(seconds),
        bytes: 300_000_000,
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // cargo test runs benches too, to see that they start.
        ["--test", ..] => Ok(()),
        ["report", recording] => report(Path::new(recording), ":"),
        ["report", recording, time] => report(Path::new(recording), time),
        // The last one is what cargo adds.
        ["page"] | ["page", "--bench"] => use_page(),
        ["page", recording] => page(Path::new(recording)),
        ["text", recording] => text(Path::new(recording)),
        ["export", recording, output] => export(Path::new(recording), Path::new(output)),
        _ => compare(),
    }
}

/// Does the work of `kvmprof report --time`.
fn report(recording: &Path, time: &str) -> Result<()> {
    let recording = Recording::open(recording)?;
    let resolver = Resolver::from_contents(&recording.contents()?);
    let selection = Selection {
        time: time.parse()?,
        ..Selection::default()
    };
    let profile = Profile::read(&recording, selection, resolver, &Unobserved)?;
    let layout = Layout {
        tables: Vec::new(),
        sort: SortBy::default(),
        top: 20,
        style: TableStyle::for_terminal(false),
    };
    let budget = OutputBudget::of_recording(profile.length());
    print_report(
        &profile,
        &layout,
        &[],
        &budget,
        &mut std::io::stdout().lock(),
    )?;
    Ok(())
}

/// Does the work of `kvmprof html`.
fn page(recording: &Path) -> Result<()> {
    let page = page_of(&Recording::open(recording)?, &[], "A large recording")?;
    std::io::stdout().lock().write_all(page.as_bytes())?;
    Ok(())
}

/// Does the work of `kvmprof export --format perf-script`.
fn text(recording: &Path) -> Result<()> {
    let source = Source::open(recording, &[])?;
    Format::PerfScript.write(&source, &mut std::io::stdout().lock())?;
    Ok(())
}

/// Does the work of `kvmprof export --format perf-data`.
fn export(recording: &Path, output: &Path) -> Result<()> {
    Format::PerfData.write_file(&Source::open(recording, &[])?, output)?;
    Ok(())
}

/// Writes a recording of as many samples as are wanted into `folder`, and returns it and their number.
fn record(folder: &Path) -> Result<(PathBuf, u64)> {
    let samples = match std::env::var(SAMPLES) {
        Ok(word) => word
            .parse()
            .map_err(|_| format!("{SAMPLES}: {word:?} is no number"))?,
        Err(_) => DEFAULT_SAMPLES,
    };
    let recorded = folder.join("large.kvmprof");
    let depth = recording::write(&recorded, samples)?;
    let length = std::fs::metadata(&recorded)?.len();
    println!(
        "{samples} samples, {depth:.1} frames each, in a recording of {} MB",
        length / 1_000_000
    );
    Ok((recorded, samples))
}

fn use_page() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (recorded, _) = record(folder.path())?;
    check_page(open(folder.path(), &recorded)?.as_ref())
}

fn compare() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (recorded, samples) = record(folder.path())?;
    println!("{:<30} {:>9} {:>10}", "", "time", "most memory");
    let report = measure(kvmprof()?.arg("report").arg(&recorded))?;
    print("kvmprof report", report);
    let middle = recording::seconds(samples) / 2;
    let end = middle + recording::seconds(samples) / 100 + 1;
    let time = format!("{middle}:{end}");
    let part = measure(kvmprof()?.arg("report").arg(&recorded).arg(time))?;
    print("kvmprof report --time", part);
    let page = measure(kvmprof()?.arg("page").arg(&recorded))?;
    print("kvmprof html", page);
    println!(
        "kvmprof html takes {:.2} times as long and {:.2} times as much memory as kvmprof report",
        page.time.as_secs_f64() / report.time.as_secs_f64(),
        page.megabytes() / report.megabytes(),
    );
    let opened = open(folder.path(), &recorded)?;
    let few = folder.path().join("few.kvmprof");
    recording::write(&few, samples / TEXT_PART)?;
    let text = measure(kvmprof()?.arg("text").arg(&few))?;
    print("kvmprof export --format perf-script", text);
    std::fs::remove_file(&few)?;
    let taken = [report, part, page, text];
    if std::env::var(PERF).is_ok_and(|word| word == "no") {
        return check(samples, taken, opened.as_ref());
    }
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
    check(samples, taken, opened.as_ref())
}

/// Makes the page of a recording in `folder` and uses it.
fn open(folder: &Path, recorded: &Path) -> Result<Option<PageMeasurement>> {
    let path = folder.join("page.html");
    let mut page = kvmprof()?;
    page.arg("page").arg(recorded).stdout(File::create(&path)?);
    if !page.status()?.success() {
        return Err(format!("{page:?} failed").into());
    }
    let opened = opened::open(&path)?;
    if let Some(opened) = &opened {
        opened.print();
    }
    std::fs::remove_file(&path)?;
    Ok(opened)
}

fn print(name: &str, taken: ProcessCost) {
    let (seconds, megabytes) = (taken.time.as_secs_f64(), taken.megabytes());
    println!("{name:<34} {seconds:>5.1} s {megabytes:>7.0} MB");
}

/// This program, to do the work of a kvmprof command in a process of its own.
fn kvmprof() -> Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

/// The time and memory of perf for showing the same functions, if perf is installed.
fn perf(data: &Path) -> Result<Option<ProcessCost>> {
    let mut perf = Command::new("perf");
    let there = perf.arg("--version").stdout(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        println!("no perf to compare with: apt-get install linux-perf");
        return Ok(None);
    }
    let reading = Format::PerfData.reading_command(data);
    let mut words = reading.split(' ');
    let mut command = Command::new(words.next().unwrap_or("perf"));
    command
        .args(words)
        .args(["--stdio", "--children", "--call-graph", "none"])
        .args(["--sort", "symbol"]);
    measure(&mut command).map(Some)
}

/// Checks the limits of a page, which don't grow with the number of samples.
fn check_page(opened: Option<&PageMeasurement>) -> Result<()> {
    if opened.is_some_and(|opened| !opened.is_within_limits()) {
        return Err("the page takes more than it may".into());
    }
    Ok(())
}

/// Checks the limits, which grow with the number of samples.
fn check(samples: u64, taken: [ProcessCost; 4], opened: Option<&PageMeasurement>) -> Result<()> {
    check_page(opened)?;
    if samples > DEFAULT_SAMPLES {
        return Ok(());
    }
    for ((name, allowed), taken) in ALLOWED.into_iter().zip(taken) {
        let (seconds, megabytes) = (allowed.time.as_secs_f64(), allowed.megabytes());
        println!("allowed for {name}: {seconds:.0} s, {megabytes:.0} MB");
        if taken.time > allowed.time || taken.bytes > allowed.bytes {
            return Err(format!("{name} takes more than it may").into());
        }
    }
    Ok(())
}
