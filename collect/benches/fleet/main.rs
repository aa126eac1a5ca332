//! The cost of collecting from many guests: kvmprof-collect, with simulated guests that serve recordings at their sockets.
//!
//! `cargo bench -p kvmprof-collect --bench fleet` measures with 10, 20, 100, 200 and 1000 of them; `-- 20 200` with so many. Each has one vCPU at 19 Hz. Half
//! of the ticks are idle; the others have one of 200 stacks of 16 frames. All run one kernel with 70,000 functions, each at another address. Beside them there
//! are four guests of `kvmprof demo`, which need a KVM (`real=0`: none). The configuration is the default one, with the page of metrics and a sink of
//! Parquet files, each of 300 s (`file=20`: of so many). It is measured for as long as such a file takes, 40 s at least: so each guest has one file in
//! it, whenever it begins, and the share is that of a collector that runs forever. All counts take some 35 minutes.
//!
//! The last lines are a table of the collector's processor time, as a share of one core, the part of it that the sink's thread takes, and its maximum
//! memory since its start. If a budget is exceeded, or not all guests were collected from, the exit status is 1. Other programs share the processor's
//! caches, so run it on an idle host.

mod guest;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

/// Minimum time of a measurement in s, after all guests were found.
const TIME: u64 = 40;
/// Longer than the files of all guests take: with those of 300 s, these are written in the middle of the measurement.
const WARM_UP: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_secs(10);
const MAX_STEPS: u32 = 20;
/// Seconds of a Parquet file, unless said otherwise: as by default.
const FILE: u64 = 300;
/// Guests of `kvmprof demo`, unless said otherwise.
const REAL: u64 = 4;
/// Minimum part of the ticks that simulated guests have to make; they make less if the host is too slow for them.
const ENOUGH: f64 = 0.9;
/// Budgets by numbers of guests, in per cent of a core and MiB.
const BUDGETS: [(usize, f64, Option<f64>); 2] = [(20, 1.0, None), (200, 3.0, Some(150.0))];
/// Ticks of a second in `/proc/PID/stat` (`_SC_CLK_TCK`, always 100 on x86-64).
const CLOCK: f64 = 100.0;

fn main() -> ExitCode {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return ExitCode::SUCCESS;
    }
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Without it, few guests can be simulated.
    let _ = setrlimit(Resource::Nofile, all);
    let counts: Vec<usize> = std::env::args()
        .filter_map(|word| word.parse().ok())
        .collect();
    let counts = if counts.is_empty() {
        vec![10, 20, 100, 200, 1000]
    } else {
        counts
    };
    let named = |name: &str| -> Option<u64> {
        std::env::args().find_map(|word| word.strip_prefix(name)?.parse().ok())
    };
    let real = usize::try_from(named("real=").unwrap_or(REAL)).expect("few guests");
    let file = named("file=").unwrap_or(FILE).max(1);
    let measured: Vec<Measurement> = counts
        .into_iter()
        .map(|count| {
            println!("{count} guests and {real} real ones:");
            let measured = measure(count, real, file);
            println!("  {:.2} % of a core", measured.share);
            measured
        })
        .collect();
    print_table(&measured, real, file);
    if measured.iter().all(Measurement::is_kept) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The measurement of this number of simulated guests.
struct Measurement {
    guests: usize,
    /// Processor time, in per cent of a core.
    share: f64,
    /// That of the sink's thread.
    files_share: f64,
    /// The maximum memory since the start, in MiB.
    memory: f64,
    /// Ticks a second of the simulated guests.
    ticks: f64,
    /// The number of files written, and the minimum if there was one of each guest.
    files: usize,
    least_files: usize,
}

impl Measurement {
    fn budget(&self) -> Option<(f64, Option<f64>)> {
        let found = BUDGETS.iter().find(|(guests, ..)| *guests == self.guests);
        found.map(|(_, share, memory)| (*share, *memory))
    }

    /// Whether it was collected from all guests.
    fn is_whole(&self) -> bool {
        let guests = f64::from(u32::try_from(self.guests).expect("few guests"));
        self.files >= self.least_files && self.ticks >= ENOUGH * guests * f64::from(guest::HZ)
    }

    fn is_within_budget(&self) -> bool {
        self.budget().is_none_or(|(share, memory)| {
            self.share <= share && memory.is_none_or(|memory| self.memory <= memory)
        })
    }

    fn is_kept(&self) -> bool {
        self.is_whole() && self.is_within_budget()
    }

    /// The last column of the table.
    fn verdict(&self) -> String {
        if !self.is_whole() {
            return "NOT COLLECTED FROM ALL".to_owned();
        }
        let Some((share, memory)) = self.budget() else {
            return String::new();
        };
        let memory = memory.map(|memory| format!(", {memory:.0} MiB"));
        let kept = if self.is_within_budget() {
            "kept"
        } else {
            "EXCEEDED"
        };
        format!("{share:.0} %{}: {kept}", memory.unwrap_or_default())
    }
}

