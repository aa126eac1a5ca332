//! How often comparisons of simulated recordings are wrong.

use super::blocks::{BLOCKS, FunctionTicks, Ticks};
use super::change::Change;
use crate::random::Random;
use crate::statistics::correct_for_many;

/// Functions of a recording, the most frequent one first.
const FUNCTIONS: usize = 100;

/// How long a function runs without a pause.
#[derive(Clone, Copy, Debug)]
enum BurstLength {
    /// For this number of ticks.
    Of(u64),
    /// For this number on average, exponentially distributed.
    About(f64),
}

impl BurstLength {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers of ticks"
    )]
    fn length(self, random: &mut Random) -> u64 {
        match self {
            Self::Of(ticks) => ticks,
            Self::About(ticks) => 1 + ((ticks - 0.5) * random.exponential()) as u64,
        }
    }
}

/// The weight of each function in its place: 1, 1/2, 1/3 ...; that of the second one is `factor` times as large.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn weights(factor: f64) -> Vec<f64> {
    let mut weights: Vec<f64> = (0..FUNCTIONS)
        .map(|place| 1.0 / (place + 1) as f64)
        .collect();
    weights[1] *= factor;
    let sum: f64 = weights.iter().sum();
    let mut until = 0.0;
    for weight in &mut weights {
        until += *weight / sum;
        *weight = until;
    }
    weights
}

/// A recording of this number of ticks.
fn recording(
    random: &mut Random,
    (length, burst): (u64, BurstLength),
    weights: &[f64],
) -> (Ticks, Vec<FunctionTicks>) {
    let mut functions = vec![FunctionTicks::default(); FUNCTIONS];
    let mut ticks = Ticks {
        blocks: BLOCKS,
        ..Ticks::default()
    };
    // It begins in the middle of a burst.
    let (mut left, mut function) = (0, 0);
    for tick in 0..length {
        if left == 0 {
            let place = random.unit();
            function = weights
                .partition_point(|until| *until <= place)
                .min(FUNCTIONS - 1);
            left = burst.length(random);
        }
        left -= 1;
        let block = usize::try_from(tick * BLOCKS as u64 / length).unwrap();
        for found in [&mut functions[function], &mut ticks.all] {
            found.ticks += 1;
            found.blocks[block] += 1;
        }
    }
    (ticks, functions)
}

/// The functions that are called different.
fn different(random: &mut Random, shapes: [(u64, BurstLength); 2], factor: f64) -> Vec<usize> {
    let [before, after] = [1.0, factor].map(weights);
    let (before, was) = recording(random, shapes[0], &before);
    let (after, is) = recording(random, shapes[1], &after);
    let found = was.into_iter().zip(is).enumerate();
    let found = found.filter(|(_, (was, is))| was.ticks + is.ticks > 0);
    let changes = found.map(|(number, (was, is))| {
        let key = (number.to_string(), String::new(), true);
        Change::new(key, [was, is], [&before, &after])
    });
    let mut changes: Vec<Change> = changes.collect();
    correct_for_many(changes.iter_mut().filter_map(|change| change.p.as_mut()));
    let different = changes.iter().filter(|change| change.is_significant());
    different
        .map(|change| change.name.parse().unwrap())
        .collect()
}

/// The number of pairs in which a function is called different though none is.
fn wrong(pairs: usize, shapes: [(u64, BurstLength); 2]) -> usize {
    let mut random = Random(1);
    let pairs = (0..pairs).filter(|_| !different(&mut random, shapes, 1.0).is_empty());
    pairs.count()
}

/// The number of 100 pairs in which the function is found that got more frequent by `factor`.
fn found(shape: (u64, BurstLength), factor: f64) -> usize {
    let mut random = Random(1);
    let is_found = |_: &usize| different(&mut random, [shape; 2], factor).contains(&1);
    (0..100).filter(is_found).count()
}

#[test]
fn unchanged_functions_differ_in_at_most_one_of_20_comparisons() {
    for burst in [
        BurstLength::Of(1),
        BurstLength::Of(10),
        BurstLength::Of(50),
        BurstLength::About(50.0),
    ] {
        for lengths in [[6000, 6000], [1500, 6000]] {
            let wrong = wrong(1000, lengths.map(|length| (length, burst)));
            assert!(wrong <= 50, "{lengths:?} {burst:?}: {wrong} of 1000");
        }
    }
}

/// A minute at 100 Hz, and ten.
#[test]
fn changes_are_found() {
    for (length, burst, factor, least) in [
        (6000, BurstLength::Of(1), 1.5, 95),
        (6000, BurstLength::Of(10), 4.0, 95),
        (60_000, BurstLength::Of(50), 2.0, 80),
    ] {
        let found = found((length, burst), factor);
        let case = format!("{length} {burst:?} {factor}");
        assert!(found >= least, "{case}: {found} of 100");
    }
}
