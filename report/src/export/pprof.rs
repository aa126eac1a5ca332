//! pprof's `profile.proto` (<https://github.com/google/pprof/blob/main/proto/profile.proto>), compressed by gzip.
//!
//! Each sample has two values, ticks and ns (or events, where those take the samples), and the labels `pid`, `tid`, `vcpu`, `comm` and `mode`
//! (`go tool pprof -tagfocus=mode=interrupt`, `-tagroot=comm`), and those of its process.

pub mod message;
mod tables;

pub use tables::{PprofTables, signed};

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use kvmprof_recording::Mode;
use prost::Message;

use super::{Event, ExportError, Library, Source};
use crate::model::{Frame, ModuleId, ModuleKind, Range, Table};
use crate::profile::{Quantity, Weight};
use crate::symbolize::KERNEL;
use crate::text::visible;

/// All addresses. Readers take it for a mapping whose addresses are those of the file.
const ALL: Range = Range {
    begin: 0,
    end: u64::MAX,
    offset: 0,
};

/// The code of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code<'a> {
    /// The kernel of a Linux guest, without its modules.
    Kernel,
    /// An executable segment of a file.
    File(ModuleId, Range),
    /// Code of which no file is known: the module, and whether it is the kernel's.
    Other(&'a str, bool),
}

struct Builder<'a> {
    source: &'a Source,
    weight: Weight,
    tables: PprofTables,
    mappings: Table<Code<'a>>,
    /// The thread, the vCPU, the mode and the stack of each sample of the export.
    samples: Table<(u32, u16, Mode, Option<u32>)>,
    /// The locations of stacks, by the stacks' numbers.
    stacks: Vec<Option<Vec<u64>>>,
}

/// Writes `source` to `out`.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut builder = Builder::new(source);
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
    let mut profile = builder.tables.finish();
    let after = begin.saturating_sub(info.began_monotonic_ns);
    profile.time_nanos = signed(info.began_ns.saturating_add(after));
    profile.duration_nanos = signed((end - begin).saturating_add(tick));
    let mut packer = GzEncoder::new(out, Compression::default());
    packer.write_all(&profile.encode_to_vec())?;
    packer.finish()?;
    Ok(())
}

impl<'a> Builder<'a> {
    fn new(source: &'a Source) -> Self {
        let weight = source.weight();
        let (measured, unit) = match weight.quantity {
            Quantity::Time => ("cpu", "nanoseconds"),
            Quantity::GuestTime => ("guest-time", "nanoseconds"),
            Quantity::Events(name) => (name, "count"),
        };
        let mut builder = Self {
            source,
            weight,
            tables: PprofTables::default(),
            mappings: Table::default(),
            samples: Table::default(),
            stacks: vec![None; source.stacks() + 1],
        };
        // Readers take the first mapping for the main program.
        builder.mapping(match source.profile().contents.kernel {
            Some(_) => Code::Kernel,
            None => Code::Other(KERNEL, true),
        });
        builder.tables.measure(measured, unit, weight.per_tick);
        builder
    }

    fn add(&mut self, event: &Event) -> Result<(), ExportError> {
        let key = (event.thread, event.vcpu, event.mode, event.stack);
        let index = match self.samples.find(&key) {
            Some(index) => index,
            None => {
                self.add_sample(event)?;
                self.samples.push(key)
            }
        };
        let values = &mut self.tables.profile.sample[index as usize].value;
        let ticks = values[0].saturating_add(signed(event.ticks));
        *values = vec![ticks, signed(self.weight.of(ticks.unsigned_abs()))];
        Ok(())
    }

    fn add_sample(&mut self, event: &Event) -> Result<(), ExportError> {
        let locations = self.locations_of(event)?;
        let thread = self.source.thread(event);
        // Numbers are written as text: readers ignore a numeric label of 0.
        let [pid, tid, vcpu] = [
            thread.pid.to_string(),
            thread.tid.to_string(),
            event.vcpu.to_string(),
        ];
        let labels = [
            ("pid", pid.as_str()),
            ("tid", &tid),
            ("vcpu", &vcpu),
            ("comm", &thread.comm),
            ("mode", event.mode.name()),
        ];
        let labels = labels.into_iter().chain(self.source.labels(event));
        self.tables.sample(locations, [0, 0], labels);
        Ok(())
    }