/// Prints the measurements as a table.
fn print_table(measured: &[Measurement], real: usize, file: u64) {
    println!("\nWith {real} real guests beside them, and Parquet files of {file} s:\n");
    println!(
        "| Guests | Processor time, of one core | of which for the files | Memory at most | Files | Ticks a second | Budget |"
    );
    println!("|---|---|---|---|---|---|---|");
    for row in measured {
        println!(
            "| {} | {:.2} % | {:.2} % | {:.0} MiB | {} | {:.0} | {} |",
            row.guests,
            row.share,
            row.files_share,
            row.memory,
            row.files,
            row.ticks,
            row.verdict()
        );
    }
}

/// Starts guests of `kvmprof demo`, which end when they are dropped.
fn start_real(folder: &Path, count: usize) -> Vec<kvmprof_collect::child::Child> {
    let start = |number| {
        let socket = folder.join(format!("real-{number}.sock"));
        let words = [
            "demo".as_ref(),
            "--jitter".as_ref(),
            "--socket".as_ref(),
            socket.as_os_str(),
        ];
        kvmprof_collect::child::Child::start(program("kvmprof"), words)
            .expect("kvmprof: cargo build --release --workspace --bins")
    };
    (0..count).map(start).collect()
}

/// The program `name`, beside this one.
fn program(name: &str) -> PathBuf {
    let bench = std::env::current_exe().expect("a path");
    let folder = bench.ancestors().nth(2).expect("a folder");
    folder.join(name)
}

fn start(folder: &Path, file: u64) -> Child {
    let pattern = folder.join("*.sock");
    let spool = folder.join("spool");
    let config = format!(
        "sockets = ['{}']\nspool.folder = '{}'\nmetrics.listen = '127.0.0.1:0'\n[[sink]]\nname = 'lake'\ntype = 'parquet'\nfolder = '{}'\nseconds = {file}\n",
        pattern.display(),
        spool.display(),
        folder.join("lake").display()
    );
    let path = folder.join("collect.toml");
    fs::write(&path, config).expect("a file");
    Command::new(program("kvmprof-collect"))
        .arg("--config")
        .arg(path)
        .stdin(Stdio::null())
        .spawn()
        .expect("kvmprof-collect: cargo build --release --workspace --bins")
}

/// The processor time of a process or a thread in s, by its folder in /proc.
fn used(folder: &Path) -> f64 {
    let stat = fs::read_to_string(folder.join("stat")).expect("a process");
    let fields = stat.rsplit(')').next().expect("fields");
    let fields: Vec<f64> = fields
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // The state, which isn't a number, is before them: fields 14 and 15 of proc(5).
    (fields[10] + fields[11]) / CLOCK
}

/// The maximum memory of a process, in MiB.
fn memory(process: &Path) -> f64 {
    let status = fs::read_to_string(process.join("status")).expect("a process");
    let memory = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let memory = memory.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    memory.expect("a number") / 1024.0
}

/// The thread of a collector's only sink.
fn sink_thread(process: &Path) -> PathBuf {
    let mut threads = fs::read_dir(process.join("task")).expect("threads");
    let is_sink = |folder: &PathBuf| {
        fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim() == "sink")
    };
    let found = threads.find_map(|thread| Some(thread.ok()?.path()).filter(is_sink));
    found.expect("the sink's thread")
}

/// How many files there are below `folder`.
fn files(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .map(|path| if path.is_dir() { files(&path) } else { 1 })
        .sum()
}

/// Waits until all guests are followed and tick at their rate, as far as this host allows.
fn warm_up(guests: &guest::Guests, count: usize) {
    let count = f64::from(u32::try_from(count).expect("few guests"));
    let step = || {
        let before = guests.ticks();
        sleep(STEP);
        (guests.ticks() - before) / STEP.as_secs_f64()
    };
    sleep(WARM_UP);
    for _ in 0..MAX_STEPS {
        if step() >= ENOUGH * count * f64::from(guest::HZ) {
            break;
        }
    }
}

fn measure(count: usize, real: usize, file: u64) -> Measurement {
    let folder = tempfile::tempdir().expect("a folder");
    let guests = guest::start(folder.path(), count);
    let demos = start_real(folder.path(), real);
    let mut collector = start(folder.path(), file);
    warm_up(&guests, count);
    let process = PathBuf::from(format!("/proc/{}", collector.id()));
    let sink = sink_thread(&process);
    let lake = folder.path().join("lake");
    let look = || (used(&process), used(&sink), guests.ticks(), files(&lake));
    // As many files of each guest, whenever it begins.
    let rounds = TIME.div_ceil(file);
    let (before, begin) = (look(), Instant::now());
    sleep(Duration::from_secs(rounds * file));
    let (after, seconds) = (look(), begin.elapsed().as_secs_f64());
    let share = |after, before| (after - before) / seconds * 100.0;
    let measured = Measurement {
        guests: count,
        share: share(after.0, before.0),
        files_share: share(after.1, before.1),
        memory: memory(&process),
        ticks: (after.2 - before.2) / seconds,
        files: after.3 - before.3,
        least_files: count + real,
    };
    kill_process(Pid::from_child(&collector), Signal::TERM).expect("a process");
    collector.wait().expect("its end");
    drop(demos);
    measured
}
