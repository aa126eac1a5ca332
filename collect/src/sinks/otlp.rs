//! Batches as OTLP profiles: one request for a batch, with a profile for each guest. A batch that is too large for receivers is split into several requests.
//!
//! <https://github.com/open-telemetry/opentelemetry-proto>, `profiles/v1development`; names of attributes are those of the semantic
//! conventions where they have one.

use std::sync::Arc;

use anyhow::anyhow;
use kvmprof_report::model::Table;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use super::departure::Departure;
use super::http::{Poster, packed};
use super::{Failure, Sink, no_stack};
use crate::batch::{Batch, Function, Row, Window};
use crate::config::Endpoint;

/// Maximum number of rows in a request, unless a single window has more. By default, receivers of gRPC accept up to 4 MiB.
const MAX_ROWS: usize = 8192;

/// The start of the names of attributes that are labels of processes, for which the semantic conventions have no name.
const LABEL: &str = "kvmprof.label.";
/// The attribute of a mapping that is its file's build id.
const BUILD_ID: &str = "process.executable.build_id.gnu";
/// The keys of labels and the attributes that these are by the semantic conventions (registry of attributes: container, k8s, process), and whether that is an
/// integer.
const ATTRIBUTES: [(&str, &str, bool); 8] = [
    ("container", "container.id", false),
    ("runtime", "container.runtime", false),
    ("pod", "k8s.pod.uid", false),
    ("pid", "process.pid", true),
    ("inner_pid", "process.vpid", true),
    ("parent", "process.parent_pid", true),
    ("executable", "process.executable.path", false),
    ("arguments", "process.command_line", false),
];

/// Sends requests to a receiver.
pub trait Sender: Send {
    /// Sends a request, whose last byte is held back until its `departure` is noted. Returns the answer.
    fn send(
        &mut self,
        request: ExportProfilesServiceRequest,
        departure: &Arc<Departure>,
    ) -> Result<ExportProfilesServiceResponse, Failure>;
}

/// The sink.
pub struct OtlpSink(Box<dyn Sender>);

impl OtlpSink {
    /// A sink that sends by `sender`.
    pub fn new(sender: Box<dyn Sender>) -> Self {
        Self(sender)
    }
}

impl Sink for OtlpSink {
    fn parts(&mut self, batches: &[Batch]) -> usize {
        batches.iter().map(|batch| pieces(batch).count()).sum()
    }

    fn part(&self, batches: &[Batch], part: usize) -> (u64, u64) {
        find(batches, part).map_or((0, 0), |(_, windows)| {
            let ticks = windows.iter().map(Window::ticks);
            let ticks = ticks.fold(0, u64::saturating_add);
            (windows.len() as u64, ticks)
        })
    }

    fn send(
        &mut self,
        batches: &[Batch],
        part: usize,
        departure: &Arc<Departure>,
    ) -> Result<(), Failure> {
        match find(batches, part) {
            Some((batch, windows)) => {
                let answer = self.0.send(request(batch, windows), departure)?;
                judge(answer, windows.len())
            }
            None => Ok(()),
        }
    }
}

/// The result of a request with a profile for each of `windows` windows. By OTLP, rejected profiles aren't sent again, and the answer doesn't say
/// which ones these are.
fn judge(answer: ExportProfilesServiceResponse, windows: usize) -> Result<(), Failure> {
    let Some(partly) = answer.partial_success else {
        return Ok(());
    };
    let why = kvmprof_report::text::visible(&partly.error_message);
    let rejected = usize::try_from(partly.rejected_profiles).unwrap_or(0);
    let error = anyhow!("The receiver rejects {rejected} of {windows} profiles: {why}");
    match rejected {
        0 => {
            if !why.is_empty() {
                log::warn!("The receiver of OTLP warns: {why}");
            }
            Ok(())
        }
        some if some < windows => Err(Failure::Partly(error)),
        _ => Err(Failure::Refused(error)),
    }
}

/// Splits the windows of a batch into pieces, one for each request. The same batch is always split in the same way.
fn pieces(batch: &Batch) -> impl Iterator<Item = &[Window]> {
    let mut rows = batch.windows.first().map_or(0, |first| first.rows.len());
    let is_together = move |_: &Window, next: &Window| {
        rows = rows.saturating_add(next.rows.len());
        let is_together = rows <= MAX_ROWS;
        if !is_together {
            rows = next.rows.len();
        }
        is_together
    };
    batch.windows.chunk_by(is_together)
}

