//! Windows as pprof profiles for Pyroscope or Parca, one request for each window.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kvmprof_report::export::{PprofTables, pprof_message as message, pprof_number as number};
use kvmprof_report::model::Range;
use serde_json::json;

use super::departure::Departure;
use super::http::{Poster, packed};
use super::{Failure, Sink, no_stack};
use crate::batch::{Batch, Function, Window};
use crate::config::Endpoint;

/// The protocol by which a server receives profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `POST /ingest?name=…&from=…&until=…` with a form (<https://grafana.com/docs/pyroscope/latest/reference-server-api/>).
    Pyroscope,
    /// `POST /api/v1/profiles/writeraw` with JSON, the HTTP gateway of `WriteRaw` in `parca.profilestore.v1alpha1`.
    Parca,
}

/// The name of the profiles.
const NAME: &str = "kvmprof";

/// The sink.
pub struct PprofSink {
    poster: Poster,
    dialect: Dialect,
}

impl PprofSink {
    /// A sink that posts to `endpoint`.
    pub fn new(endpoint: &Endpoint, dialect: Dialect) -> anyhow::Result<Self> {
        Ok(Self {
            poster: Poster::new(endpoint)?,
            dialect,
        })
    }

    fn to_pyroscope(
        &self,
        batch: &Batch,
        window: &Window,
        profile: &[u8],
        departure: &Departure,
    ) -> Result<(), Failure> {
        let labels = labels(batch, window).into_iter();
        let labels = labels.map(|(name, value)| format!("{name}={}", plain(&value)));
        let labels: Vec<String> = labels.collect();
        let query = [
            ("name", format!("{NAME}{{{}}}", labels.join(","))),
            ("from", batch.start.to_string()),
            ("until", batch.end().to_string()),
            ("format", "pprof".to_owned()),
            ("spyName", "kvmprof-collect".to_owned()),
        ];
        let boundary = crate::collector::new_boot().map_err(anyhow::Error::from)?;
        let mut body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"profile\"; filename=\"profile.pb.gz\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        )
        .into_bytes();
        body.extend(profile);
        body.extend(format!("\r\n--{boundary}--\r\n").into_bytes());
        let kind = format!("multipart/form-data; boundary={boundary}");
        self.poster.post(&query, &kind, &body, departure)
    }

    fn to_parca(
        &self,
        batch: &Batch,
        window: &Window,
        profile: &[u8],
        departure: &Departure,
    ) -> Result<(), Failure> {
        let mut labels = labels(batch, window);
        labels.push(("__name__".to_owned(), NAME.to_owned()));
        let labels = labels.into_iter();
        let labels = labels.map(|(name, value)| json!({ "name": name, "value": value }));
        let labels: Vec<serde_json::Value> = labels.collect();
        let body = json!({
            "normalized": false,
            "series": [{
                "labels": { "labels": labels },
                "samples": [{ "rawProfile": STANDARD.encode(profile) }],
            }],
        });
        let body = body.to_string();
        let kind = "application/json";
        self.poster.post(&[], kind, body.as_bytes(), departure)
    }
}

impl Sink for PprofSink {
    fn parts(&mut self, batches: &[Batch]) -> usize {
        batches.iter().map(|batch| batch.windows.len()).sum()
    }

    fn part(&self, batches: &[Batch], part: usize) -> (u64, u64) {
        find(batches, part).map_or((0, 0), |(_, window)| (1, window.ticks()))
    }

    fn send(
        &mut self,
        batches: &[Batch],
        part: usize,
        departure: &Arc<Departure>,
    ) -> Result<(), Failure> {
        let Some((batch, window)) = find(batches, part) else {
            return Ok(());
        };
        let packed = packed(&profile(batch, window)).map_err(anyhow::Error::from)?;
        match self.dialect {
            Dialect::Pyroscope => self.to_pyroscope(batch, window, &packed, departure),
            Dialect::Parca => self.to_parca(batch, window, &packed, departure),
        }
    }
}

/// The window with this index among those of all batches.
fn find(batches: &[Batch], part: usize) -> Option<(&Batch, &Window)> {
    let windows = batches
        .iter()
        .flat_map(|batch| batch.windows.iter().map(move |window| (batch, window)));
    windows.into_iter().nth(part)
}

/// The labels of a window.
fn labels(batch: &Batch, window: &Window) -> Vec<(String, String)> {
    let own = [
        ("service_name", &window.guest),
        ("guest", &window.guest),
        ("host", &batch.host),
        ("kernel", &window.kernel),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.clone()));
    let configured = batch.labels.iter();
    let configured = configured.map(|(name, value)| (name.clone(), value.clone()));
    let all = own.into_iter().chain(configured);
    all.filter(|(_, value)| !value.is_empty()).collect()
}

/// The value of a label in Pyroscope's `name`, where it has no quotes: without the characters that would end it.
fn plain(value: &str) -> String {
    let shown = |character| match character {
        '{' | '}' | ',' | '=' | '"' => '_',
        _ => character,
    };
    value.chars().map(shown).collect()
}

/// The profile of a window.
pub(crate) fn profile<'b>(batch: &'b Batch, window: &Window) -> message::Profile {
    let mut tables = PprofTables::default();
    tables.measure("cpu", "nanoseconds", window.period());
    tables.profile.time_nanos = number(batch.start.saturating_mul(1_000_000_000));
    tables.profile.duration_nanos = number(u64::from(batch.length) * 1_000_000_000);
    let mut mappings = HashMap::new();
    for row in &window.rows {
        let mut location = |function: Function<&'b str>| {
            let module = (function.module, function.build_id);
            let mapping = *mappings
                .entry(module)
                .or_insert_with(|| tables.mapping(module.0, module.1, Range::default()));
            let function = tables.function(function.name, function.module);
            tables.location(mapping, 0, vec![(function, 0)])
        };
        let mut locations: Vec<u64> = batch
            .frames(row)
            .map(|(_, frame)| location(batch.function(&frame)))
            .collect();
        if locations.is_empty() {
            locations.push(location(no_stack(row)));
        }
        let labels = [
            ("process", batch.name(row.process)),
            ("thread", batch.name(row.thread)),
            ("mode", row.mode().name()),
        ];
        let time = row.ticks.saturating_mul(window.period());
        let labels = labels.into_iter().chain(batch.labels(row));
        tables.sample(locations, [number(row.ticks), number(time)], labels);
    }
    tables.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::testing::batch;

    #[test]
    fn a_profile_has_every_tick() {
        let batch = batch(100, &["a"], 7);
        let profile = profile(&batch, &batch.windows[0]);
        let ticks: i64 = profile.sample.iter().map(|sample| sample.value[0]).sum();
        let time: i64 = profile.sample.iter().map(|sample| sample.value[1]).sum();
        assert_eq!((ticks, time), (10, 500_000_000));
        assert_eq!(profile.string_table[0], "");
        assert_eq!(profile.sample[0].location_id, [1, 2]);
        assert_eq!(profile.location.len(), 3);
        let text = |place: i64| &*profile.string_table[usize::try_from(place).unwrap()];
        let mappings = profile.mapping.iter();
        let mut ids = mappings.map(|mapping| (text(mapping.filename), text(mapping.build_id)));
        assert!(ids.any(|known| known == ("prog", "b1d0")));
    }

    #[test]
    fn values_of_labels_are_escaped() {
        assert_eq!(plain("a{b},c=\"d"), "a_b__c__d");
    }
}