    /// The numbers of the locations of the stack of `event`.
    fn locations_of(&mut self, event: &Event) -> Result<Vec<u64>, ExportError> {
        let source = self.source;
        let frames = source.frames_to_keep(event)?;
        let number = source.stack_number(event);
        if let Some(known) = &self.stacks[number] {
            return Ok(known.clone());
        }
        // Inlined functions have the same address as the function that contains them.
        let locations = frames.chunk_by(|frame, _| frame.is_inlined);
        let locations: Vec<u64> = locations.map(|frames| self.location(frames)).collect();
        self.stacks[number] = Some(locations.clone());
        Ok(locations)
    }

    /// The number of the location of all `frames`, from 1. A note isn't in any mapping: readers compute a mapping's base by the first address
    /// that they look up in it.
    fn location(&mut self, frames: &[Frame<'a>]) -> u64 {
        let (mapping_id, address) = match frames.last().and_then(|frame| self.place(frame)) {
            Some((code, address)) => (self.mapping(code), address),
            None => (0, 0),
        };
        self.note_sources(mapping_id, frames);
        let lines = frames.iter().map(|frame| {
            let (file, line) = match frame.source {
                Some((file, line)) => (file, i64::from(line)),
                None => (frame.module, 0),
            };
            (self.tables.function(frame.name, file), line)
        });
        let lines = lines.collect();
        self.tables.location(mapping_id, address, lines)
    }

    /// The code of a frame, and its address in it; `None` for a note. A recording has any number of processes, which have a file at different addresses,
    /// while a location has one address for all samples: it is that of the file itself, and the mapping is that of a program that the system has loaded
    /// there. Readers that know the file find its functions by the formula for any mapping.
    fn place(&self, frame: &Frame<'a>) -> Option<(Code<'a>, u64)> {
        let module = (!frame.is_note).then_some(frame.code)?;
        let kernel = self.source.profile().contents.kernel.as_ref();
        let kernel = kernel.filter(|_| frame.offset.is_some() && **frame.module == *KERNEL);
        Some(match (module.kind, kernel) {
            (ModuleKind::File, _) => (Code::File(module.id, frame.segment), frame.file_address),
            (ModuleKind::Kernel, Some(kernel)) => {
                (Code::Kernel, frame.address.wrapping_sub(kernel.slide))
            }
            _ => (Code::Other(frame.module, frame.is_kernel), frame.address),
        })
    }

    /// Marks a mapping as one with the source lines and inlined functions of `frames`.
    fn note_sources(&mut self, mapping_id: u64, frames: &[Frame<'_>]) {
        let index = mapping_id.checked_sub(1).map(usize::try_from);
        let Some(Ok(index)) = index else { return };
        let Some(mapping) = self.tables.profile.mapping.get_mut(index) else {
            return;
        };
        let mut sources = frames.iter().filter_map(|frame| frame.source);
        mapping.has_line_numbers |= sources.clone().any(|(_, line)| line > 0);
        mapping.has_filenames |= sources.next().is_some();
        mapping.has_inline_frames |= frames.len() > 1;
    }

    /// The number of a mapping, from 1.
    fn mapping(&mut self, code: Code<'a>) -> u64 {
        if let Some(known) = self.mappings.find(&code) {
            return u64::from(known) + 1;
        }
        let profile = self.source.profile();
        let contents = &profile.contents;
        let kernel = || format!("{} (guest kernel)", contents.info.kernel);
        let (filename, build_id, range) = match code {
            Code::Kernel => {
                let known = contents.kernel.as_ref();
                let build_id = known.map_or("", |kernel| kernel.build_id.as_str());
                (kernel(), visible(build_id), ALL)
            }
            // Not its path: go tool pprof doesn't compare build ids, and would take this host's file.
            Code::File(id, range) => {
                let library = Library(profile.code.module(id));
                let build_id = library.code_id().unwrap_or_default().to_owned();
                (library.name().to_owned(), build_id, range)
            }
            Code::Other(KERNEL, true) => (kernel(), String::new(), Range::default()),
            Code::Other(module, _) => (module.to_owned(), String::new(), Range::default()),
        };
        self.mappings.push(code);
        self.tables.mapping(&filename, &build_id, range)
    }
}