fn find(batches: &[Batch], part: usize) -> Option<(&Batch, &[Window])> {
    let all = batches
        .iter()
        .flat_map(|batch| pieces(batch).map(move |windows| (batch, windows)));
    all.into_iter().nth(part)
}

/// Sends over HTTP.
pub struct Http(Poster);

impl Http {
    /// A sender that posts to `endpoint`.
    pub fn new(endpoint: &Endpoint) -> anyhow::Result<Self> {
        Ok(Self(Poster::new(endpoint)?))
    }
}

impl Sender for Http {
    fn send(
        &mut self,
        request: ExportProfilesServiceRequest,
        departure: &Arc<Departure>,
    ) -> Result<ExportProfilesServiceResponse, Failure> {
        let packed = packed(&request).map_err(anyhow::Error::from)?;
        let headers = [
            ("Content-Type", "application/x-protobuf"),
            ("Content-Encoding", "gzip"),
        ];
        let answer = self.0.post_with(&[], &headers, &packed, departure)?;
        // The request was accepted, even if the answer isn't in OTLP's format.
        Ok(ExportProfilesServiceResponse::decode(&answer[..]).unwrap_or_default())
    }
}

/// The tables that all profiles of a request share. By the format, element 0 of each is empty.
#[derive(Default)]
struct Dictionary {
    strings: Table<String>,
    /// Key and value.
    attributes: Table<(i32, String)>,
    /// The module's name and build id.
    mappings: Table<(i32, String)>,
    /// Function, mapping, and whether it is of the kernel.
    locations: Table<(i32, i32, bool)>,
    stacks: Table<Vec<i32>>,
    tables: otlp::ProfilesDictionary,
}

/// The request with `windows` of `batch`.
pub(crate) fn request(batch: &Batch, windows: &[Window]) -> ExportProfilesServiceRequest {
    let mut dictionary = Dictionary::new();
    let resource_profiles = windows
        .iter()
        .map(|window| resource(batch, window, dictionary.profile(batch, window)))
        .collect();
    ExportProfilesServiceRequest {
        resource_profiles,
        dictionary: Some(dictionary.into_tables()),
    }
}

/// A guest's profile with the guest's attributes.
fn resource(batch: &Batch, window: &Window, profile: otlp::Profile) -> otlp::ResourceProfiles {
    let own = [
        ("service.name", &window.guest),
        ("host.name", &batch.host),
        ("kvmprof.guest", &window.guest),
        ("kvmprof.kernel.release", &window.kernel),
    ];
    let configured = batch
        .labels
        .iter()
        .map(|(name, value)| (name.as_str(), value));
    let attributes = own.into_iter().chain(configured);
    let attributes = attributes.map(|(key, value)| KeyValue {
        key: key.to_owned(),
        value: Some(text(value)),
        ..KeyValue::default()
    });
    otlp::ResourceProfiles {
        resource: Some(Resource {
            attributes: attributes.collect(),
            ..Resource::default()
        }),
        scope_profiles: vec![otlp::ScopeProfiles {
            scope: Some(InstrumentationScope {
                name: "kvmprof-collect".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            profiles: vec![profile],
            ..otlp::ScopeProfiles::default()
        }],
        ..otlp::ResourceProfiles::default()
    }
}

fn text(value: &str) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(value.to_owned())),
    }
}

/// An integer, or the text where it is none.
fn integer(value: &str) -> AnyValue {
    let number = value.parse().map(Value::IntValue);
    AnyValue {
        value: Some(number.unwrap_or_else(|_| Value::StringValue(value.to_owned()))),
    }
}

/// The profile's id of 16 bytes: always the same for the same window, and, by the collector's run, different for any other.
fn identity(batch: &Batch, guest: usize) -> Vec<u8> {
    let boot = u64::from_str_radix(&batch.boot, 16).unwrap_or_default();
    // The start has 40 bits (34,000 years), and the guest's index 24 bits.
    let window = batch.start << 24 | guest as u64 & 0xff_ffff;
    [boot.to_be_bytes(), window.to_be_bytes()].concat()
}

