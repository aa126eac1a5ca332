//! What it takes to follow guests of other VMMs by the host's kernel (`kvmprof collect`, `attach.capture = "kernel"`, 19 Hz): 1, 20 and 200 of
//! them; `-- 20 50` so many. Needs `cargo build --release --workspace --bins`, and some 12 GiB of memory for 200.
//!
//! Each guest is a VMM of its own, with one vCPU in a kernel of Debian's; together they keep one processor busy. The processor time and memory are those
//! of the collector, of the launcher and of all that it starts, once each guest has had windows. The interrupts in which samples are taken are
//! accounted to the guests.

#[path = "../first_sample/vmm.rs"]
mod vmm;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use kvmprof_tests::kvmprof;

use vmm::Vmm;

const COUNTS: [usize; 3] = [1, 20, 200];
/// How long is measured.
const TIME: Duration = Duration::from_secs(60);
/// What each guest has had before, so that nothing of its start is measured.
const WINDOWS: f64 = 2.0;
const POLL: Duration = Duration::from_secs(1);
/// The limits of OpenTelemetry's profiler: a share of all processors in per cent, and MB.
const LIMITS: [f64; 2] = [1.0, 250.0];
/// Ticks of a second in `/proc/PID/stat` (`_SC_CLK_TCK`, always 100 on x86-64).
const CLOCK: f64 = 100.0;

fn main() {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    if vmm::is_wanted() {
        vmm::run();
    }
    let counts: Vec<usize> = std::env::args()
        .filter_map(|word| word.parse().ok())
        .collect();
    let counts = if counts.is_empty() {
        COUNTS.to_vec()
    } else {
        counts
    };
    let [share, memory] = LIMITS;
    println!("OpenTelemetry's profiler is to take {share} % of all processors, and {memory} MB\n");
    println!(
        "| Guests | Processor time, of all processors | of one: collector | launcher | attach | Memory: collector | launcher | attach | Samples a second |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for count in counts {
        measure(count);
    }
}

/// Prints a row of the table.
fn measure(count: usize) {
    let vmm = Vmm::start("6.12", 1, count);
    let folder = tempfile::tempdir().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let running = Running(start(folder.path(), &vmm, count, &address));
    let windows = || series(&address, "kvmprof_windows_total{", "");
    while windows().iter().filter(|count| **count >= WINDOWS).count() < count {
        sleep(POLL);
    }
    let sampled = || {
        let sampled = series(&address, "kvmprof_ticks_total{", "fate=\"sampled\"");
        sampled.into_iter().sum::<f64>()
    };
    let look = || (processor_time(running.0.id()), sampled());
    let (before, begin) = (look(), Instant::now());
    sleep(TIME);
    let (after, seconds) = (look(), begin.elapsed().as_secs_f64());
    let processors = available_parallelism().map_or(1, usize::from);
    let processors = f64::from(u32::try_from(processors).expect("some processors"));
    let cost = |role| {
        let own = after.0.iter().filter(|(_, (of, _))| *of == role);
        own.fold((0.0, 0.0), |(time, used), (pid, (_, now))| {
            let earlier = before.0.get(pid).map_or(0.0, |(_, earlier)| *earlier);
            (
                time + (now - earlier) / seconds * 100.0,
                used + memory(*pid),
            )
        })
    };
    let [collector, launcher, attach] = [COLLECTOR, LAUNCHER, ATTACH].map(cost);
    println!(
        "| {count} | {:.2} % | {:.2} % | {:.2} % | {:.2} % | {:.0} MB | {:.0} MB | {:.0} MB | {:.1} |",
        (collector.0 + launcher.0 + attach.0) / processors,
        collector.0,
        launcher.0,
        attach.0,
        collector.1,
        launcher.1,
        attach.1,
        (after.1 - before.1) / seconds,
    );
}

/// What a process is, by its depth below the collector: this, or more.
const COLLECTOR: usize = 0;
const LAUNCHER: usize = 1;
const ATTACH: usize = 2;

/// The collector, which ends with this, and all that it has started with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, and been waited for, already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the collector of the VMM's guests.
fn start(folder: &Path, vmm: &Vmm, count: usize, address: &str) -> Child {
    let program = fs::read_link(format!("/proc/{}/exe", vmm.pid())).expect("a program");
    let name = program.file_name().expect("a name").to_string_lossy();
    let config = folder.join("collect.toml");
    let text = format!(
        "sockets = []\nspool.folder = '{}'\nmetrics.listen = '{address}'\n[attach]\nguests = ['{name}']\ncapture = 'kernel'\nlimit = {count}\n",
        folder.join("spool").display()
    );
    fs::write(&config, text).expect("a file");
    Command::new(kvmprof().with_file_name("kvmprof-collect"))
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .spawn()
        .expect("kvmprof-collect: cargo build --release --workspace --bins")
}

/// The values of the series on the page of metrics that begin so and have this label; none while there is no page.
fn series(address: &str, begin: &str, label: &str) -> Vec<f64> {
    let page = || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        Some(page)
    };
    let page = page().unwrap_or_default();
    let lines = page.lines();
    let lines = lines.filter(|line| line.starts_with(begin) && line.contains(label));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok());
    values.collect()
}

/// The processor time in s of a process and of all below it: by pid, with what each is.
fn processor_time(pid: u32) -> BTreeMap<u32, (usize, f64)> {
    let mut times = BTreeMap::new();
    let mut waiting = vec![(pid, 0)];
    while let Some((pid, depth)) = waiting.pop() {
        // It may have ended meanwhile.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let fields: Vec<f64> = fields
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        // The state, which isn't a number, is before them: fields 14 and 15 of proc(5).
        if let [user, system] = fields.get(10..12).unwrap_or_default() {
            times.insert(pid, (depth.min(ATTACH), (user + system) / CLOCK));
        }
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok());
            waiting.extend(children.map(|pid| (pid, depth + 1)));
        }
    }
    times
}

/// The memory of a process in MB; of pages that several processes have, its share.
fn memory(pid: u32) -> f64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let memory = maps.lines().find_map(|line| line.strip_prefix("Pss:"));
    let memory = memory.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    memory.unwrap_or_default() * 1024.0 / 1e6
}
