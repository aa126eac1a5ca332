//! The Firefox Profiler's processed profile format, as of version 55
//! (<https://github.com/firefox-devtools/profiler/blob/main/docs-developer/CHANGELOG-formats.md>; the tables are described in
//! `src/types/profile.ts` of the profiler's sources). The whole profile is kept in memory, some 30 bytes a sample.
//!
//! Processes and threads are the guest's. A sample's category, and so its colour, is its mode. A marker shows each stay
//! of a thread on a vCPU, from its first sample there to the last. Halted vCPUs are threads of process 0. Files, the kernel and its
//! modules are libraries, with the names of sampled functions. If an event takes the samples, the title says so, and there is no
//! CPU usage, which isn't known then.

mod document;
mod libraries;
mod thread;

use std::collections::HashMap;
use std::io::{self, Write};

use kvmprof_recording::Mode;
use kvmprof_recording::file::RecordingInfo;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Event, EventThread, ExportError, Source};
use crate::budget::BudgetWriter;
use crate::model::{Frame, ModuleId, Table};
use crate::text::visible;
use document::{Thread as ThreadDocument, milliseconds};
pub use libraries::{Library, hexadecimal};
use thread::{NewFrame, Stay, Tables};

/// The interval of samples by events, in ns: the format requires one.
const NO_INTERVAL: u64 = 1_000_000;
/// The type of the markers, and their name.
const MARKER: &str = "vCPU";

/// The details of code in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Inlined functions and source lines, if known.
    Whole,
    /// Only what the recording has: a symbol server answers questions about the rest.
    OnDemand,
}

/// A thread's identity: pid, tid, and the vCPU if pid and tid don't distinguish threads.
type ThreadKey = (i32, i32, Option<u16>);

/// A thread. Times are in ns since the recording's start.
struct Thread {
    /// The number of its process.
    process: usize,
    name: String,
    tid: String,
    is_main: bool,
    began: u64,
    tables: Tables,
    stacks: HashMap<Option<u32>, Option<u32>>,
    stay: Stay,
}

struct Process {
    pid: u32,
    name: String,
    began: u64,
}

struct Builder<'a> {
    source: &'a Source,
    detail: Detail,
    libraries: Table<ModuleId>,
    processes: Vec<Process>,
    numbers: HashMap<i32, usize>,
    /// The number of threads with each tid.
    tids: HashMap<u32, u32>,
    threads: HashMap<ThreadKey, Thread>,
}

/// The whole profile.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    meta: Value,
    libs: Vec<Value>,
    threads: Vec<ThreadDocument<'a>>,
    pages: [(); 0],
    profiler_overhead: [(); 0],
    counters: [(); 0],
}

/// Writes `source` to `out`.
pub fn write(source: &Source, detail: Detail, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut builder = Builder::new(source, detail);
    source.for_each(|event| builder.add(event))?;
    builder.write(out)
}

/// Writes `source` to `out` for a profiler that asks a [`SymbolServer`](crate::symbol_server::SymbolServer) for inlined functions
/// and source lines.
///
/// # Errors
/// As [`Format::write`](super::Format::write).
pub fn write_on_demand(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let budget = source.budget();
    write(source, Detail::OnDemand, &mut BudgetWriter { out, budget })
}

impl<'a> Builder<'a> {
    fn new(source: &'a Source, detail: Detail) -> Self {
        Self {
            source,
            detail,
            libraries: Table::default(),
            processes: Vec::new(),
            numbers: HashMap::new(),
            tids: HashMap::new(),
            threads: HashMap::new(),
        }
    }

    fn add(&mut self, event: &Event) -> Result<(), ExportError> {
        let began = self.source.profile().contents.info.began_monotonic_ns;
        let time = event.time.saturating_sub(began);
        let of = self.source.thread(event);
        let on_vcpu = (of.pid <= 0).then_some(event.vcpu);
        let key = (of.pid, of.tid, on_vcpu);
        let mut thread = match self.threads.remove(&key) {
            Some(thread) => thread,
            None => self.new_thread(event, time),
        };
        // A thread has its last name, as in the guest.
        if thread.name != of.comm {
            thread.name.clone_from(&of.comm);
        }
        if thread.stay.vcpu != event.vcpu {
            thread.tables.stay(thread.stay);
            thread.stay = Stay {
                vcpu: event.vcpu,
                first: time,
                last: time,
            };
        }
        // Events of different vCPUs are only roughly in order.
        thread.stay.last = thread.stay.last.max(time);
        let stack = match thread.stacks.get(&event.stack) {
            Some(stack) => *stack,
            None => {
                let stack = self.stack(event, &mut thread.tables)?;
                thread.stacks.insert(event.stack, stack);
                stack
            }
        };
        let is_busy = event.mode != Mode::Idle;
        (thread.tables).sample(time, stack, event.ticks, is_busy);
        self.threads.insert(key, thread);
        Ok(())
    }

    fn new_thread(&mut self, event: &Event, time: u64) -> Thread {
        let of = self.source.thread(event);
        let process = match self.numbers.get(&of.pid) {
            Some(process) => *process,
            None => self.new_process(of, time),
        };
        let tid = of.tid.cast_unsigned();
        let count = self.tids.entry(tid).or_default();
        // The profiler tells threads apart by their tids.
        let unique = match *count {
            0 => tid.to_string(),
            earlier => format!("{tid}.{earlier}"),
        };
        *count += 1;
        Thread {
            process,
            name: of.comm.clone(),
            tid: unique,
            is_main: of.tid == of.pid,
            began: time,
            tables: Tables::default(),
            stacks: HashMap::new(),
            stay: Stay {
                vcpu: event.vcpu,
                first: time,
                last: time,
            },
        }
    }

