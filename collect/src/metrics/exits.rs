//! Metrics of the exits of guests of other VMMs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvmprof_recording::exits::{ExitInterval, Histogram};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::batch::OTHER;

/// Maximum number of reasons of a guest: processors have less.
const MAX_REASONS: usize = 256;
/// The powers of 2 of the ends of the buckets but the last one, in ns: 1 us to 17 s. Each is the end of a class of the histogram, too.
const BUCKETS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];
/// A second in ns.
const SECOND: f64 = 1e9;

/// What is known of a reason.
#[derive(Clone, Debug, Default)]
struct OfReason {
    count: u64,
    /// In ns.
    time: u64,
    /// The last one has all that took longer.
    buckets: [u64; BUCKETS.len() + 1],
}

/// The exits of all guests, by guest and reason.
#[derive(Clone, Debug, Default)]
pub struct ExitCounts(Arc<Mutex<BTreeMap<String, BTreeMap<String, OfReason>>>>);

impl ExitCounts {
    fn guests(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<String, OfReason>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the exits of `guest` in an interval.
    pub fn add(&self, guest: &str, interval: &ExitInterval) {
        let mut guests = self.guests();
        let reasons = guests.entry(guest.to_owned()).or_default();
        for one in &interval.counts.reasons {
            let mut name = interval.reason(one.reason);
            if reasons.len() >= MAX_REASONS && !reasons.contains_key(&name) {
                OTHER.clone_into(&mut name);
            }
            let reason = reasons.entry(name).or_default();
            reason.count = reason.count.saturating_add(one.exits.count);
            reason.time = reason.time.saturating_add(one.exits.time);
            for (class, count) in one.histogram.classes().iter().enumerate() {
                let bucket = &mut reason.buckets[bucket_of(class)];
                *bucket = bucket.saturating_add(*count);
            }
        }
    }

    /// Removes what is known of `guest`.
    pub fn forget(&self, guest: &str) {
        self.guests().remove(guest);
    }
}

/// The bucket of a class of the histogram.
fn bucket_of(class: usize) -> usize {
    let last = Histogram::begin(class + 1).saturating_sub(1);
    let is_within = |end: &u32| last < 1 << end;
    BUCKETS.iter().position(is_within).unwrap_or(BUCKETS.len())
}

impl Collector for ExitCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let guests = self.guests();
        let each = || {
            let guests = guests.iter();
            guests.flat_map(|(guest, reasons)| {
                reasons.iter().map(move |(name, reason)| {
                    (
                        [("guest", guest.as_str()), ("reason", name.as_str())],
                        reason,
                    )
                })
            })
        };
        let help = "Exits of the guest to KVM, by the processor's reason";
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut family = encoder.encode_descriptor("guest_exits", help, None, kind)?;
        for (labels, reason) in each() {
            ConstCounter::new(reason.count).encode(family.encode_family(&labels)?)?;
        }
        let help = "How long these exits took, from the exit to the next entry";
        let kind = MetricType::Histogram;
        let mut family = encoder.encode_descriptor("guest_exit_seconds", help, None, kind)?;
        for (labels, reason) in each() {
            let ends = BUCKETS.map(|end| seconds(1 << end)).into_iter();
            let ends = ends.chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = ends.zip(reason.buckets).collect();
            let (sum, count) = (seconds(reason.time), reason.buckets.iter().sum());
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a sum of times is no more exact"
)]
fn seconds(ns: u64) -> f64 {
    ns as f64 / SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_class_is_in_two_buckets() {
        for class in 0..Histogram::CLASSES {
            let (begin, end) = (Histogram::begin(class), Histogram::begin(class + 1));
            match BUCKETS.get(bucket_of(class)) {
                Some(bucket) => assert!(end <= 1 << bucket, "{class}"),
                None => assert!(begin >= 1 << 34, "{class}"),
            }
            let before = bucket_of(class).checked_sub(1);
            assert!(before.is_none_or(|before| begin >= 1 << BUCKETS[before]));
        }
    }
}
