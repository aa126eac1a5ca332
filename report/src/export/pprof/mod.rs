//! pprof's `profile.proto` (<https://github.com/google/pprof/blob/main/proto/profile.proto>), compressed by gzip.
//!
//! Each sample has two values, ticks and ns (or events, where those take the samples), and the labels `pid`, `tid`, `vcpu`, `comm` and `mode`
//! (`go tool pprof -tagfocus=mode=interrupt`, `-tagroot=comm`).

mod mappings;
pub mod message;

use std::collections::HashMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use kvmprof_recording::Mode;
use prost::Message;

use super::interned::Interned;
use super::{Event, ExportError, Frame, Source};
use crate::profile::{Quantity, Stack, Weight};
use crate::symbolize::KERNEL;
use crate::text::visible;
use mappings::{ALL, Code, Place, Range, places};

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

/// A function: its name, and its source file or else its module.
type Function = (String, String);
/// A location: mapping, address, and the lines of the functions there, innermost first.
type Location = (u64, u64, Vec<(u64, i64)>);

struct Builder<'a> {
    source: &'a Source,
    weight: Weight,
    strings: Interned<String>,
    mappings: Interned<Code>,
    functions: Interned<Function>,
    locations: Interned<Location>,
    samples: HashMap<SampleKey, usize>,
    profile: message::Profile,
}

/// Writes `source` to `out`.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut builder = Builder::new(source)?;
    let mut times = None;
    let tick = source.weight().time_ns();
    source.for_each(|event| {
        let last = (event.ticks.saturating_sub(1)).saturating_mul(tick);
        let last = event.time.saturating_add(last);
        let (begin, end) = times.get_or_insert((event.time, last));
        *begin = event.time.min(*begin);
        *end = last.max(*end);
        builder.add(event)
    })?;
    let (begin, end) = times.unwrap_or_default();
    let info = &source.profile().contents.info;
    let mut profile = builder.profile;
    let after = begin.saturating_sub(info.began_monotonic_ns);
    profile.time_nanos = signed(info.began_ns.saturating_add(after));
    profile.duration_nanos = signed((end - begin).saturating_add(tick));
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
        builder.mapping(match source.profile().contents.kernel {
            Some(_) => Code::Kernel,
            None => Code::Other(KERNEL.to_owned(), true),
        })?;
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
        let mut places = places(self.source, event).into_iter();
        // Inlined functions have the same address as the function that contains them.
        for frames in frames.chunk_by(|frame, _| frame.is_inlined) {
            let place = places.by_ref().take(frames.len()).last().flatten();
            sample.location_id.push(self.location(frames, place)?);
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

    /// The number of the location of all `frames`, from 1. A note isn't in any mapping: readers compute a mapping's base by the first address
    /// that they look up in it.
    fn location(&mut self, frames: &[Frame<'_>], place: Option<Place>) -> Result<u64, ExportError> {
        let (mapping_id, address) = match place {
            Some(place) => (self.mapping(place.code)?, place.address),
            None => (0, 0),
        };
        self.note_sources(mapping_id, frames);
        let mut lines = Vec::new();
        for frame in frames {
            let (file, line) = match &frame.source {
                Some((file, line)) => (file.as_ref(), i64::from(*line)),
                None => (frame.module.as_ref(), 0),
            };
            lines.push((self.function(&frame.name, file)?, line));
        }
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
        let index = mapping_id.checked_sub(1).map(usize::try_from);
        let Some(Ok(index)) = index else { return };
        let Some(mapping) = self.profile.mapping.get_mut(index) else {
            return;
        };
        let mut sources = frames.iter().filter_map(|frame| frame.source.as_ref());
        mapping.has_line_numbers |= sources.clone().any(|(_, line)| *line > 0);
        mapping.has_filenames |= sources.next().is_some();
        mapping.has_inline_frames |= frames.len() > 1;
    }

    /// The number of a mapping, from 1.
    fn mapping(&mut self, code: Code) -> Result<u64, ExportError> {
        let (number, is_new) = self.mappings.number(code.clone())?;
        let id = u64::from(number) + 1;
        if is_new {
            let contents = &self.source.profile().contents;
            let kernel = || format!("{} (guest kernel)", contents.info.kernel);
            let (filename, build_id, range) = match code {
                Code::Kernel => {
                    let known = contents.kernel.as_ref();
                    let build_id = known.map_or("", |kernel| kernel.build_id.as_str());
                    (kernel(), visible(build_id), ALL)
                }
                // Not its path: go tool pprof doesn't compare build ids, and would take this host's file.
                Code::File(library, range) => {
                    let build_id = library.code_id().unwrap_or_default().to_owned();
                    (library.name, build_id, range)
                }
                Code::Other(module, true) if module == KERNEL => {
                    (kernel(), String::new(), Range::default())
                }
                Code::Other(module, _) => (module, String::new(), Range::default()),
            };
            let mapping = message::Mapping {
                id,
                memory_start: range.begin,
                memory_limit: range.end,
                file_offset: range.offset,
                filename: self.string(&filename)?,
                build_id: self.string(&build_id)?,
                // Files and lines are marked when a frame has them.
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
