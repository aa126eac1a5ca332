//! What collecting from many guests costs: kvmprof-collect, with simulated guests that serve recordings at their sockets.
//!
//! `cargo bench -p kvmprof-collect --bench fleet -- 10 200 1000` measures with so many guests, each of one vCPU at 19 Hz. Half of the ticks are
//! idle; the others have one of 200 stacks of 16 frames. All run one kernel with 70,000 functions, each at another address. With `real=4` there are so many guests of `kvmprof demo` beside them, which need a
//! KVM. What is collected goes to Parquet files of 20 s each (`file=20`), of which there are two of each guest in the 40 s that are measured. It prints the collector's
//! processor time, as a share of one core, the part of it that the sink's thread takes, and its memory, beside the budgets. Its exit status tells nothing of them:
//! other programs on the host take part in the processor's caches.

mod guest;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};

/// What is measured, after the time in which all are found.
const TIME: Duration = Duration::from_secs(40);
const WARM_UP: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_secs(10);
const MAX_STEPS: u32 = 20;
/// Seconds of a Parquet file, unless said otherwise: shorter than by default, so that what files cost is in the time.
const FILE: u64 = 20;
/// Budgets by numbers of guests, in per cent of a core and MiB.
const BUDGETS: [(usize, f64, Option<f64>); 2] = [(20, 1.0, None), (200, 3.0, Some(150.0))];
/// Ticks of a second in `/proc/PID/stat` (`_SC_CLK_TCK`, always 100 on x86-64).
const CLOCK: f64 = 100.0;

fn main() {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let limit = Rlimit {
        current: Some(1 << 14),
        maximum: Some(1 << 14),
    };
    // Without it, few guests can be simulated.
    let _ = setrlimit(Resource::Nofile, limit);
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
    let real = named("real=").and_then(|real| usize::try_from(real).ok());
    let file = named("file=").unwrap_or(FILE);
    for count in counts {
        measure(count, real.unwrap_or_default(), file);
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
    // The state, which is no number, is before them: fields 14 and 15 of proc(5).
    (fields[10] + fields[11]) / CLOCK
}

/// The most memory that a process has had, in MiB.
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

/// What was measured, beside what it may be.
fn print(what: &str, (number, unit): (f64, &str), digits: usize, budget: Option<f64>) {
    let budget = match budget {
        None => String::new(),
        Some(budget) if number <= budget => format!(", budget {budget:.0} {unit}: kept"),
        Some(budget) => format!(", budget {budget:.0} {unit}: EXCEEDED"),
    };
    println!("  {number:.digits$} {what}{budget}");
}

/// Waits until all guests have been begun with and tick as fast as they are to, as far as this host lets them.
fn warm_up(guests: &guest::Guests, count: usize) {
    let count = f64::from(u32::try_from(count).expect("few guests"));
    let step = || {
        let before = guests.ticks();
        sleep(STEP);
        (guests.ticks() - before) / STEP.as_secs_f64()
    };
    sleep(WARM_UP);
    for _ in 0..MAX_STEPS {
        if step() >= 0.9 * count * f64::from(guest::HZ) {
            break;
        }
    }
}

fn measure(count: usize, real: usize, file: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let guests = guest::start(folder.path(), count);
    let demos = start_real(folder.path(), real);
    let mut collector = start(folder.path(), file);
    warm_up(&guests, count);
    let process = PathBuf::from(format!("/proc/{}", collector.id()));
    let sink = sink_thread(&process);
    let lake = folder.path().join("lake");
    let look = || (used(&process), used(&sink), guests.ticks(), files(&lake));
    let (before, begin) = (look(), Instant::now());
    sleep(TIME);
    let (after, seconds) = (look(), begin.elapsed().as_secs_f64());
    let share = |after, before| (after - before) / seconds * 100.0;
    let budget = BUDGETS.iter().find(|(guests, ..)| *guests == count);
    println!(
        "{count} guests and {real} real ones, {:.0} ticks a second of the former, {} Parquet files of {file} s:",
        (after.2 - before.2) / seconds,
        after.3 - before.3
    );
    let all = share(after.0, before.0);
    print(
        "% of a core",
        (all, "%"),
        2,
        budget.map(|(_, share, _)| *share),
    );
    print(
        "% of a core of these for the files",
        (share(after.1, before.1), "%"),
        2,
        None,
    );
    let memory = memory(&process);
    print(
        "MiB at most",
        (memory, "MiB"),
        0,
        budget.and_then(|(.., memory)| *memory),
    );
    kill_process(Pid::from_child(&collector), Signal::TERM).expect("a process");
    collector.wait().expect("its end");
    drop(demos);
}
