//! Metrics for Prometheus, in the format of OpenMetrics.
//!
//! The number of processes' names in labels, with the labels that the configuration names, is bounded. A guest's series are removed when it has had no window for an hour.

mod exits;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kvmprof_recording::Mode;
use kvmprof_recording::counters::{Counter as GuestCounter, Counters as GuestCounts};
use kvmprof_recording::exits::ExitInterval;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::batch::{Batch, OTHER, Window};
use crate::config::{Config, OF_PROCESSES};
use crate::spool::{Progress, Spool};
use exits::ExitCounts;

/// The time after which a guest without windows loses its series, in s.
const FORGET: u64 = 3600;

/// Counters of a guest that are in the metrics (guest/abi/PMC.md).
const EVENTS: [&str; 11] = [
    "exits",
    "halts",
    "interrupts",
    "page-faults",
    "emulated",
    "tlb-flushes",
    "port-reads",
    "port-writes",
    "mmio-reads",
    "mmio-writes",
    "interrupted",
];

type Labels<const N: usize> = [(&'static str, String); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;
/// Labels of samples: there are more if the configuration names labels of processes.
type SampleLabels = Vec<(String, String)>;
/// Takes a count out of a sink's progress.
type Count = fn(&Progress) -> u64;

/// The label sets of a guest.
#[derive(Debug, Default)]
struct Guest {
    /// The start of its last window, in s since 1970.
    last: u64,
    /// Its processes: the name, then the values of the labels that the configuration names, empty where there is none.
    processes: BTreeSet<Vec<String>>,
    kernel: String,
    /// The last value of each of its counters.
    counts: BTreeMap<&'static str, u64>,
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    ticks: Counters<2>,
    samples: Family<SampleLabels, Counter>,
    windows: Counters<1>,
    events: Counters<2>,
    exits: ExitCounts,
    rates: Family<Labels<1>, Gauge>,
    jitter: Family<Labels<1>, Gauge>,
    kernels: Family<Labels<2>, Gauge>,
    guests: Gauge,
    left_out: Gauge,
    known: Mutex<BTreeMap<String, Guest>>,
    processes: usize,
    /// The keys of labels of processes.
    keys: Vec<String>,
}

impl Metrics {
    /// Metrics without values, for the host of this name. Those of `spool` are read at each request.
    pub fn new(config: &Config, host: &str, spool: Arc<Spool>) -> Self {
        let labels = config.labels.iter();
        let labels = labels.map(|(name, text)| (name.clone().into(), text.clone().into()));
        let host = [("host".into(), host.to_owned().into())].into_iter();
        let mut metrics = Self {
            registry: Registry::with_prefix_and_labels("kvmprof", host.chain(labels)),
            ticks: Family::default(),
            samples: Family::default(),
            windows: Family::default(),
            events: Family::default(),
            exits: ExitCounts::default(),
            rates: Family::default(),
            jitter: Family::default(),
            kernels: Family::default(),
            guests: Gauge::default(),
            left_out: Gauge::default(),
            known: Mutex::default(),
            processes: config.limits.processes,
            keys: config.metrics.labels.clone(),
        };
        metrics.register(spool);
        metrics
    }

    fn register(&mut self, spool: Arc<Spool>) {
        let Self {
            registry,
            ticks,
            samples,
            windows,
            events,
            exits,
            rates,
            jitter,
            kernels,
            guests,
            left_out,
            ..
        } = self;
        registry.register(
            "ticks",
            "Ticks of all vCPUs, by what became of them",
            ticks.clone(),
        );
        registry.register(
            "samples",
            "Samples, and ticks of halted vCPUs, by process and mode",
            samples.clone(),
        );
        registry.register("windows", "Windows that were collected", windows.clone());
        registry.register(
            "guest_events",
            "What a guest's counters have counted: exits are all exits to KVM, the others some of them, what makes them, or what KVM does",
            events.clone(),
        );
        registry.register("rate_hertz", "Ticks a second on each vCPU", rates.clone());
        registry.register(
            "jitter",
            "1 if the guest's ticks have a random phase, else 0",
            jitter.clone(),
        );
        registry.register(
            "guest_kernel",
            "The release of the guest's kernel",
            kernels.clone(),
        );
        registry.register("guests", "Guests that are followed", guests.clone());
        registry.register(
            "guests_left_out",
            "Guests that the limit leaves out",
            left_out.clone(),
        );
        registry.register_collector(Box::new(exits.clone()));
        registry.register_collector(Box::new(SpoolCounts(spool)));
    }

    /// Adds a batch to the metrics.
    pub fn add(&self, batch: &Batch) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for window in &batch.windows {
            let guest = known.entry(window.guest.clone()).or_default();
            guest.last = batch.start;
            self.add_window(batch, window, guest);
        }
        known.retain(|name, guest| {
            let is_alive = guest.last.saturating_add(FORGET) >= batch.start;
            if !is_alive {
                self.forget(name, guest);
            }
            is_alive
        });
    }

    fn add_window(&self, batch: &Batch, window: &Window, guest: &mut Guest) {
        let name = || ("guest", window.guest.clone());
        let account = &window.account;
        for (fate, ticks) in fates(|fate| match fate {
            "sampled" => account.samples,
            "idle" => account.idle,
            "stolen" => account.stolen,
            _ => account.lost,
        }) {
            let labels = [name(), ("fate", fate.to_owned())];
            self.ticks.get_or_create(&labels).inc_by(ticks);
        }
        for row in &window.rows {
            let value = |key: &String| {
                let found = batch.labels(row).find(|(own, _)| own == key);
                found.map_or_else(String::new, |(_, value)| value.to_owned())
            };
            let mut process = vec![batch.name(row.process).to_owned()];
            process.extend(self.keys.iter().map(value));
            if !guest.processes.contains(&process) {
                if guest.processes.len() < self.processes {
                    guest.processes.insert(process.clone());
                } else {
                    process = vec![OTHER.to_owned()];
                }
            }
            let labels = self.sample_labels(&window.guest, &process, row.mode());
            self.samples.get_or_create(&labels).inc_by(row.ticks);
        }
        self.windows.get_or_create(&[name()]).inc();
        self.rates.get_or_create(&[name()]).set(window.hz.into());
        if let Some(jitter) = window.jitter {
            self.jitter.get_or_create(&[name()]).set(jitter.into());
        }
        if guest.kernel != window.kernel {
            self.kernels
                .remove(&[name(), ("release", guest.kernel.clone())]);
            guest.kernel.clone_from(&window.kernel);
        }
        let labels = [name(), ("release", window.kernel.clone())];
        self.kernels.get_or_create(&labels).set(1);
    }

    /// Takes a guest's counters, which count from its start. They are ignored for a guest that has no window yet.
    pub fn note_counts(&self, guest: &str, counts: &GuestCounts) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = known.get_mut(guest) else {
            return;
        };
        for event in EVENTS {
            let mut counters = counts.counters.iter();
            let counter = counters.find(|counter| counter.name == event);
            let Some(now) = counter.and_then(GuestCounter::total) else {
                continue;
            };
            let before = known.counts.insert(event, now).unwrap_or_default();
            // A guest that was started again counts from 0.
            let more = now.checked_sub(before).unwrap_or(now);
            let labels = [("guest", guest.to_owned()), ("event", event.to_owned())];
            self.events.get_or_create(&labels).inc_by(more);
        }
    }

    /// Takes the exits of a guest in a part of the time. They are ignored for a guest that has no window yet.
    pub fn note_exits(&self, guest: &str, interval: &ExitInterval) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains_key(guest) {
            self.exits.add(guest, interval);
        }
    }

    /// The labels of samples of a `process` of [`Guest::processes`].
    fn sample_labels(&self, guest: &str, process: &[String], mode: Mode) -> SampleLabels {
        let name = process.first().cloned();
        let own = [
            ("guest", guest.to_owned()),
            ("process", name.unwrap_or_default()),
            ("mode", mode.name().to_owned()),
        ];
        let values = self.keys.iter().zip(process.iter().skip(1));
        let values = values.filter(|(_, value)| !value.is_empty());
        let values = values.map(|(key, value)| (format!("{OF_PROCESSES}{key}"), value.clone()));
        let own = own.map(|(name, value)| (name.to_owned(), value));
        own.into_iter().chain(values).collect()
    }

    fn forget(&self, name: &str, guest: &Guest) {
        let label = || ("guest", name.to_owned());
        self.exits.forget(name);
        for event in guest.counts.keys() {
            self.events
                .remove(&[label(), ("event", (*event).to_owned())]);
        }
        for (fate, ()) in fates(|_| ()) {
            self.ticks.remove(&[label(), ("fate", fate.to_owned())]);
        }
        let others = vec![OTHER.to_owned()];
        for process in guest.processes.iter().chain([&others]) {
            for mode in Mode::ALL {
                self.samples
                    .remove(&self.sample_labels(name, process, mode));
            }
        }
        self.windows.remove(&[label()]);
        self.rates.remove(&[label()]);
        self.jitter.remove(&[label()]);
        self.kernels
            .remove(&[label(), ("release", guest.kernel.clone())]);
    }

    /// Notes the number of guests that are followed, and of those that the limit leaves out.
    pub fn note_guests(&self, followed: usize, left_out: usize) {
        self.guests.set(i64::try_from(followed).unwrap_or(i64::MAX));
        self.left_out
            .set(i64::try_from(left_out).unwrap_or(i64::MAX));
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// The encoder fails. It has no known reason to, as it writes to memory.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn fates<T>(part: impl Fn(&str) -> T) -> [(&'static str, T); 4] {
    ["sampled", "idle", "stolen", "lost"].map(|fate| (fate, part(fate)))
}

