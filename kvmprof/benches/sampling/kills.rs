//! How long a vCPU is stopped when a `kvmprof attach` is killed.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::wire::device;
use kvmprof_profiling::clock::ClockSource;

use super::attached::{Attached, connect};
use super::guest::Guest;

/// Number of kills.
const KILLS: u32 = 100;
/// The rate of their clock, in Hz.
const HZ: u32 = 1000;
/// Their sampling time before the kill, in us: a different time each, so that kills happen at any point.
const SAMPLING_US: u32 = 5_000;
const STEP_US: u32 = 137;
/// Time for which the guest is observed afterwards.
const WATCH: Duration = Duration::from_millis(100);

/// Measures by how long the guest's count doesn't change, and prints that. The same without a kvmprof is the host's effect on the guest.
pub fn print() -> anyhow::Result<()> {
    let guest = Guest::start("spin", ClockSource::Thread)?;
    let folder = tempfile::tempdir().context("Cannot make a folder for the socket")?;
    let socket = folder.path().join("socket");
    let (mut killed, mut quiet) = (Vec::new(), Vec::new());
    for round in 0..KILLS {
        quiet.push(longest_stand(&guest)?);
        let mut attached = Attached::start(&socket, HZ)?;
        let connection = connect(&socket)?;
        let pcs = connection.open(device::PCS, 0)?;
        pcs.ioctl(PROF_ALL, 0)?;
        let sampling = SAMPLING_US + STEP_US * round;
        thread::sleep(Duration::from_micros(sampling.into()));
        attached.0.kill().context("Cannot kill kvmprof attach")?;
        killed.push(longest_stand(&guest)?);
        drop(attached);
        // The socket and files of a killed one.
        std::fs::remove_file(&socket).context("Cannot remove the socket")?;
    }
    guest.stop()?;
    killed.sort_unstable();
    quiet.sort_unstable();
    let (most, most_quiet) = (killed.last(), quiet.last());
    let middle = |all: &[Duration]| all.get(all.len() / 2).copied().unwrap_or_default();
    println!(
        "attached by ptrace at {HZ} Hz and killed, {KILLS} times: from then on for {} ms the vCPU stood still for at most {} us, the longest {} us; \
         without kvmprof {} us, the longest {} us\n",
        WATCH.as_millis(),
        middle(&killed).as_micros(),
        most.copied().unwrap_or_default().as_micros(),
        middle(&quiet).as_micros(),
        most_quiet.copied().unwrap_or_default().as_micros()
    );
    Ok(())
}

/// The longest time without a change of the guest's count.
fn longest_stand(guest: &Guest) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let (mut rounds, mut since, mut longest) = (guest.rounds()?, began, Duration::ZERO);
    let mut changes = 0_u64;
    while began.elapsed() < WATCH {
        let now = guest.rounds()?;
        // Also if it is still stopped at the end.
        longest = longest.max(since.elapsed());
        if now != rounds {
            changes += 1;
            (rounds, since) = (now, Instant::now());
        }
    }
    ensure!(changes > 0, "The guest stands still");
    Ok(longest)
}