impl Dictionary {
    fn new() -> Self {
        let mut new = Self::default();
        new.string("");
        new.attributes.push(Default::default());
        new.mappings.push(Default::default());
        new.locations.push(Default::default());
        new.stacks.push(Vec::new());
        let tables = &mut new.tables;
        tables
            .attribute_table
            .push(otlp::KeyValueAndUnit::default());
        tables.mapping_table.push(otlp::Mapping::default());
        tables.location_table.push(otlp::Location::default());
        tables.function_table.push(otlp::Function::default());
        tables.link_table.push(otlp::Link::default());
        new
    }

    fn into_tables(self) -> otlp::ProfilesDictionary {
        let stacks = self.stacks.into_values().into_iter();
        otlp::ProfilesDictionary {
            string_table: self.strings.into_values(),
            stack_table: stacks
                .map(|location_indices| otlp::Stack { location_indices })
                .collect(),
            ..self.tables
        }
    }

    fn string(&mut self, text: &str) -> i32 {
        let known = self.strings.find(text);
        place(known.unwrap_or_else(|| self.strings.push(text.to_owned())))
    }

    fn attribute(&mut self, key: &str, value: &str) -> i32 {
        self.attribute_as(key, value, text)
    }

    /// The attribute `key` with the value that `form` makes of `value`, always the same for the same key.
    fn attribute_as(&mut self, key: &str, value: &str, form: fn(&str) -> AnyValue) -> i32 {
        let own = (self.string(key), value.to_owned());
        let known = self.attributes.find(&own);
        place(known.unwrap_or_else(|| {
            self.tables.attribute_table.push(otlp::KeyValueAndUnit {
                key_strindex: own.0,
                value: Some(form(value)),
                unit_strindex: 0,
            });
            self.attributes.push(own)
        }))
    }

    /// The attribute of a label of a process.
    fn label(&mut self, key: &str, value: &str) -> i32 {
        let known = ATTRIBUTES.iter().find(|(label, ..)| *label == key);
        match known {
            Some((_, attribute, true)) => self.attribute_as(attribute, value, integer),
            Some((_, attribute, false)) => self.attribute(attribute, value),
            None => self.attribute(&format!("{LABEL}{key}"), value),
        }
    }

    fn mapping(&mut self, module: &str, build_id: &str) -> i32 {
        let own = (self.string(module), build_id.to_owned());
        if let Some(known) = self.mappings.find(&own) {
            return place(known);
        }
        let known = (!build_id.is_empty()).then(|| self.attribute(BUILD_ID, build_id));
        self.tables.mapping_table.push(otlp::Mapping {
            filename_strindex: own.0,
            attribute_indices: known.into_iter().collect(),
            ..otlp::Mapping::default()
        });
        place(self.mappings.push(own))
    }

    /// The index of a function's location, which is that of the function, too.
    fn location(&mut self, function: &Function<&str>) -> i32 {
        let name = self.string(function.name);
        let mapping_index = self.mapping(function.module, function.build_id);
        let key = (name, mapping_index, function.is_kernel);
        if let Some(known) = self.locations.find(&key) {
            return place(known);
        }
        let number = place(self.locations.push(key));
        self.tables.function_table.push(otlp::Function {
            name_strindex: name,
            system_name_strindex: name,
            ..otlp::Function::default()
        });
        let kind = if function.is_kernel {
            "kernel"
        } else {
            "native"
        };
        let location = otlp::Location {
            mapping_index,
            lines: vec![otlp::Line {
                function_index: number,
                ..otlp::Line::default()
            }],
            attribute_indices: vec![self.attribute("profile.frame.type", kind)],
            ..otlp::Location::default()
        };
        self.tables.location_table.push(location);
        number
    }

    fn profile(&mut self, batch: &Batch, window: &Window) -> otlp::Profile {
        let guest = batch
            .windows
            .iter()
            .position(|one| std::ptr::eq(one, window));
        let value_type = |dictionary: &mut Self, kind, unit| otlp::ValueType {
            type_strindex: dictionary.string(kind),
            unit_strindex: dictionary.string(unit),
        };
        otlp::Profile {
            sample_type: Some(value_type(self, "samples", "count")),
            samples: window
                .rows
                .iter()
                .map(|row| self.sample(batch, row))
                .collect(),
            time_unix_nano: batch.start.saturating_mul(1_000_000_000),
            duration_nano: u64::from(batch.length) * 1_000_000_000,
            period_type: Some(value_type(self, "cpu", "nanoseconds")),
            period: i64::try_from(window.period()).unwrap_or(i64::MAX),
            profile_id: identity(batch, guest.unwrap_or_default()),
            ..otlp::Profile::default()
        }
    }

