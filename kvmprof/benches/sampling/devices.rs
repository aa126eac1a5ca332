//! The costs of devices and samples for each other: samples of a guest with idle devices, and a guest's disk requests while it is
//! sampled.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use kvmprof_profiling::clock::ClockSource;

use crate::guest::{Devices, Guest, Window};
use crate::median;

const ROUNDS: usize = 11;
const WINDOW: Duration = Duration::from_millis(300);
/// Bytes of the disk: the host's page cache holds what is read.
const DISK: u64 = 16 << 20;
/// Requests at a time.
const DEPTHS: [u32; 2] = [1, 8];

/// Measures and prints.
pub fn print() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("Cannot make a folder for a disk")?;
    let disk = folder.path().join("disk");
    let network = folder.path().join("network");
    std::fs::write(&disk, vec![1; usize::try_from(DISK)?]).context("Cannot write a disk")?;
    let _peer = UnixListener::bind(&network).context("Cannot make a socket")?;
    idle_devices(&disk, &network)?;
    for depth in DEPTHS {
        requests(&disk, depth)?;
    }
    Ok(())
}

fn with_disk(disk: &Path) -> anyhow::Result<Devices> {
    Ok(Devices {
        disks: vec![disk.display().to_string().parse()?],
        networks: Vec::new(),
    })
}

/// The guest's work in a window, relative to the time that its vCPU's thread had.
fn throughput(window: &Window) -> f64 {
    window.rounds / window.ns
}

fn idle_devices(disk: &Path, network: &Path) -> anyhow::Result<()> {
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let mut measured = Vec::new();
        for has_devices in [false, true] {
            let mut devices = Devices::default();
            if has_devices {
                devices = with_disk(disk)?;
                devices.networks = vec![format!("socket={}", network.display()).parse()?];
            }
            let guest = Guest::start_with("spin", ClockSource::Thread, devices)?;
            let quiet = guest.quiet(WINDOW)?;
            let sampled = guest.sampled(WINDOW, 1000)?;
            guest.stop()?;
            measured.push(throughput(&sampled) / throughput(&quiet));
        }
        if let [without, with] = measured.as_slice() {
            ratios.push(with / without);
        }
    }
    println!(
        "throughput at 1 kHz, with an idle disk and network beside without: {:.3}",
        median(&ratios)
    );
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts of one window are small")]
fn requests(disk: &Path, depth: u32) -> anyhow::Result<()> {
    let (mut ratios, mut rates, mut notifications) = (Vec::new(), Vec::new(), Vec::new());
    let workload = format!("disk-load depth={depth}");
    let guest = Guest::start_with(&workload, ClockSource::Thread, with_disk(disk)?)?;
    for _ in 0..ROUNDS {
        let before = guest.counter()?;
        let first = guest.quiet(WINDOW)?;
        let after = guest.counter()?;
        let sampled = guest.sampled(WINDOW, 100)?;
        let second = guest.quiet(WINDOW)?;
        let quiet = f64::midpoint(first.rounds, second.rounds);
        ratios.push(sampled.rounds / quiet);
        rates.push(quiet / WINDOW.as_secs_f64());
        let requests = (after.rounds - before.rounds) as f64;
        let kicks = (after.exits.mmio_writes - before.exits.mmio_writes) as f64;
        notifications.push(kicks / requests);
    }
    guest.stop()?;
    println!(
        "reads of 4 KiB, {depth} at a time: {:.0} a second, {:.2} notifications each; sampled at 100 Hz {:.3} as many",
        median(&rates),
        median(&notifications),
        median(&ratios)
    );
    Ok(())
}
