//! The time from the start of `kvmprof attach` until it has sampled a Linux guest and knows its kernel's functions by name, without a
//! file. Fails if a median is over [`LIMIT`].
//!
//! The guest has one of Debian's kernels in its memory, as it is while it runs, with KASLR; its vCPU is in a function of it. So this
//! needs no host that boots Linux fast enough.

mod vmm;

use std::time::{Duration, Instant};

use kvmprof_recording::file::Recording;
use kvmprof_tests::{Guest, kvmprof};

use vmm::Vmm;

/// The limit of each median.
const LIMIT: Duration = Duration::from_secs(2);
/// Number of attachments to each guest, unless the environment says otherwise.
const TIMES: usize = 11;
/// Overrides [`TIMES`].
const TIMES_VARIABLE: &str = "KVMPROF_BENCH_TIMES";
/// The guests' memory, in GiB.
const SIZES: [usize; 2] = [1, 4];
const SERIES: [&str; 2] = ["6.1", "6.12"];
const CAPTURES: [&str; 2] = ["ptrace", "kernel"];

fn main() {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    if vmm::is_wanted() {
        vmm::run();
    }
    let times = std::env::var(TIMES_VARIABLE)
        .ok()
        .map_or(TIMES, |text| text.parse().expect(TIMES_VARIABLE));
    assert!(times > 0, "{TIMES_VARIABLE} is at least 1");
    // Builds it first, if necessary.
    kvmprof();
    println!(
        "from the start of kvmprof attach to the first sample, with the kernel's names, in ms\n"
    );
    println!("kernel   memory   capture    median   longest");
    let mut is_late = false;
    for series in SERIES {
        for size in SIZES {
            let vmm = Vmm::start(series, size, 1);
            for capture in CAPTURES {
                let sample = || first_sample(&vmm, capture);
                let mut took: Vec<_> = std::iter::repeat_with(sample).take(times).collect();
                took.sort_unstable();
                let (median, longest) = (took[times / 2], took[times - 1]);
                println!(
                    "{series:<8} {size} GiB    {capture:<8} {:>8} {:>9}",
                    median.as_millis(),
                    longest.as_millis()
                );
                is_late |= median > LIMIT;
            }
        }
    }
    assert!(!is_late, "a median is over {LIMIT:?}");
}

/// Attaches once. Returns the time until the first sample.
fn first_sample(vmm: &Vmm, capture: &str) -> Duration {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recording");
    let record = path.display().to_string();
    let began = Instant::now();
    let options = ["--capture", capture, "--record", &record];
    let attached = Guest::attach(vmm.pid(), None, options);
    let is_there = || {
        let status = attached.status();
        let slide = status.machine.linux.and_then(|linux| linux.slide);
        status.clock.ledger.sampled > 0 && slide == Some(vmm::SLIDE)
    };
    while !is_there() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = began.elapsed();
    attached.stop();
    check(&path);
    took
}

/// All samples are in the vCPU's function, and it has its name.
fn check(path: &std::path::Path) {
    let recording = Recording::open(path).expect("a recording");
    let mut counters = Vec::new();
    let contents = recording
        .read(|ticks, _| counters.extend(ticks.sample.map(|sample| sample.pc)))
        .expect("a whole recording");
    let place = contents
        .symbols
        .lines()
        .find(|line| line.ends_with(&format!(" {}", vmm::FUNCTION)))
        .and_then(|line| u64::from_str_radix(line.get(..16)?, 16).ok())
        .expect("the function's name");
    assert!(!counters.is_empty() && counters.iter().all(|counter| *counter == place));
}
