//! Checks that memory doesn't grow.

use std::fmt;
use std::time::{Duration, Instant};

use kvmprof_tests::Guest;

/// Bytes by which memory may differ between readings: buffers for a client, and memory that the allocator keeps.
const NOISE: u64 = 8 << 20;
/// Minimum number of readings for a slope.
const ENOUGH: usize = 8;
/// Time from which on the slope is checked: before that, the noise exceeds it.
const LONG: Duration = Duration::from_secs(3600);
/// The limit of the slope, in bytes an hour.
const MAX_SLOPE: f64 = 1e6;

/// kvmprof's memory after each round.
pub struct Memory {
    begin: Instant,
    /// The time since the start, and bytes.
    looks: Vec<(Duration, u64)>,
}

/// A line through the readings, except for the first quarter, which is the warm-up.
struct Slope {
    /// Bytes an hour.
    bytes: f64,
    /// Its standard error.
    error: f64,
}

impl Memory {
    /// There is no reading yet.
    pub fn new() -> Self {
        Self {
            begin: Instant::now(),
            looks: Vec::new(),
        }
    }

    /// After a round.
    pub fn look(&mut self, guest: &Guest) {
        let time = self.begin.elapsed();
        self.looks.push((time, guest.resident_bytes()));
    }

    /// The maximum of the second and of the last quarter. The first is the warm-up.
    fn quarters(&self) -> Option<(u64, u64)> {
        let quarter = self.looks.len() / 4;
        let most = |part: &[(Duration, u64)]| part.iter().map(|(_, bytes)| *bytes).max();
        if self.looks.len() < ENOUGH {
            return None;
        }
        let second = most(&self.looks[quarter..2 * quarter])?;
        Some((second, most(&self.looks[self.looks.len() - quarter..])?))
    }

    /// By least squares.
    #[expect(
        clippy::cast_precision_loss,
        reason = "memory has far fewer than 2^53 bytes"
    )]
    fn slope(&self) -> Option<Slope> {
        if self.looks.len() < ENOUGH {
            return None;
        }
        let looks = &self.looks[self.looks.len() / 4..];
        let points: Vec<(f64, f64)> = looks
            .iter()
            .map(|(time, bytes)| (time.as_secs_f64() / 3600.0, *bytes as f64))
            .collect();
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (time, bytes) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|point| (point.0 - time).powi(2)).sum();
        let product: f64 = points
            .iter()
            .map(|point| (point.0 - time) * (point.1 - bytes))
            .sum();
        if spread == 0.0 {
            return None;
        }
        let slope = product / spread;
        let rest: f64 = points
            .iter()
            .map(|point| (point.1 - bytes - slope * (point.0 - time)).powi(2))
            .sum();
        Some(Slope {
            bytes: slope,
            error: (rest / (count - 2.0) / spread).sqrt(),
        })
    }

    /// It hasn't grown. A few rounds show nothing, and the growth an hour shows only after an hour.
    ///
    /// # Panics
    /// If it has grown.
    pub fn check(&self) {
        if let Some((second, last)) = self.quarters() {
            assert!(last <= second + NOISE, "memory grows: {:?}", self.looks);
        }
        let is_long = self.looks.last().is_some_and(|(time, _)| *time >= LONG);
        if let Some(slope) = self.slope().filter(|_| is_long) {
            let least = slope.bytes - 2.0 * slope.error;
            assert!(
                least <= MAX_SLOPE,
                "memory grows: {slope}, {:?}",
                self.looks
            );
        }
    }
}

impl fmt::Display for Slope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bytes, error] = [self.bytes, self.error].map(|bytes| bytes / 1e6);
        write!(
            formatter,
            "{bytes:+.3} MB an hour (standard error {error:.3})"
        )
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some((second, last)), Some(slope)) = (self.quarters(), self.slope()) else {
            return write!(formatter, "too few rounds for a slope of memory");
        };
        let [second, last] = [second, last].map(|bytes| bytes >> 10);
        write!(
            formatter,
            "resident memory with the guest's: {second} KiB in the second quarter, {last} KiB in the last, {slope}"
        )
    }
}

#[test]
fn a_line_has_its_slope() {
    let looks = |bytes: fn(u64) -> u64| Memory {
        begin: Instant::now(),
        looks: (0..100)
            .map(|minute| (Duration::from_secs(60 * minute), bytes(minute)))
            .collect(),
    };
    let flat = looks(|minute| 30_000_000 + minute % 2 * 100_000);
    assert!(flat.slope().unwrap().bytes.abs() < 10_000.0);
    flat.check();
    let steep = looks(|minute| 30_000_000 + minute * 50_000 + minute % 2 * 100_000);
    let slope = steep.slope().unwrap();
    assert!((slope.bytes - 3e6).abs() < 10_000.0, "{slope}");
    let checked = std::panic::catch_unwind(|| steep.check());
    assert!(checked.is_err());
}
