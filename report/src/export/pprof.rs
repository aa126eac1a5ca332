//! pprof's `profile.proto` (<https://github.com/google/pprof/blob/main/proto/profile.proto>), compressed by gzip.
//!
//! Each sample has two values, ticks and ns (or events, where those take the samples), and the labels `pid`, `tid`, `vcpu`, `comm` and `mode`
//! (`go tool pprof -tagfocus=mode=interrupt`, `-tagroot=comm`).

use std::collections::HashMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use kvmprof_recording::Mode;
use prost::Message;

use super::interned::Interned;
use super::{Event, ExportError, Frame, Source};
use crate::profile::{Quantity, Stack, Weight};
use crate::symbolize::{BuildIds, KERNEL, USER};

/// The parts of the messages that are written. Fields have the names and numbers of the format's source.
#[expect(missing_docs, reason = "the format's source tells what they mean")]
pub mod message {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub period: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub r#type: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Label {
        #[prost(int64, tag = "1")]
        pub key: i64,
        #[prost(int64, tag = "2")]
        pub str: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Mapping {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub memory_start: u64,
        #[prost(uint64, tag = "3")]
        pub memory_limit: u64,
        #[prost(int64, tag = "5")]
        pub filename: i64,
        #[prost(int64, tag = "6")]
        pub build_id: i64,
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
        #[prost(bool, tag = "8")]
        pub has_filenames: bool,
        #[prost(bool, tag = "9")]
        pub has_line_numbers: bool,
        #[prost(bool, tag = "10")]
        pub has_inline_frames: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub address: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
        #[prost(int64, tag = "2")]
        pub line: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
        #[prost(int64, tag = "3")]
        pub system_name: i64,
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

/// Samples with equal values here are summed up.
#[derive(Debug, PartialEq, Eq, Hash)]
struct SampleKey {
    pid: i32,
    tid: i32,
    vcpu: u16,
    mode: Mode,
    comm: String,
    stack: Option<Stack>,
}

/// The begin of the kernel's half of the address space.
const KERNEL_HALF: u64 = 1 << 63;

/// A function: its name, and its source file or else its module.
type Function = (String, String);
/// A location: mapping, address, and the lines of the functions there, innermost first.
type Location = (u64, u64, Vec<(u64, i64)>);

struct Builder<'a> {
    source: &'a Source,
    builds: BuildIds,
    weight: Weight,
    strings: Interned<String>,
    mappings: Interned<(String, bool)>,
    functions: Interned<Function>,
    locations: Interned<Location>,
    samples: HashMap<SampleKey, usize>,
    profile: message::Profile,
}

/// Writes `source` to `out`.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut builder = Builder::new(source)?;
    let mut times = None;
    source.for_each(|event| {
        let (begin, end) = times.get_or_insert((event.time, event.time));
        *begin = event.time.min(*begin);
        *end = event.time.max(*end);
        builder.add(event)
    })?;
    let (begin, end) = times.unwrap_or_default();
    let info = &source.profile().contents.info;
    let mut profile = builder.profile;
    let after = begin.saturating_sub(info.began_monotonic_ns);
    profile.time_nanos = signed(info.began_ns.saturating_add(after));
    profile.duration_nanos = signed((end - begin).saturating_add(source.weight().time_ns()));
    profile.string_table = builder.strings.into_ordered();
    let mut packer = GzEncoder::new(out, Compression::default());
    packer.write_all(&profile.encode_to_vec())?;
    packer.finish()?;
    Ok(())
}

impl<'a> Builder<'a> {
    fn new(source: &'a Source) -> Result<Self, ExportError> {
        let mut builder = Self {
            source,
            builds: BuildIds::new(&source.profile().contents),
            weight: source.weight(),
            strings: Interned::new("strings"),
            mappings: Interned::new("modules"),
            functions: Interned::new("functions"),
            locations: Interned::new("addresses"),
            samples: HashMap::new(),
            profile: message::Profile::default(),
        };
        // The format requires string number 0 to be empty.
        builder.string("")?;
        // Readers take the first mapping for the main program.
        builder.mapping(KERNEL, true)?;
        let samples = builder.value_type("samples", "count")?;
        let measured = match builder.weight.quantity {
            Quantity::Time => builder.value_type("cpu", "nanoseconds")?,
            Quantity::GuestTime => builder.value_type("guest-time", "nanoseconds")?,
            Quantity::Events(name) => builder.value_type(name, "count")?,
        };
        builder.profile.sample_type = vec![samples, measured];
        builder.profile.period_type = Some(measured);
        builder.profile.period = signed(builder.weight.per_tick);
        Ok(builder)
    }

    fn string(&mut self, text: &str) -> Result<i64, ExportError> {
        Ok(self.strings.number(text.to_owned())?.0.into())
    }

    fn value_type(&mut self, name: &str, unit: &str) -> Result<message::ValueType, ExportError> {
        Ok(message::ValueType {
            r#type: self.string(name)?,
            unit: self.string(unit)?,
        })
    }

