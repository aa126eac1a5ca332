//! The change of a function's share, and whether it is chance.

use super::blocks::{FunctionTicks, Key, Ticks};
use crate::profile::Share;
use crate::statistics::{beyond, quantile};

/// The maximum of standard errors, and the number of steps until they are known to 1e-10.
const FARTHEST: f64 = 40.0;
const STEPS: u32 = 40;

/// The probability below which a change counts as significant.
pub const SIGNIFICANT: f64 = 0.05;

/// The change of a function's share of all ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// `[kernel]`, a module, or a file.
    pub module: String,
    /// Whether it is a kernel function.
    pub is_kernel: bool,
    /// Its samples before and after.
    pub samples: [u64; 2],
    /// Its share before, 0 to 1.
    pub before: f64,
    /// Its share after.
    pub after: f64,
    /// The difference of the shares, -1 to 1.
    pub change: f64,
    /// The lower end of its 95 % confidence interval (Newcombe's hybrid score interval, method 10 in Statistics
    /// in Medicine 17, 1998), of as many ticks as are worth it: see [`Self::p`].
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The probability of such a change, or a larger one, by chance alone: that of the widest interval that doesn't contain 0.
    /// `None` if the times of the ticks aren't known, or all are in one block of time.
    ///
    /// The variation of the share between blocks of time says how many independent ticks the function's ticks are worth (the method of batch means, for
    /// a ratio), at most as many as there are. [`changes`](super::changes) corrects it for the number of functions compared (Holm).
    pub p: Option<f64>,
}

impl Change {
    /// The change of the function `key`, which was `found` before and after among all `ticks`.
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of ticks are far below 2^53"
    )]
    pub(super) fn new(
        (name, module, is_kernel): Key,
        found: [FunctionTicks; 2],
        ticks: [&Ticks; 2],
    ) -> Self {
        let worth = EffectiveTicks::of(found, ticks);
        let (change, low, high) = worth.difference(quantile(worth.freedom));
        let [before, after] = [0, 1]
            .map(|side: usize| found[side].ticks as f64 / ticks[side].all.ticks.max(1) as f64);
        Self {
            name,
            module,
            is_kernel,
            samples: found.map(|found| found.ticks),
            before,
            after,
            change,
            low,
            high,
            p: worth.is_known.then(|| worth.probability()),
        }
    }

    /// Whether it is significant. If `p` is corrected, this is false for all functions in 95 of 100 comparisons in which none changed.
    pub fn is_significant(&self) -> bool {
        self.p.is_some_and(|p| p < SIGNIFICANT)
    }
}

/// How many independent ticks both sides are worth.
#[derive(Clone, Copy, Debug)]
struct EffectiveTicks {
    /// The function's ticks and all ticks, before and after.
    sides: [(f64, f64); 2],
    /// The degrees of freedom.
    freedom: f64,
    /// Whether it is known.
    is_known: bool,
}