/// The metrics of the spool, which are read at each request.
#[derive(Debug)]
struct SpoolCounts(Arc<Spool>);

impl Collector for SpoolCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let fill = self.0.fill();
        let gauge = |number: u64| ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
        for (name, help, number) in [
            ("spool_bytes", "Bytes in the spool", fill.bytes),
            ("spool_batches", "Batches in the spool", fill.batches),
        ] {
            let gauge = gauge(number);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        for (name, help, number) in [
            (
                "windows_killed",
                "Windows that were open when the collector was killed",
                fill.killed,
            ),
            (
                "spool_damaged_files",
                "Files of the spool that were damaged, and set aside",
                fill.damaged,
            ),
        ] {
            let counter = ConstCounter::new(number);
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        let progress = self.0.progress();
        let counts: [(&str, &str, Count); 5] = [
            ("sink_ticks", "Ticks that the sink has taken", |sink| {
                sink.delivered.ticks
            }),
            ("sink_windows", "Windows that the sink has taken", |sink| {
                sink.delivered.windows
            }),
            (
                "sink_lost_windows",
                "Windows that had to go before the sink had them",
                |sink| sink.lost.windows,
            ),
            (
                "sink_refused_windows",
                "Windows that the sink has refused",
                |sink| sink.refused.windows,
            ),
            (
                "sink_unsure_windows",
                "Windows that the sink may have or not: they were being sent when the collector was killed, it took some of a request, or the note of what it has was damaged",
                |sink| sink.unsure.windows,
            ),
        ];
        for (name, help, count) in counts {
            let kind = ConstCounter::new(0_u64).metric_type();
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (sink, progress, _) in &progress {
                let labels = [("sink", sink.as_str())];
                ConstCounter::new(count(progress)).encode(family.encode_family(&labels)?)?;
            }
        }
        self.encode_state(&mut encoder, &progress)
    }
}