    fn add(&mut self, event: &Event) -> Result<(), ExportError> {
        let key = SampleKey {
            pid: event.pid,
            tid: event.tid,
            vcpu: event.vcpu,
            mode: event.mode,
            comm: event.comm.clone(),
            stack: event.stack.clone(),
        };
        let index = match self.samples.get(&key) {
            Some(index) => *index,
            None => {
                let sample = self.new_sample(event)?;
                self.profile.sample.push(sample);
                let index = self.profile.sample.len() - 1;
                self.samples.insert(key, index);
                index
            }
        };
        let values = &mut self.profile.sample[index].value;
        let ticks = values[0].saturating_add(signed(event.ticks));
        *values = vec![ticks, signed(self.weight.of(ticks.unsigned_abs()))];
        Ok(())
    }

    fn new_sample(&mut self, event: &Event) -> Result<message::Sample, ExportError> {
        let mut sample = message::Sample {
            value: vec![0, 0],
            ..message::Sample::default()
        };
        let frames = self.source.frames_to_keep(event)?;
        // Inlined functions have the same address as the function that contains them.
        for frames in frames.chunk_by(|frame, _| frame.is_inlined) {
            sample.location_id.push(self.location(frames)?);
        }
        // Numbers are written as text: readers ignore a numeric label of 0.
        let labels = [
            ("pid", event.pid.to_string()),
            ("tid", event.tid.to_string()),
            ("vcpu", event.vcpu.to_string()),
            ("comm", event.comm.clone()),
            ("mode", event.mode.name().to_owned()),
        ];
        for (key, text) in labels {
            let (key, str) = (self.string(key)?, self.string(&text)?);
            sample.label.push(message::Label { key, str });
        }
        Ok(sample)
    }

    /// The number of the location of all `frames`, from 1.
    fn location(&mut self, frames: &[Frame<'_>]) -> Result<u64, ExportError> {
        let Some(outermost) = frames.last() else {
            return Ok(0);
        };
        let mapping_id = self.mapping(&outermost.module, outermost.is_kernel)?;
        self.note_sources(mapping_id, frames);
        let mut lines = Vec::new();
        for frame in frames {
            let (file, line) = match &frame.source {
                Some((file, line)) => (file.as_ref(), i64::from(*line)),
                None => (frame.module.as_ref(), 0),
            };
            lines.push((self.function(&frame.name, file)?, line));
        }
        let address = outermost.address;
        let key = (mapping_id, address, lines.clone());
        let (number, is_new) = self.locations.number(key)?;
        let id = u64::from(number) + 1;
        if is_new {
            let lines = lines.into_iter();
            let line = lines.map(|(function_id, line)| message::Line { function_id, line });
            self.profile.location.push(message::Location {
                id,
                mapping_id,
                address,
                line: line.collect(),
            });
        }
        Ok(id)
    }

    /// Marks a mapping as one with the source lines and inlined functions of `frames`.
    fn note_sources(&mut self, mapping_id: u64, frames: &[Frame<'_>]) {
        let index = usize::try_from(mapping_id - 1).unwrap_or(usize::MAX);
        let Some(mapping) = self.profile.mapping.get_mut(index) else {
            return;
        };
        let mut sources = frames.iter().filter_map(|frame| frame.source.as_ref());
        mapping.has_line_numbers |= sources.clone().any(|(_, line)| *line > 0);
        mapping.has_filenames |= sources.next().is_some();
        mapping.has_inline_frames |= frames.len() > 1;
    }

    /// The number of a module, from 1. Modules have different addresses in different processes, so user code gets half
    /// of all addresses.
    fn mapping(&mut self, module: &str, is_kernel: bool) -> Result<u64, ExportError> {
        let (number, is_new) = self.mappings.number((module.to_owned(), is_kernel))?;
        let id = u64::from(number) + 1;
        if is_new {
            let contents = &self.source.profile().contents;
            let filename = match (is_kernel, module) {
                (true, KERNEL) => format!("{} (guest kernel)", contents.info.kernel),
                (_, USER) => "guest user".to_owned(),
                _ => module.to_owned(),
            };
            let build_id = self.builds.only(module).unwrap_or_default().to_owned();
            let (memory_start, memory_limit) = if is_kernel {
                (KERNEL_HALF, u64::MAX)
            } else {
                (0, KERNEL_HALF)
            };
            let mapping = message::Mapping {
                id,
                memory_start,
                memory_limit,
                filename: self.string(&filename)?,
                build_id: self.string(&build_id)?,
                // No other tool can add functions. Files and lines are marked when a frame has them.
                has_functions: true,
                ..message::Mapping::default()
            };
            self.profile.mapping.push(mapping);
        }
        Ok(id)
    }

    /// The number of a function, from 1.
    fn function(&mut self, name: &str, file: &str) -> Result<u64, ExportError> {
        let (text, filename) = (self.string(name)?, self.string(file)?);
        let key = (name.to_owned(), file.to_owned());
        let (number, is_new) = self.functions.number(key)?;
        let id = u64::from(number) + 1;
        if is_new {
            self.profile.function.push(message::Function {
                id,
                name: text,
                system_name: text,
                filename,
            });
        }
        Ok(id)
    }
}

/// `number` in the type of the format, saturated.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
