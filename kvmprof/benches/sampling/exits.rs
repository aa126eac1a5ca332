//! The cost of an exit while `kvmprof exits` counts it, beside a bare one: of port writes, in windows that alternate. The guest's processes aren't known.

use std::fs::File;
use std::process;
use std::time::Duration;

use anyhow::{Context, anyhow};
use kvmprof_attach::exits::ExitCounter;
use kvmprof_attach::{HostKernel, find_machines};
use kvmprof_profiling::clock::ClockSource;
use kvmprof_profiling::kernel_events::{run_at_tracepoint, unavailable};
use kvmprof_recording::EventKind;

use super::guest::Guest;
use super::median;

/// Windows of each kind.
const WINDOWS: usize = 25;
/// The length of each.
const WINDOW: Duration = Duration::from_millis(100);

/// Measures and prints it, or why not: not every host's KVM passes its tracepoints.
pub fn print() -> anyhow::Result<()> {
    if let Some(why) = unavailable(EventKind::KvmExits) {
        println!("exits that are counted aren't measured here: {why}\n");
        return Ok(());
    }
    let guest = Guest::start("pio", ClockSource::Thread)?;
    let host = HostKernel::open()?;
    let own = process::id().cast_signed();
    let machines = find_machines(Ok(&host)).machines;
    let machine = machines.iter().find(|machine| machine.pid == own);
    let counter = ExitCounter::new(&host, machine.context("The guest isn't found")?, &[])?;
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..WINDOWS {
        let before = exit_us(&guest)?;
        let attached = attach(&counter)?;
        let counted = exit_us(&guest)?;
        drop(attached);
        let bare = f64::midpoint(before, exit_us(&guest)?);
        times.push(counted);
        ratios.push(counted / bare);
    }
    let counted = counter
        .read()?
        .reasons
        .iter()
        .map(|one| one.exits.count)
        .sum::<u64>();
    guest.stop()?;
    println!(
        "an exit to user space that kvmprof exits counts, median of {WINDOWS} windows with {counted} exits: {:.1} us, {:.2} bare exits\n",
        median(&times),
        median(&ratios)
    );
    Ok(())
}

/// The time of an exit in a window, in us.
fn exit_us(guest: &Guest) -> anyhow::Result<f64> {
    let window = guest.quiet(WINDOW)?;
    Ok(window.ns * 1e-3 / window.rounds)
}

/// Has the programs run until the result is dropped.
fn attach(counter: &ExitCounter) -> anyhow::Result<Vec<File>> {
    let attached = counter
        .programs()
        .map(|(tracepoint, program)| run_at_tracepoint(tracepoint, program));
    attached
        .collect::<Result<_, _>>()
        .map_err(|why| anyhow!(why))
}