impl SpoolCounts {
    fn encode_state(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        progress: &[(String, Progress, u64)],
    ) -> fmt::Result {
        let kind = ConstCounter::new(0_u64).metric_type();
        let help = "Attempts to hand over that have failed and were made again";
        let mut family = encoder.encode_descriptor("sink_retries", help, None, kind)?;
        for (sink, progress, _) in progress {
            let labels = [("sink", sink.as_str())];
            ConstCounter::new(progress.retries).encode(family.encode_family(&labels)?)?;
        }
        let kind = ConstGauge::new(0_i64).metric_type();
        let help = "Batches that wait for the sink";
        let mut family = encoder.encode_descriptor("sink_waiting_batches", help, None, kind)?;
        for (sink, _, waiting) in progress {
            let waiting = i64::try_from(*waiting).unwrap_or(i64::MAX);
            let labels = [("sink", sink.as_str())];
            ConstGauge::new(waiting).encode(family.encode_family(&labels)?)?;
        }
        let failed = self.0.failed();
        let kind = ConstGauge::new(0_i64).metric_type();
        let help = "1 if the sink has ended by a fault of the program, else 0";
        let mut family = encoder.encode_descriptor("sink_failed", help, None, kind)?;
        for (sink, ..) in progress {
            let has_failed = i64::from(failed.contains(sink));
            let labels = [("sink", sink.as_str())];
            ConstGauge::new(has_failed).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
