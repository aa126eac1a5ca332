//! The cost of a sample, in guest time and in host time, beside a bare exit to user space.
//!
//! The guest is in user mode, and notices by the TSC when time is taken from it. Times in which the host must have run something else are
//! excluded. Every figure is the median over many rounds; each round measures all of them, one after the other, and each sampled window is
//! between two quiet ones, all of them between two of bare exits, so that the ratios hold on a machine whose speed changes. The lookup of a
//! process is also measured by itself, without KVM.

mod attached;
mod devices;
mod divided;
mod exits;
mod guest;
mod kills;
mod lookup;
mod sandbox;
mod start_up;
mod steal;
mod stops;
mod stores;

use std::time::Duration;

use anyhow::Context;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_profiling::signals;

use guest::{Guest, Window};
use steal::HostTime;

/// Rounds, unless the environment says otherwise.
const ROUNDS: usize = 41;
/// Overrides [`ROUNDS`].
const ROUNDS_VARIABLE: &str = "KVMPROF_BENCH_ROUNDS";
/// The length of each window.
const WINDOW: Duration = Duration::from_millis(60);
/// Its length if the host's kernel's samples are read in batches: longer than a batch waits.
const WINDOW_OF_BATCHES: Duration = Duration::from_millis(300);
/// The rates that are measured, in Hz. Many kernels tick at 250 Hz: then all ticks of that rate coincide with the host's.
const RATES: [u32; 4] = [100, 250, 1_000, 5_000];
/// What drives the clock.
const SOURCES: [ClockSource; 2] = [ClockSource::Thread, ClockSource::Kernel];

/// A part of the benchmark: its name, which selects it, and the function that measures and prints it.
type Part = (&'static str, fn() -> anyhow::Result<()>);

/// All parts but `samples`, which is the last one.
const PARTS: [Part; 10] = [
    // It forks, so that it precedes parts that may leave a thread.
    ("divided", divided::print),
    ("lookup", lookup::print),
    ("stores", stores::print),
    ("attached", attached::print),
    ("stops", stops::print),
    ("kills", kills::print),
    ("sandbox", sandbox::print),
    ("start-up", start_up::print),
    ("devices", devices::print),
    ("exits", exits::print),
];

/// All rounds' figures for one source at one rate.
#[derive(Default)]
struct Series {
    guest_us: Vec<f64>,
    ratio: Vec<f64>,
    host_us: Vec<f64>,
    ticks: u64,
    lost: u64,
    stolen: u64,
}

fn main() -> anyhow::Result<()> {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    signals::block().context("Cannot block signals")?;
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    if let [word, mode] = wanted.as_slice()
        && word == sandbox::WINDOW_WORD
    {
        return sandbox::print_window(mode);
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    for (name, print) in PARTS {
        if is_wanted(name) {
            print()?;
        }
    }
    if is_wanted("samples") {
        print_samples()?;
    }
    Ok(())
}

/// The number of rounds.
fn rounds() -> usize {
    let asked = std::env::var(ROUNDS_VARIABLE).ok();
    asked
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(ROUNDS)
}

/// Measures and prints the cost of samples.
fn print_samples() -> anyhow::Result<()> {
    let rounds = rounds();
    let mut exits = Vec::new();
    let mut series: Vec<(ClockSource, u32, Series)> = Vec::new();
    for source in SOURCES {
        for hz in RATES {
            series.push((source, hz, Series::default()));
        }
    }
    let began = HostTime::now()?;
    for round in 0..rounds {
        eprint!("\rround {} of {rounds}", round + 1);
        measure_round(&mut exits, &mut series)?;
    }
    eprintln!();
    print_table(&exits, &series, rounds);
    let (stolen, all) = HostTime::now()?.stolen_since(began);
    println!(
        "stolen from the host itself meanwhile, which makes ticks lost: {} of its processors' time\n",
        percent(stolen, all)
    );
    for source in SOURCES {
        let at_1_khz = series
            .iter()
            .find(|(other, hz, _)| *other == source && *hz == 1_000)
            .map(|(_, _, series)| median(&series.ratio));
        println!(
            "ratio at 1 kHz, {}: {:.2}",
            source.name(),
            at_1_khz.unwrap_or(f64::NAN)
        );
    }
    Ok(())
}

fn measure_round(
    exits: &mut Vec<f64>,
    series: &mut [(ClockSource, u32, Series)],
) -> anyhow::Result<()> {
    for source in SOURCES {
        let exit_before = bare_exit_us()?;
        let window = match source {
            ClockSource::Kernel => WINDOW_OF_BATCHES,
            _ => WINDOW,
        };
        let guest = Guest::start("gaps", source)?;
        let mut measured = Vec::new();
        for (_, hz, series) in series.iter_mut().filter(|(other, ..)| *other == source) {
            let before = guest.quiet(window)?;
            let sampled = guest.sampled(window, *hz)?;
            let after = guest.quiet(window)?;
            measured.push((series, before, sampled, after));
        }
        guest.stop()?;
        let exit_us = f64::midpoint(exit_before, bare_exit_us()?);
        exits.push(exit_us);
        for (series, before, sampled, after) in measured {
            series.enter(&before, &sampled, &after, exit_us);
        }
    }
    Ok(())
}

/// A port write without a device: the guest's loop around it takes no time beside it.
fn bare_exit_us() -> anyhow::Result<f64> {
    let guest = Guest::start("pio", ClockSource::Thread)?;
    let window = guest.quiet(WINDOW)?;
    guest.stop()?;
    Ok(window.ns * 1e-3 / window.rounds)
}

impl Series {
    #[expect(clippy::cast_precision_loss, reason = "counts of one window are small")]
    fn enter(&mut self, before: &Window, sampled: &Window, after: &Window, exit_us: f64) {
        self.ticks += sampled.ticks;
        self.lost += sampled.lost;
        self.stolen += sampled.stolen;
        if sampled.samples == 0 {
            return;
        }
        let samples = sampled.samples as f64;
        let guest_ns = sampled.guest_ns_per_sample(before, after);
        let quiet_ns = f64::midpoint(before.other_threads_ns, after.other_threads_ns);
        let others_ns = (sampled.other_threads_ns - quiet_ns) / samples;
        self.guest_us.push(guest_ns * 1e-3);
        self.ratio.push(guest_ns * 1e-3 / exit_us);
        self.host_us.push((guest_ns + others_ns) * 1e-3);
    }
}

fn print_table(exits: &[f64], series: &[(ClockSource, u32, Series)], rounds: usize) {
    println!("medians over {rounds} rounds, guest in user mode, 1 vCPU");
    println!(
        "bare exit to user space (port write): {:.1} us",
        median(exits)
    );
    println!();
    println!(
        "{:<8} {:>6}  {:>16} {:>10} {:>15} {:>8} {:>8}",
        "clock", "Hz", "guest us/sample", "bare exits", "host us/sample", "lost", "stolen"
    );
    for (source, hz, series) in series {
        println!(
            "{:<8} {hz:>6}  {:>16.1} {:>10.2} {:>15.1} {:>8} {:>8}",
            source.name(),
            median(&series.guest_us),
            median(&series.ratio),
            median(&series.host_us),
            percent(series.lost, series.ticks),
            percent(series.stolen, series.ticks),
        );
    }
    println!();
}

#[expect(clippy::cast_precision_loss, reason = "shown with two decimal places")]
fn percent(part: u64, whole: u64) -> String {
    format!("{:.2} %", part as f64 * 100.0 / whole.max(1) as f64)
}

/// The median of `values`; NaN if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
