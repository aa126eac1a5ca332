//! The time that `kvmprof attach` takes from a guest: how much less the guest counts while it is
//! sampled.

use std::path::Path;
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_profiling::clock::ClockSource;

use super::guest::Guest;
use super::median;

/// The rate of the measurement, in Hz.
const HZ: u32 = 100;
/// Windows of each kind, which alternate.
const WINDOWS: usize = 25;
/// The length of each.
const WINDOW: Duration = Duration::from_millis(200);
/// Timeout for attaching.
const TIMEOUT: Duration = Duration::from_secs(10);

/// `kvmprof attach`, which is ended when this is dropped.
pub struct Attached(pub Child);

impl Attached {
    /// Attaches to the guest of this process, with a clock of `hz`, and will listen at `socket`.
    pub fn start(socket: &Path, hz: u32) -> anyhow::Result<Self> {
        let child = Command::new(env!("CARGO_BIN_EXE_kvmprof"))
            .args(["attach", &process::id().to_string(), "--pid-at", "none"])
            .args(["--hz", &hz.to_string(), "--socket"])
            .arg(socket)
            .stdin(Stdio::null())
            .spawn();
        Ok(Self(child.context("Cannot start kvmprof attach")?))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // It may have failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures it, and prints the share of the guest's time.
pub fn print() -> anyhow::Result<()> {
    let guest = Guest::start("spin", ClockSource::Thread)?;
    let folder = tempfile::tempdir().context("Cannot make a folder for the socket")?;
    let socket = folder.path().join("socket");
    let attached = Attached::start(&socket, HZ)?;
    let connection = connect(&socket)?;
    let mut taken = Vec::new();
    for _ in 0..WINDOWS {
        let before = rounds_per_second(&guest)?;
        let pcs = connection.open(device::PCS, 0)?;
        pcs.ioctl(PROF_ALL, 0)?;
        let sampled = rounds_per_second(&guest)?;
        pcs.close()?;
        let after = rounds_per_second(&guest)?;
        taken.push(100.0 - 100.0 * sampled / f64::midpoint(before, after));
    }
    drop(attached);
    guest.stop()?;
    println!(
        "attached by ptrace at {HZ} Hz, median of {WINDOWS} windows: {:.1} % of the guest's time\n",
        median(&taken)
    );
    Ok(())
}

/// Connects as soon as it listens.
pub fn connect(socket: &Path) -> anyhow::Result<Connection> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match Connection::connect(socket) {
            Ok(connection) => return Ok(connection),
            Err(error) => ensure!(Instant::now() < deadline, "kvmprof doesn't attach: {error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of one window are small")]
fn rounds_per_second(guest: &Guest) -> anyhow::Result<f64> {
    let (began, before) = (Instant::now(), guest.rounds()?);
    thread::sleep(WINDOW);
    let rounds = guest.rounds()? - before;
    Ok(rounds as f64 / began.elapsed().as_secs_f64())
}
