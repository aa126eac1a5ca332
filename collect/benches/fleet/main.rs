//! What collecting from many guests costs: kvmprof-collect, with simulated guests that serve recordings at their sockets.
//!
//! `cargo bench -p kvmprof-collect --bench fleet -- 10 200 1000` measures with so many guests, each of one vCPU at 19 Hz. Half of the ticks are
//! idle; the others have one of 200 stacks of 16 frames. All run one kernel with 70,000 functions, each at another address. With `real=4` there are so many guests of `kvmprof demo` beside them, which need a
//! KVM. It prints the collector's processor time, as a share of one core, and its memory.

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
const STEP: Duration = Duration::from_secs(5);
const MAX_STEPS: u32 = 40;
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
        vec![10, 20, 200]
    } else {
        counts
    };
    let real = std::env::args().find_map(|word| word.strip_prefix("real=")?.parse().ok());
    for count in counts {
        measure(count, real.unwrap_or_default());
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

fn start(folder: &Path) -> Child {
    let pattern = folder.join("*.sock");
    let spool = folder.join("spool");
    let config = format!(
        "sockets = ['{}']\nspool.folder = '{}'\nmetrics.listen = '127.0.0.1:0'\n[[sink]]\nname = 'lake'\ntype = 'parquet'\nfolder = '{}'\n",
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

/// Processor time of a process in s, and its memory in MiB.
fn used(pid: u32) -> (f64, f64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields = stat.rsplit(')').next().expect("fields");
    let fields: Vec<f64> = fields
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let memory = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let memory = memory.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    // The state, which is no number, is before them: fields 14 and 15 of proc(5).
    (
        (fields[10] + fields[11]) / CLOCK,
        memory.unwrap_or_default() / 1024.0,
    )
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

fn measure(count: usize, real: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let guests = guest::start(folder.path(), count);
    let demos = start_real(folder.path(), real);
    let mut collector = start(folder.path());
    warm_up(&guests, count);
    let (before, begin) = (used(collector.id()).0, Instant::now());
    let ticks_before = guests.ticks();
    sleep(TIME);
    let ((after, memory), seconds) = (used(collector.id()), begin.elapsed().as_secs_f64());
    println!(
        "{count} guests and {real} real ones, {:.0} ticks a second of the former: {:.2} % of a core, {memory:.0} MiB at most",
        (guests.ticks() - ticks_before) / seconds,
        (after - before) / seconds * 100.0
    );
    kill_process(Pid::from_child(&collector), Signal::TERM).expect("a process");
    collector.wait().expect("its end");
    drop(demos);
}
