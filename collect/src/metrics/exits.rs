//! Metrics of the exits of guests of other VMMs, and of what takes their vCPUs' time.

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
/// Maximum number of vCPUs of a guest, and of what takes their time, by its name.
const MAX_VCPUS: usize = 1024;
const MAX_TAKERS: usize = 64;
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

/// What is known of a guest. Times are in ns.
#[derive(Clone, Debug, Default)]
struct OfGuest {
    reasons: BTreeMap<String, OfReason>,
    /// For how long vCPUs waited for a processor, by their numbers.
    waits: BTreeMap<String, u64>,
    /// What ran there meanwhile, and what interrupted them, by its name.
    takers: BTreeMap<String, u64>,
}

/// The entry with this name, or that of [`OTHER`] if there are as many as there may be.
fn entry<T: Default>(entries: &mut BTreeMap<String, T>, most: usize, name: String) -> &mut T {
    let has_room = entries.len() < most || entries.contains_key(&name);
    let name = if has_room { name } else { OTHER.to_owned() };
    entries.entry(name).or_default()
}

/// The exits of all guests, and what takes their vCPUs' time, by guest.
#[derive(Clone, Debug, Default)]
pub struct ExitCounts(Arc<Mutex<BTreeMap<String, OfGuest>>>);

impl ExitCounts {
    fn guests(&self) -> MutexGuard<'_, BTreeMap<String, OfGuest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was counted of `guest` in an interval.
    pub fn add(&self, guest: &str, interval: &ExitInterval) {
        let mut guests = self.guests();
        let known = guests.entry(guest.to_owned()).or_default();
        let counts = &interval.counts;
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        for thread in &counts.threads {
            let wait = entry(&mut known.waits, MAX_VCPUS, thread.vcpu.to_string());
            add(wait, thread.waits.time);
        }
        let turns = counts.waits.iter();
        let turns = turns.map(|one| (interval.taker(one), one.turns.time));
        let interrupts = counts.interrupts.iter();
        let interrupts = interrupts.map(|one| (interval.interrupt(one), one.time.time));
        for (name, time) in turns.chain(interrupts).filter(|(_, time)| *time > 0) {
            add(entry(&mut known.takers, MAX_TAKERS, name), time);
        }
        for one in &counts.reasons {
            let name = interval.reason(one.reason);
            let reason = entry(&mut known.reasons, MAX_REASONS, name);
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
        let each = || labelled(&guests, "reason", |guest| &guest.reasons);
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
        let waits = labelled(&guests, "vcpu", |guest| &guest.waits);
        let help = "Time for which vCPUs were ready to run and waited for a processor (CPU ready)";
        encode_times(&mut encoder, "guest_vcpu_wait_seconds", help, waits)?;
        let takers = labelled(&guests, "by", |guest| &guest.takers);
        let help = "Time of vCPUs that others took: what ran on the processors that they waited for, and interrupts of those that they had";
        encode_times(&mut encoder, "guest_taken_seconds", help, takers)
    }
}

/// The entries of all guests with their labels.
fn labelled<'a, T: 'a>(
    guests: &'a BTreeMap<String, OfGuest>,
    label: &'static str,
    entries: impl Fn(&OfGuest) -> &BTreeMap<String, T>,
) -> impl Iterator<Item = ([(&'static str, &'a str); 2], &'a T)> {
    guests.iter().flat_map(move |(guest, known)| {
        let entries = entries(known).iter();
        entries.map(move |(name, entry)| {
            let labels = [("guest", guest.as_str()), (label, name.as_str())];
            (labels, entry)
        })
    })
}

/// Writes counters of times.
fn encode_times<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    times: impl Iterator<Item = ([(&'static str, &'a str); 2], &'a u64)>,
) -> fmt::Result {
    let kind = ConstCounter::new(0_f64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, time) in times {
        ConstCounter::new(seconds(*time)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
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
    use kvmprof_recording::exits::{Counts, Exits, OfThread, OfWait};
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn times_of_a_guest_are_summed_up_and_bounded() {
        let turns = |time| Exits { count: 1, time };
        let ran = |number: u32| OfWait {
            thread: 9,
            other_thread: 100 + number,
            other_process: 100 + number,
            name: kvmprof_recording::comm_of(&format!("work{number}")),
            turns: turns(250_000_000),
        };
        let interval = |waits| ExitInterval {
            counts: Counts {
                threads: vec![OfThread {
                    thread: 9,
                    vcpu: 3,
                    waits: turns(500_000_000),
                    migrations: 1,
                }],
                waits,
                ..Counts::default()
            },
            ..ExitInterval::default()
        };
        let counts = ExitCounts::default();
        let text = || {
            let mut registry = Registry::default();
            registry.register_collector(Box::new(counts.clone()));
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text
        };
        for _ in 0..3 {
            counts.add("db1", &interval(vec![ran(0), ran(1)]));
        }
        for line in [
            "guest_vcpu_wait_seconds_total{guest=\"db1\",vcpu=\"3\"} 1.5",
            "guest_taken_seconds_total{guest=\"db1\",by=\"work1\"} 0.75",
        ] {
            let text = text();
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        counts.add("db1", &interval((0..200).map(ran).collect()));
        let text = text();
        let lines = text.lines();
        let taken = lines.filter(|line| line.starts_with("guest_taken_seconds_total{"));
        assert_eq!(taken.count(), MAX_TAKERS + 1);
        let other = format!(
            "guest_taken_seconds_total{{guest=\"db1\",by=\"other\"}} {:?}",
            0.25 * (200 - MAX_TAKERS) as f64
        );
        assert!(text.lines().any(|line| line == other), "{other}: {text}");
        counts.forget("db1");
        assert!(counts.guests().is_empty());
    }

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
