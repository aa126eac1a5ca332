//! The sandbox's addition to the cost of a sample: the filters of the threads of the vCPU and of events.
//!
//! A filter can't be removed, so each window is measured by another process of this program.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use kvmprof_profiling::clock::ClockSource;
use kvmprof_sandbox::{Mode, filters};

use crate::guest::Guest;
use crate::{median, rounds};

/// The argument for measuring one window and printing the time of a sample in us; the mode of the sandbox follows.
pub const WINDOW_WORD: &str = "sandbox-window";
/// Long enough for a stable figure.
const WINDOW: Duration = Duration::from_millis(300);
const HZ: u32 = 1000;
/// Limit for the sandbox's addition, as a part of a sample's time.
const LIMIT: f64 = 0.01;

/// Measures and prints. Fails if the sandbox adds more than [`LIMIT`], and more than consecutive windows differ without it.
pub fn print() -> anyhow::Result<()> {
    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds() {
        // The order changes.
        let (off, on) = if round % 2 == 0 {
            let off = in_child("off")?;
            (off, in_child("on")?)
        } else {
            let on = in_child("on")?;
            (in_child("off")?, on)
        };
        without.push(off);
        with.push(on);
        ratios.push(on / off);
    }
    println!(
        "guest us/sample at 1 kHz, thread clock, medians of {} pairs:",
        ratios.len()
    );
    println!("  without filters        {:.2}", median(&without));
    println!("  with the sandbox's     {:.2}", median(&with));
    let ratio = median(&ratios);
    let error = standard_error(&ratios, ratio);
    println!("  ratio of a pair        {ratio:.3}, standard error {error:.3}");
    ensure!(
        ratio - 2.0 * error < 1.0 + LIMIT,
        "The sandbox adds {:.1} % to a sample, and may add {:.1} %",
        (ratio - 1.0) * 100.0,
        LIMIT * 100.0
    );
    Ok(())
}

/// The standard error of the `median` of values, by their median distance from it, for normally distributed values: a few windows that the host
/// disturbed have no effect.
fn standard_error(values: &[f64], median_of_all: f64) -> f64 {
    let distances: Vec<f64> = values
        .iter()
        .map(|value| (value - median_of_all).abs())
        .collect();
    let count = u32::try_from(values.len()).map_or(f64::INFINITY, f64::from);
    // The median's variance is pi / 2 times the mean's, and a normal distribution's standard deviation 1.4826 times the median distance.
    1.4826 * median(&distances) * (std::f64::consts::FRAC_PI_2 / count).sqrt()
}

fn in_child(mode: &str) -> anyhow::Result<f64> {
    let program = std::env::current_exe().context("Where is this program?")?;
    let output = Command::new(program)
        .args([WINDOW_WORD, mode])
        .output()
        .context("Cannot run this program again")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "A window failed: {said}");
    let figure = String::from_utf8_lossy(&output.stdout);
    figure.trim().parse().context("A window's figure")
}

/// One window, in this process.
pub fn print_window(mode: &str) -> anyhow::Result<()> {
    let mode = match mode {
        "on" => Mode::On,
        _ => Mode::Off,
    };
    filters::prepare(mode, || {}).context("No filters")?;
    let guest = Guest::start("gaps", ClockSource::Thread)?;
    let before = guest.quiet(WINDOW)?;
    let sampled = guest.sampled(WINDOW, HZ)?;
    let after = guest.quiet(WINDOW)?;
    guest.stop()?;
    println!("{}", sampled.guest_ns_per_sample(&before, &after) * 1e-3);
    Ok(())
}