    fn sample(&mut self, batch: &Batch, row: &Row) -> otlp::Sample {
        let mut locations: Vec<i32> = batch
            .frames(row)
            .map(|(_, frame)| self.location(&batch.function(&frame)))
            .collect();
        if locations.is_empty() {
            locations.push(self.location(&no_stack(row)));
        }
        let stack = self.stacks.number(locations);
        let mut attribute_indices = vec![
            self.attribute("process.executable.name", batch.name(row.process)),
            self.attribute("thread.name", batch.name(row.thread)),
            // The modes have the same names in the semantic conventions.
            self.attribute("cpu.mode", row.mode().name()),
        ];
        let labels = batch.labels(row);
        let labels = labels.map(|(key, value)| self.label(key, value));
        attribute_indices.extend(labels);
        otlp::Sample {
            stack_index: place(stack),
            attribute_indices,
            values: vec![i64::try_from(row.ticks).unwrap_or(i64::MAX)],
            ..otlp::Sample::default()
        }
    }
}

/// An index in a table, in the format's type. The limits of guests keep it far below the maximum.
fn place(number: u32) -> i32 {
    i32::try_from(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::batch::testing::batch;

    #[test]
    fn a_request_has_every_tick_and_only_valid_indices() {
        let batch = batch(100, &["a", "b"], 7);
        let request = request(&batch, &batch.windows);
        let tables = request.dictionary.as_ref().unwrap();
        assert_eq!(tables.string_table[0], "");
        assert_eq!(tables.function_table.len(), tables.location_table.len());
        let (mut ticks, mut identities) = (0, HashSet::new());
        for resource in &request.resource_profiles {
            let profile = &resource.scope_profiles[0].profiles[0];
            assert!(identities.insert(profile.profile_id.clone()));
            assert_eq!(profile.profile_id.len(), 16);
            for sample in &profile.samples {
                ticks += sample.values[0];
                let stack = &tables.stack_table[usize::try_from(sample.stack_index).unwrap()];
                for location in &stack.location_indices {
                    let location = &tables.location_table[usize::try_from(*location).unwrap()];
                    let function = usize::try_from(location.lines[0].function_index).unwrap();
                    let name = tables.function_table[function].name_strindex;
                    assert!(name > 0);
                    let mapping = usize::try_from(location.mapping_index).unwrap();
                    let mapping = &tables.mapping_table[mapping];
                    let ids = mapping.attribute_indices.iter().map(|attribute| {
                        let attribute = usize::try_from(*attribute).unwrap();
                        let attribute = &tables.attribute_table[attribute];
                        let key = usize::try_from(attribute.key_strindex).unwrap();
                        (&*tables.string_table[key], attribute.value.clone().unwrap())
                    });
                    let is_known = mapping.filename_strindex > 0;
                    let expected = is_known.then(|| (BUILD_ID, text("b1d0")));
                    assert!(ids.eq(expected));
                }
            }
        }
        assert_eq!(ticks, 20);
    }

    #[test]
    fn large_batches_are_split_into_several_requests() {
        let mut large = batch(100, &["a", "b", "c", "d", "e"], 7);
        for (index, rows) in [(0, MAX_ROWS - 2), (3, 3 * MAX_ROWS)] {
            let row = large.windows[index].rows[0];
            large.windows[index].rows.resize(rows, row);
        }
        let lengths: Vec<usize> = pieces(&large).map(<[Window]>::len).collect();
        let batches = [batch(90, &["a"], 7), large];
        let mut windows = 0;
        for part in 0.. {
            let Some((_, piece)) = find(&batches, part) else {
                break;
            };
            let rows: usize = piece.iter().map(|window| window.rows.len()).sum();
            assert!(rows <= MAX_ROWS || piece.len() == 1, "{rows}");
            windows += piece.len();
        }
        assert_eq!((windows, lengths), (6, vec![2, 1, 1, 1]));
        assert_eq!(pieces(&Batch::default()).count(), 0);
    }
}
