//! Windows as pprof profiles for Pyroscope or Parca, one request for each window.

use std::io::Write;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use indexmap::IndexSet;
use kvmprof_report::export::pprof_message as message;
use prost::Message;
use serde_json::json;

use super::departure::Departure;
use super::http::Poster;
use super::{Failure, Sink};
use crate::batch::{Batch, Row, Window};
use crate::config::Endpoint;
use crate::sinks::NO_STACK;

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
        (batch, window): (&Batch, &Window),
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
        (batch, window): (&Batch, &Window),
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
        let Some(window) = find(batches, part) else {
            return Ok(());
        };
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        let packed = packer
            .write_all(&profile(window.0, window.1).encode_to_vec())
            .and_then(|()| packer.finish());
        let packed = packed.map_err(anyhow::Error::from)?;
        match self.dialect {
            Dialect::Pyroscope => self.to_pyroscope(window, &packed, departure),
            Dialect::Parca => self.to_parca(window, &packed, departure),
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

/// Builds a profile. Functions and locations are numbered from 1.
#[derive(Default)]
struct Builder {
    strings: IndexSet<String>,
    functions: IndexSet<(String, String)>,
    mappings: IndexSet<String>,
    profile: message::Profile,
}

fn profile(batch: &Batch, window: &Window) -> message::Profile {
    let mut builder = Builder::default();
    // By the format, string 0 is empty.
    builder.string("");
    let samples = builder.value_type("samples", "count");
    let time = builder.value_type("cpu", "nanoseconds");
    builder.profile.sample_type = vec![samples, time];
    builder.profile.period_type = Some(time);
    builder.profile.period = signed(window.period());
    builder.profile.time_nanos = signed(batch.start.saturating_mul(1_000_000_000));
    builder.profile.duration_nanos = signed(u64::from(batch.length) * 1_000_000_000);
    for row in &window.rows {
        builder.add(batch, window, row);
    }
    builder.profile.string_table = builder.strings.into_iter().collect();
    builder.profile
}

impl Builder {
    fn string(&mut self, text: &str) -> i64 {
        signed(self.strings.insert_full(text.to_owned()).0 as u64)
    }

    fn value_type(&mut self, name: &str, unit: &str) -> message::ValueType {
        message::ValueType {
            r#type: self.string(name),
            unit: self.string(unit),
        }
    }

    fn add(&mut self, batch: &Batch, window: &Window, row: &Row) {
        let mut location_id: Vec<u64> = batch
            .frames(row)
            .map(|(_, frame)| self.location(batch.name(frame.function), batch.name(frame.module)))
            .collect();
        if location_id.is_empty() {
            location_id.push(self.location(NO_STACK[usize::from(row.ticks_are_idle())], ""));
        }
        let labels = [
            ("process", batch.name(row.process)),
            ("thread", batch.name(row.thread)),
            ("mode", row.mode().name()),
        ];
        let labels = labels.into_iter().chain(batch.labels(row));
        let label = labels.map(|(key, value)| message::Label {
            key: self.string(key),
            str: self.string(value),
        });
        let label = label.collect();
        let time = row.ticks.saturating_mul(window.period());
        self.profile.sample.push(message::Sample {
            location_id,
            value: vec![signed(row.ticks), signed(time)],
            label,
        });
    }

    /// The number of a function's location, which is that of the function, too.
    fn location(&mut self, function: &str, module: &str) -> u64 {
        let key = (function.to_owned(), module.to_owned());
        let (place, is_new) = self.functions.insert_full(key);
        let id = place as u64 + 1;
        if is_new {
            let (name, filename) = (self.string(function), self.string(module));
            let mapping_id = self.mapping(module);
            self.profile.function.push(message::Function {
                id,
                name,
                system_name: name,
                filename,
            });
            self.profile.location.push(message::Location {
                id,
                mapping_id,
                address: 0,
                line: vec![message::Line {
                    function_id: id,
                    line: 0,
                }],
            });
        }
        id
    }

    fn mapping(&mut self, module: &str) -> u64 {
        let (place, is_new) = self.mappings.insert_full(module.to_owned());
        let id = place as u64 + 1;
        if is_new {
            let filename = self.string(module);
            self.profile.mapping.push(message::Mapping {
                id,
                filename,
                has_functions: true,
                ..message::Mapping::default()
            });
        }
        id
    }
}

/// `number` in the format's type, saturated.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
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
    }

    #[test]
    fn values_of_labels_end_nothing() {
        assert_eq!(plain("a{b},c=\"d"), "a_b__c__d");
    }
}