    fn new_process(&mut self, of: &EventThread, time: u64) -> usize {
        let known = self.source.profile().processes.get(&of.pid);
        let name = match known.map(|process| process.name.as_str()) {
            Some(name) if !name.is_empty() => name,
            _ => &of.comm,
        };
        self.processes.push(Process {
            pid: of.pid.cast_unsigned(),
            name: name.to_owned(),
            began: time,
        });
        let number = self.processes.len() - 1;
        self.numbers.insert(of.pid, number);
        number
    }

    /// The number of the stack of `event`, whose innermost frame has the category of the mode.
    fn stack(&mut self, event: &Event, tables: &mut Tables) -> Result<Option<u32>, ExportError> {
        let source = self.source;
        let frames = source.frames_to_keep(event)?;
        let innermost = match self.detail {
            Detail::Whole => Some(0),
            Detail::OnDemand => frames.iter().position(|frame| !frame.is_inlined),
        };
        let mut stack = None;
        let mut depth = 0;
        for (index, frame) in frames.iter().enumerate().rev() {
            depth = if frame.is_inlined { depth + 1 } else { 0 };
            if frame.is_inlined && self.detail == Detail::OnDemand {
                continue;
            }
            let library = Library::at(frame);
            let library = library
                .map(|(library, address)| (self.libraries.number(library.0.id), library, address));
            // The function that contains the code: for an inlined function, the one that it is inlined into.
            let outer = frames[index..].iter().find(|outer| !outer.is_inlined);
            let symbol = outer.zip(library).and_then(|(outer, (_, _, address))| {
                let offset = u32::try_from(outer.offset?).ok()?;
                Some((address.checked_sub(offset)?, &**outer.name))
            });
            let source = frame.source.filter(|_| self.detail == Detail::Whole);
            let new = NewFrame {
                name: frame.name,
                library: library.map(|(number, library, _)| (number, library.name())),
                address: library.map(|(_, _, address)| address),
                symbol,
                source: source.map(|(file, line)| (&**file, line)),
                depth,
                category: category(frame, event.mode, innermost == Some(index)),
            };
            stack = Some(tables.stack(stack, new));
        }
        Ok(stack)
    }

    fn write(self, out: &mut dyn Write) -> Result<(), ExportError> {
        let tick = self.source.weight().time_ns();
        let processes = &self.processes;
        let mut threads: Vec<Thread> = self.threads.into_values().collect();
        threads.sort_by(|left, right| {
            let key = |thread: &'_ Thread| {
                let process = &processes[thread.process];
                let pid = process.pid;
                (process.began, pid, !thread.is_main, thread.began)
            };
            let names = |thread: &Thread| (thread.name.clone(), thread.tid.clone());
            (key(left).cmp(&key(right))).then_with(|| names(left).cmp(&names(right)))
        });
        for thread in &mut threads {
            thread.tables.stay(thread.stay);
            thread.tables.finish(tick);
        }
        let threads = threads.iter().map(|thread| ThreadDocument {
            process: &processes[thread.process],
            thread,
        });
        let code = &self.source.profile().code;
        let libraries = self.libraries.values().iter();
        let libraries = libraries.map(|id| Library(code.module(*id)).document());
        let document = Document {
            meta: meta(self.source, self.detail),
            libs: libraries.collect(),
            threads: threads.collect(),
            pages: [],
            profiler_overhead: [],
            counters: [],
        };
        serde_json::to_writer(out, &document).map_err(|error| io::Error::from(error).into())
    }
}

/// The number of a frame's category in the list of [`meta`].
fn category(frame: &Frame<'_>, mode: Mode, is_innermost: bool) -> u32 {
    match (is_innermost, mode) {
        (true, Mode::Interrupt) => 3,
        (true, Mode::Idle) => 4,
        _ if frame.is_kernel => 2,
        _ => 1,
    }
}

/// The profile's properties.
fn meta(source: &Source, detail: Detail) -> Value {
    let info = &source.profile().contents.info;
    let category =
        |name, color| json!({ "name": name, "color": color, "subcategories": ["Other"] });
    let interval = match source.weight().time_ns() {
        0 => NO_INTERVAL,
        time => time,
    };
    json!({
        "categories": [
            category("Other", "grey"),
            category("User", "yellow"),
            category("Kernel", "orange"),
            category("Interrupt", "red"),
            category("Idle", "transparent"),
        ],
        "debug": false,
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "interval": milliseconds(interval),
        "oscpu": system(source),
        "markerSchema": [{
            "name": MARKER,
            "display": ["marker-chart", "marker-table"],
            "chartLabel": "{marker.data.vcpu}",
            "tableLabel": "{marker.data.vcpu}",
            "fields": [{ "key": "vcpu", "label": "vCPU", "format": "unique-string", "searchable": true }],
        }],
        "pausedRanges": [],
        "preprocessedProfileVersion": 55,
        "processType": 0,
        "product": title(info),
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "sourceCodeIsNotOnSearchfox": true,
        "startTime": milliseconds(info.began_ns),
        // Otherwise a symbol server is asked.
        "symbolicated": detail == Detail::Whole,
        "usesOnlyOneStackType": true,
        "version": 24,
    })
}

/// The guest's system and processor. Only of Linux the recording says that it is the system.
fn system(source: &Source) -> String {
    match &source.profile().contents.kernel {
        Some(kernel) => format!("Linux {} x86_64", visible(&kernel.release)),
        None => "x86_64".to_owned(),
    }
}

fn title(info: &RecordingInfo) -> String {
    let title = format!("{}, seen from the hypervisor", info.kernel);
    match info.event {
        None => title,
        Some(event) => format!("{title}, samples: {}", event.describe()),
    }
}