impl EffectiveTicks {
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of ticks and blocks are far below 2^53"
    )]
    fn of(found: [FunctionTicks; 2], ticks: [&Ticks; 2]) -> Self {
        let is_known = ticks.iter().all(|ticks| ticks.blocks > 1);
        let sides = [0, 1].map(|side| (found[side].ticks as f64, ticks[side].all.ticks as f64));
        if !is_known {
            return Self {
                sides,
                freedom: f64::INFINITY,
                is_known,
            };
        }
        let squares = [0, 1].map(|side| squares(&found[side], ticks[side]));
        let chance = sides.map(|(part, whole)| part * (whole - part) / whole.max(1.0));
        let times = |squares: f64, chance: f64| if chance > 0.0 { squares / chance } else { 1.0 };
        // A side with few of the function's ticks, or none, can't say by itself in what stretches it runs.
        let both = times(squares[0] + squares[1], chance[0] + chance[1]);
        let worth = [0, 1].map(|side| {
            let (part, whole) = sides[side];
            let stretch = times(squares[side], chance[side]).max(both).max(1.0);
            (part / stretch, whole / stretch)
        });
        Self {
            sides: worth,
            freedom: freedom(
                worth.map(|(_, whole)| whole),
                ticks.map(|ticks| ticks.blocks),
            ),
            is_known,
        }
    }

    /// The difference of the shares and its interval of `z` standard errors.
    fn difference(&self, z: f64) -> (f64, f64, f64) {
        let [before, after] = self
            .sides
            .map(|(part, whole)| Share::within(part, whole, z));
        let change = after.value - before.value;
        let down = (after.value - after.low).hypot(before.high - before.value);
        let up = (after.high - after.value).hypot(before.value - before.low);
        (change, (change - down).max(-1.0), (change + up).min(1.0))
    }

    /// The probability of the difference by chance alone.
    fn probability(&self) -> f64 {
        let contains_0 = |z: f64| {
            let (_, low, high) = self.difference(z);
            low <= 0.0 && high >= 0.0
        };
        let (mut inside, mut outside) = (FARTHEST, 0.0);
        if contains_0(outside) {
            return 1.0;
        }
        for _ in 0..STEPS {
            let middle = f64::midpoint(inside, outside);
            if contains_0(middle) {
                inside = middle;
            } else {
                outside = middle;
            }
        }
        beyond(outside, self.freedom)
    }
}

/// The degrees of freedom of a difference of two shares, of this many independent ticks and blocks (B. L. Welch, Biometrika 34, 1947), as a whole
/// number.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of ticks and blocks are far below 2^53"
)]
fn freedom(wholes: [f64; 2], blocks: [usize; 2]) -> f64 {
    let [one, other] = wholes.map(|whole| 1.0 / whole.max(1.0));
    let [of_one, of_other] = blocks.map(|blocks| blocks.saturating_sub(1).max(1) as f64);
    let freedom = (one + other).powi(2) / (one.powi(2) / of_one + other.powi(2) / of_other);
    // Equal sides have a whole number, but for its rounding.
    (freedom + 1e-6).floor().max(1.0)
}

