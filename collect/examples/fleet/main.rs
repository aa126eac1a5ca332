//! Writes the data set of an invented fleet, and prints the answers to the queries of queries.sql about it, as JSON.
#![expect(
    clippy::unwrap_used,
    reason = "an error ends the program, which only tests run"
)]

mod model;
#[path = "../../tests/sinks/truth.rs"]
mod truth;
mod work;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Parser;
use kvmprof_collect::batch::Batch;
use kvmprof_collect::sinks::parquet::{self, Folder};
use serde_json::json;

use self::model::{HZ, Host, kinds};
use self::truth::{KnownTicks, expected};
use self::work::Work;

/// Write the data set of an invented fleet
#[derive(Debug, Parser)]
pub struct Arguments {
    /// The folder of the data set
    out: PathBuf,
    /// Number of hosts
    #[arg(long, default_value_t = 20)]
    hosts: usize,
    /// Number of the first host whose files are written: those of the hosts before exist
    #[arg(long, default_value_t = 0)]
    first: usize,
    /// Number of guests on each host
    #[arg(long, default_value_t = 2)]
    guests: usize,
    /// Length of the time in seconds; it begins at noon of 2026-03-01
    #[arg(long, default_value_t = 86_400)]
    seconds: u64,
    /// Length of a window in seconds
    #[arg(long, default_value_t = 60)]
    window: u32,
    /// Length of a file's time in seconds, as the sink's option; each date has files of its own
    #[arg(long, default_value_t = 86_400)]
    span: u64,
    /// How many percent more time copy_page takes in 6.12.2 than in 6.12.1
    #[arg(long, default_value_t = 60)]
    regression: u64,
    /// How many percent more interrupts some hosts have on the second date, and others more waits for a lock with interrupts off
    #[arg(long, default_value_t = 200)]
    interrupts: u64,
    /// Number of threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() {
    let arguments = Arguments::parse();
    assert!(arguments.guests > 0 && arguments.window > 0 && arguments.span > 0);
    let work = Work::read();
    let kinds = kinds(work);
    let next = AtomicUsize::new(0);
    let done: Mutex<(Vec<KnownTicks>, u64, u64)> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= arguments.hosts {
                        break;
                    }
                    let host = Host {
                        arguments: &arguments,
                        work,
                        kinds: &kinds,
                        number,
                    };
                    let (batches, known) = host.batches();
                    if number >= arguments.first {
                        write(&arguments, &batches);
                    }
                    let windows = batches.iter().flat_map(|batch| &batch.windows);
                    let rows: usize = windows.map(|window| window.rows.len()).sum();
                    let ticks: u64 = batches.iter().map(Batch::ticks).sum();
                    let mut done = done.lock().unwrap();
                    done.0.extend(known);
                    done.1 += rows as u64;
                    done.2 += ticks;
                }
            });
        }
    });
    let (known, rows, ticks) = done.into_inner().unwrap();
    let sum: u64 = known.iter().map(|known| known.ticks).sum();
    assert_eq!(sum, ticks);
    let document = json!({
        "rows": rows,
        "ticks": ticks,
        "answers": expected(&known, HZ),
    });
    println!("{document}");
}

/// Writes a host's files. Each has as many batches as the sink would write into one file.
fn write(arguments: &Arguments, batches: &[Batch]) {
    let folder = Folder(arguments.out.clone());
    let span = arguments.span / u64::from(arguments.window);
    for batches in batches.chunks(usize::try_from(span.max(1)).unwrap()) {
        parquet::write(&folder, batches).unwrap();
    }
}
