//! How often comparisons of simulated boots are wrong.

use super::initcalls::{Call, CallKind};
use super::levels::Levels;
use super::summary::{Boot, Summary, compare};
use crate::random::Random;

const TICK: u64 = 1_000_000;
const CALLS: usize = 80;
/// The one that may become slower.
const SLOWER: usize = 40;

/// How boots of one kernel differ.
#[derive(Clone, Copy, Debug)]
struct BootVariation {
    /// The standard deviation of each call's time, relative to the time.
    relative: f64,
    /// The probability that a call waits for the host, for 20 ticks on average.
    waits: f64,
    /// The part of the ticks that the host stole.
    stolen: f64,
}

const QUIET: BootVariation = BootVariation {
    relative: 0.0,
    waits: 0.0,
    stolen: 0.0,
};
const USUAL: BootVariation = BootVariation {
    relative: 0.03,
    waits: 0.0,
    stolen: 0.0,
};
const ROUGH: BootVariation = BootVariation {
    relative: 0.3,
    waits: 0.0,
    stolen: 0.0,
};
const BUSY: BootVariation = BootVariation {
    relative: 0.03,
    waits: 0.05,
    stolen: 0.4,
};

/// The time of each call, in ticks: from a hundredth of one up to 30, and no whole numbers.
fn times(more: f64) -> Vec<f64> {
    let times = (0..CALLS).map(|call| {
        let place = f64::from(u32::try_from(call).unwrap()) / 79.0;
        let time = 0.01 * 3000_f64.powf(place);
        if call == SLOWER { time + more } else { time }
    });
    times.collect()
}

/// A boot as the clock has seen it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times are a few seconds"
)]
fn boot(random: &mut Random, times: &[f64], noise: BootVariation) -> Boot {
    let mut ends = Vec::new();
    let mut until = random.unit();
    for time in times {
        let wait = if random.unit() < noise.waits {
            20.0 * random.exponential()
        } else {
            0.0
        };
        until += time * (1.0 + noise.relative * random.normal()).max(0.1) + wait;
        ends.push(until);
    }
    // Samples: their tick, and their call.
    let mut samples: Vec<(u64, usize)> = Vec::new();
    let mut call = 0;
    for tick in 0..=(until as u64) {
        while ends[call] < tick as f64 {
            call += 1;
        }
        if random.unit() >= noise.stolen {
            samples.push((tick * TICK, call));
        }
    }
    let end = (until * TICK as f64) as u64;
    let mut calls = Vec::new();
    let mut done: usize = 0;
    for visit in samples.chunk_by(|one, next| one.1 == next.1) {
        let before = done.checked_sub(1).map_or(0, |before| samples[before].0);
        done += visit.len();
        let after = samples.get(done).map_or(end, |next| next.0);
        let (first, last) = (visit[0].0, visit[visit.len() - 1].0);
        calls.push(Call {
            function: visit[0].1.to_string(),
            kind: CallKind::Initcall,
            began_ns: first,
            time_ns: last.midpoint(after) - before.midpoint(first),
            at_least_ns: last - first,
            at_most_ns: after - before,
            samples: visit.len() as u64,
        });
    }
    let (first, last) = (samples[0].0, samples[samples.len() - 1].0);
    Boot {
        phases: [(0, 0), (0, first), (first, last), (last, end), (end, end)],
        calls,
        longest_unseen_ns: TICK,
        tick_ns: TICK,
        unseen: noise.stolen,
    }
}

/// The rows that are called different.
fn different(
    random: &mut Random,
    runs: [usize; 2],
    noise: BootVariation,
    more: f64,
) -> Vec<String> {
    let [before, after] = [0, 1].map(|side| {
        let times = times(if side == 0 { 0.0 } else { more });
        let boots: Vec<Boot> = (0..runs[side])
            .map(|_| boot(random, &times, noise))
            .collect();
        Summary::new(&boots, &Levels::default())
    });
    let (phases, calls) = compare(&before, &after);
    let all = phases.into_iter().chain(calls);
    let different = all.filter(|row| row.comparison.p.is_some_and(|p| p < 0.05));
    different.map(|row| row.name).collect()
}

/// The number of pairs in which a row is called different though none is.
fn wrong(pairs: usize, runs: [usize; 2]) -> usize {
    let mut random = Random(1);
    let noises = [QUIET, USUAL, ROUGH, BUSY].into_iter().cycle();
    let noises = noises.take(pairs);
    let wrong = noises.filter(|noise| !different(&mut random, runs, *noise, 0.0).is_empty());
    wrong.count()
}

/// The number of 100 pairs in which the call is found that takes this many ticks `more`.
fn found(runs: usize, more: f64) -> usize {
    let mut random = Random(1);
    let slower = SLOWER.to_string();
    let is_found = |_: &usize| different(&mut random, [runs; 2], USUAL, more).contains(&slower);
    (0..100).filter(is_found).count()
}

#[test]
fn equal_boots_differ_in_at_most_one_of_20_comparisons() {
    let equal = (2..=10).map(|runs| [runs; 2]);
    for runs in equal.chain([[2, 10], [5, 3]]) {
        let wrong = wrong(1000, runs);
        assert!(wrong <= 50, "{runs:?}: {wrong} of 1000");
    }
}

/// The call takes a tick or less before.
#[test]
fn a_slower_call_is_found() {
    for (runs, more, least) in [(3, 10.0, 90), (5, 3.0, 95), (10, 2.0, 95)] {
        let found = found(runs, more);
        assert!(found >= least, "{runs} {more}: {found} of 100");
    }
}
