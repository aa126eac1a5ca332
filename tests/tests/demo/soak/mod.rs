//! All disturbances of a guest, repeatedly: readers that stall, are slow or are killed, full disks, stops, signals, no descriptors, little memory.
//! The ledgers are always exact, memory doesn't grow, and nothing hangs.
//!
//! The test is two rounds. `tests/soak MINUTES` continues for this time, by `KVMPROF_SOAK_MINUTES`.

#[path = "../../../shared/cgroup.rs"]
mod cgroup;
mod disturbances;
mod memory;

use std::env;
use std::time::{Duration, Instant};

use kvmprof_client::Connection;
use kvmprof_tests::{Accounts, Boot, Guest, Random, in_lab, not_run, on_kvm};
use rustix::process::Signal;

use memory::Memory;

/// Rounds without `KVMPROF_SOAK_MINUTES`.
const ROUNDS: u32 = 2;

/// A disturbance: its name, and its function. `Some` says why it isn't possible here.
type Disturbance = (&'static str, fn(&mut Soak) -> Option<&'static str>);

const DISTURBANCES: [Disturbance; 10] = [
    ("a reader stalls", disturbances::stalled_reader),
    ("a reader is slow", disturbances::slow_reader),
    ("a reader is killed", disturbances::killed_reader),
    ("a recorder is killed", disturbances::killed_recorder),
    ("a recorder's disk is full", disturbances::full_disk),
    ("kvmprof is stopped", disturbances::stop),
    ("a storm of signals", disturbances::signals),
    ("no descriptors", disturbances::no_descriptors),
    ("a recorder has little memory", disturbances::little_memory),
    ("little memory for all", disturbances::little_memory_for_all),
];

/// The disturbed guest, and its observers.
struct Soak {
    guest: Guest,
    witness: Connection,
    random: Random,
    /// Signals sent each second in the slowest storm of them.
    signal_rate: f64,
}

/// The results of a disturbance.
#[derive(Default)]
struct Row {
    times: u64,
    ticks: u64,
    stolen: u64,
    lost: u64,
    not_tried: Option<&'static str>,
}

impl Soak {
    fn new() -> Self {
        // Emulated machines have no time for more.
        let (cpus, hz) = if in_lab() {
            ("2", "1000")
        } else {
            ("8", "10000")
        };
        let guest = Guest::start(Boot::Demo, ["--cpus", cpus, "--hz", hz]);
        let witness = guest.connect();
        Self {
            guest,
            witness,
            random: Random(1),
            signal_rate: f64::INFINITY,
        }
    }

    /// The accounts, which balance.
    fn accounts(&self) -> Accounts {
        let accounts = Accounts::of(&self.witness);
        accounts.check();
        accounts
    }

    /// Executes `disturb` and adds its results.
    fn try_one(&mut self, disturb: fn(&mut Self) -> Option<&'static str>, row: &mut Row) {
        let before = self.accounts().clock;
        row.not_tried = disturb(self);
        row.times += 1;
        let added = self.accounts().clock.since(&before);
        row.ticks += added.ticks;
        row.stolen += added.stolen;
        row.lost += added.lost;
    }
}

/// The time requested by `tests/soak`.
fn minutes() -> Option<Duration> {
    let text = env::var("KVMPROF_SOAK_MINUTES").ok()?;
    let minutes: u64 = text.parse().expect("KVMPROF_SOAK_MINUTES is a number");
    Some(Duration::from_secs(minutes * 60))
}

#[test]
fn only_counted_ticks_are_lost() {
    on_kvm(|| {
        let (begin, limit) = (Instant::now(), minutes());
        let mut soak = Soak::new();
        let mut rows = DISTURBANCES.map(|_| Row::default());
        let mut memory = Memory::new();
        let mut round = 0;
        while limit.map_or(round < ROUNDS, |limit| begin.elapsed() < limit) {
            for ((_, disturb), row) in DISTURBANCES.iter().zip(&mut rows) {
                soak.try_one(*disturb, row);
            }
            memory.look(&soak.guest);
            round += 1;
        }
        print(&rows, &memory, round, begin.elapsed());
        println!(
            "storms of signals: {:.0} a second at least",
            soak.signal_rate
        );
        memory.check();
        end(soak.guest);
        for ((what, _), row) in DISTURBANCES.iter().zip(&rows) {
            if let Some(why) = row.not_tried {
                not_run(&format!("{what}: {why}"));
            }
        }
    });
}

/// kvmprof ends without errors, and its only messages are about clients that it had no descriptors for.
fn end(mut guest: Guest) {
    guest.signal(Signal::TERM);
    let ran = guest.wait();
    assert_eq!(ran.status, 0, "{ran:?}");
    let is_expected = |line: &str| line.contains("client turned away: too many open files");
    assert!(ran.stderr.lines().all(is_expected), "{ran:?}");
}

fn print(rows: &[Row], memory: &Memory, rounds: u32, time: Duration) {
    println!(
        "\n{:<28}{:>7}{:>12}{:>12}{:>9}",
        "disturbance", "times", "ticks", "stolen", "lost"
    );
    for ((what, _), row) in DISTURBANCES.iter().zip(rows) {
        match row.not_tried {
            Some(why) => println!("{what:<28}not tried: {why}"),
            None => println!(
                "{what:<28}{:>7}{:>12}{:>12}{:>9}",
                row.times, row.ticks, row.stolen, row.lost
            ),
        }
    }
    println!(
        "{rounds} rounds in {} s; every tick in exactly one account at each of {} looks; {memory}",
        time.as_secs(),
        rounds * 2 * u32::try_from(DISTURBANCES.len()).unwrap(),
    );
}