/// The sum of the squares by which the ticks of a function that was `found` among `all` differ in each block from its share of that block. It estimates
/// the variance of their number.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of ticks and blocks are far below 2^53"
)]
fn squares(found: &FunctionTicks, all: &Ticks) -> f64 {
    let share = found.ticks as f64 / all.all.ticks.max(1) as f64;
    let blocks = found.blocks.iter().zip(all.all.blocks).take(all.blocks);
    let squares = blocks.map(|(own, all)| (*own as f64 - share * all as f64).powi(2));
    // Ticks whose time isn't known may be of one stretch.
    let known: u64 = found
        .blocks
        .iter()
        .fold(0, |sum, own| sum.saturating_add(*own));
    let unknown = found.ticks.saturating_sub(known) as f64;
    let count = all.blocks as f64;
    (squares.sum::<f64>() + unknown.powi(2)) * count / (count - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        ("f".to_owned(), "[kernel]".to_owned(), true)
    }

    fn ticks(ticks: u64, blocks: [u64; 16]) -> FunctionTicks {
        FunctionTicks { ticks, blocks }
    }

    /// All ticks of 16 blocks.
    fn all(all: FunctionTicks) -> Ticks {
        Ticks {
            blocks: 16,
            all,
            ..Ticks::default()
        }
    }

    /// Ticks of a function, and all ticks, at unknown times.
    fn untimed(samples: [u64; 2], wholes: [u64; 2]) -> ([FunctionTicks; 2], [Ticks; 2]) {
        let found = |count| ticks(count, [0; 16]);
        let all = wholes.map(|whole| Ticks {
            all: found(whole),
            ..Ticks::default()
        });
        (samples.map(found), all)
    }

    fn change(samples: [u64; 2], wholes: [u64; 2]) -> Change {
        let (found, [before, after]) = untimed(samples, wholes);
        Change::new(key(), found, [&before, &after])
    }

    fn probability(samples: [u64; 2], wholes: [u64; 2]) -> f64 {
        let (found, [before, after]) = untimed(samples, wholes);
        EffectiveTicks::of(found, [&before, &after]).probability()
    }

    #[test]
    fn the_difference_of_two_shares_has_an_interval() {
        // Newcombe 1998, table II, contrast (a): 56/70 - 48/80 is 0.0524 to 0.3339.
        let found = change([48, 56], [80, 70]);
        assert!((found.low - 0.0524).abs() < 1e-4, "{found:?}");
        assert!((found.high - 0.3339).abs() < 1e-4, "{found:?}");
        let back = change([56, 48], [70, 80]);
        assert!((back.high + found.low).abs() < 1e-9);
        let p = [([48, 56], [80, 70]), ([56, 48], [70, 80])].map(|(a, b)| probability(a, b));
        assert!((p[0] - p[1]).abs() < 1e-9, "{p:?}");
        assert_eq!(probability([10, 10], [100, 100]), 1.0);
    }

    /// The number of independent ones among them is unknown.
    #[test]
    fn ticks_without_times_give_no_probability() {
        let found = change([0, 900], [1000, 1000]);
        assert_eq!((found.p, found.is_significant()), (None, false));
    }

    #[test]
    fn a_probability_of_5_in_100_has_an_interval_that_ends_at_0() {
        let usual = ([48, 56], [80, 70]);
        for (samples, wholes) in [usual, ([0, 9], [90, 110]), ([3, 1], [7, 900])] {
            let p = probability(samples, wholes);
            // For one comparison, the interval of 95 % agrees.
            let Change { low, high, .. } = change(samples, wholes);
            assert_eq!(p < 0.05, low > 0.0 || high < 0.0, "{p}: {low} to {high}");
        }
        // The test of two proportions by their common variance has z = 2.65 and p = 0.0080.
        let p = probability([48, 56], [80, 70]);
        assert!((0.006..0.012).contains(&p), "{p}");
        assert_eq!(probability([0, 900_000], [1_000_000, 1_000_000]), 0.0);
    }

    /// Ten stretches of 50 ticks are worth ten ticks, and 500 ticks that are spread evenly are 500.
    #[test]
    fn consecutive_ticks_are_one_observation() {
        let mut stretches = ticks(500, [0; 16]);
        stretches.blocks[..10].fill(50);
        // Of 16 blocks in which there could have been one, six have none.
        let all = all(ticks(8000, [500; 16]));
        let worth = EffectiveTicks::of([stretches; 2], [&all; 2]);
        let (part, whole) = worth.sides[0];
        assert!((20.0..30.0).contains(&part), "{worth:?}");
        assert!((whole / part - 16.0).abs() < 1e-9);
        let mut even = ticks(500, [31; 16]);
        for block in [0, 3, 6, 15] {
            even.blocks[block] = 32;
        }
        let worth = EffectiveTicks::of([even; 2], [&all; 2]);
        assert_eq!(worth.sides[0], (500.0, 8000.0));
        assert_eq!(worth.freedom, 30.0);
    }

    /// They weren't kept, or belong to a stack that is too rare to be distinguished.
    #[test]
    fn ticks_of_unknown_time_may_be_one_stretch() {
        let found = ticks(100, [0; 16]);
        let all = all(ticks(1600, [100; 16]));
        let worth = EffectiveTicks::of([found; 2], [&all; 2]);
        assert!(worth.sides[0].0 < 1.0, "{worth:?}");
        // The effective number isn't the number of ticks.
        let change = Change::new(key(), [ticks(800, [0; 16]); 2], [&all; 2]);
        assert_eq!((change.before, change.samples), (0.5, [800, 800]));
    }
}
