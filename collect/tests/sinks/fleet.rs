//! A small fleet with known ticks.

use std::collections::BTreeMap;

use kvmprof_collect::batch::{Batch, Function, IDLE, Row, Tables, Window};
use kvmprof_recording::Mode;
use kvmprof_recording::file::Account;

use super::truth::KnownTicks;

pub const HOSTS: usize = 4;
pub const GUESTS: usize = 2;
/// Windows of each guest on each day.
pub const WINDOWS: u64 = 6;
/// The start of 2026-03-01 and of the day after, in s since 1970.
pub const DAYS: [u64; 2] = [1_772_323_200, 1_772_409_600];
pub const LENGTH: u32 = 10;
pub const HZ: u32 = 20;

/// The ticks of a guest of this host in each window of this day. On the second day, hosts with odd numbers have another kernel, and the last host
/// has more interrupts. The guests of the first host are sampled by the host's kernel, which doesn't know when interrupts are off.
pub fn known(day: usize, host: usize) -> Vec<KnownTicks> {
    let is_new = day == 1 && host % 2 == 1;
    let kernel = if is_new { "6.12.2" } else { "6.12.1" };
    let one = |process, mode, stack, ticks| KnownTicks {
        day,
        host,
        kernel,
        process,
        mode,
        stack,
        ticks,
        interrupts_off: (host > 0).then(|| interrupts_off(mode, ticks)),
    };
    let interrupts = if day == 1 && host == HOSTS - 1 { 5 } else { 1 };
    vec![
        one("worker", Mode::User, &["work", "main"], 10 + host as u64),
        one(
            "copier",
            Mode::Kernel,
            &["copy_page", "do_fault"],
            if is_new { 8 } else { 4 },
        ),
        one(
            "worker",
            Mode::Interrupt,
            &["handle_irq", "work", "main"],
            interrupts,
        ),
        one(IDLE, Mode::Idle, &[], 20),
    ]
}

/// How many of these ticks have interrupts off.
fn interrupts_off(mode: Mode, ticks: u64) -> u64 {
    match mode {
        Mode::Interrupt => ticks,
        Mode::Kernel => ticks / 4,
        Mode::User | Mode::Idle => 0,
    }
}

/// The module of a function.
pub fn module(function: &str) -> &'static str {
    match function {
        "work" | "main" => "prog",
        _ => "[kernel]",
    }
}

/// The batch of a host for one window of a day.
pub fn batch(day: usize, host: usize, window: u64) -> Batch {
    let mut tables = Tables::default();
    let windows: Vec<Window> = (0..GUESTS)
        .map(|guest| {
            let known = known(day, host);
            let sum = |is_idle| {
                let known = known
                    .iter()
                    .filter(|known| (known.mode == Mode::Idle) == is_idle);
                known.map(|known| known.ticks).sum::<u64>()
            };
            let account = Account {
                ticks: sum(true) + sum(false),
                samples: sum(false),
                idle: sum(true),
                ..Account::default()
            };
            Window {
                guest: format!("guest {guest}"),
                kernel: known[0].kernel.to_owned(),
                hz: HZ,
                jitter: Some(true),
                account,
                rows: known.iter().map(|known| row(known, &mut tables)).collect(),
            }
        })
        .collect();
    let zone = if host.is_multiple_of(2) {
        "north"
    } else {
        "south"
    };
    let mut batch = Batch {
        start: DAYS[day] + window * u64::from(LENGTH),
        length: LENGTH,
        boot: format!("{host:016x}"),
        host: format!("host-{host}"),
        labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
        windows,
        ..Batch::default()
    };
    tables.into_batch(&mut batch);
    batch
}

fn row(known: &KnownTicks, tables: &mut Tables) -> Row {
    let frames: Vec<u32> = (known.stack.iter())
        .map(|&name| {
            tables.frame(&Function {
                name,
                module: module(name),
                build_id: "",
                is_kernel: module(name) != "prog",
            })
        })
        .collect();
    let stack = (!frames.is_empty()).then(|| tables.stack(frames));
    Row {
        process: tables.name(known.process),
        thread: tables.name(known.process),
        mode: known.mode as u8,
        stack,
        ticks: known.ticks,
        interrupts_off: known.interrupts_off,
        labels: None,
    }
}

/// The ticks of all guests in all windows.
pub fn all() -> Vec<KnownTicks> {
    let mut all = Vec::new();
    for day in 0..DAYS.len() {
        for host in 0..HOSTS {
            for _ in 0..WINDOWS * GUESTS as u64 {
                all.extend(known(day, host));
            }
        }
    }
    all
}
