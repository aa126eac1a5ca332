//! The tables of a thread as JSON.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::json;

use super::Process;
use super::thread::{Sample, Tables};

/// A library as a thread's resource (`ResourceType` of the profiler's data structures).
const LIBRARY: u32 = 1;
/// The phase of a marker with a begin and an end (`MarkerPhase`).
const INTERVAL: u32 = 1;

/// A thread of the document.
pub struct Thread<'a> {
    pub process: &'a Process,
    pub thread: &'a super::Thread,
}

/// One column of a table: of each row what the function tells.
struct Column<'a, T, U>(&'a [T], fn(&T) -> U);

/// The tables, each a map with its columns.
struct Frames<'a>(&'a Tables);
struct Functions<'a>(&'a Tables);
struct Resources<'a>(&'a Tables);
struct Symbols<'a>(&'a Tables);
struct Stacks<'a>(&'a Tables);
struct Samples<'a>(&'a Tables);
struct Markers<'a>(&'a Tables);
struct MarkerData<'a>(&'a Tables);
/// The times between samples, in ms.
struct Deltas<'a>(&'a [Sample]);

impl<T, U: Serialize> Serialize for Column<'_, T, U> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

impl Serialize for Deltas<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut before = 0;
        serializer.collect_seq(self.0.iter().map(|sample| {
            let passed = sample.time - before;
            before = sample.time;
            milliseconds(passed)
        }))
    }
}

/// ns in ms, as the format has times.
pub fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1_000_000.0
}

/// A column that can't be null has -1 for none.
fn or_none(number: Option<u32>) -> i64 {
    number.map_or(-1, i64::from)
}

impl Serialize for Frames<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.0.frames.values();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("length", &rows.len())?;
        map.serialize_entry("address", &Column(rows, |row| or_none(row.address)))?;
        map.serialize_entry("inlineDepth", &Column(rows, |row| row.depth))?;
        map.serialize_entry("category", &Column(rows, |row| row.category))?;
        map.serialize_entry("subcategory", &Column(rows, |_| 0))?;
        map.serialize_entry("func", &Column(rows, |row| row.function))?;
        map.serialize_entry("nativeSymbol", &Column(rows, |row| row.symbol))?;
        map.serialize_entry("innerWindowID", &Column(rows, |_| 0))?;
        map.serialize_entry("line", &Column(rows, |row| row.line))?;
        map.serialize_entry("column", &Column(rows, |_| ()))?;
        map.end()
    }
}

impl Serialize for Functions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.0.functions.values();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("length", &rows.len())?;
        map.serialize_entry("name", &Column(rows, |row| row.name))?;
        map.serialize_entry("isJS", &Column(rows, |_| false))?;
        map.serialize_entry("relevantForJS", &Column(rows, |_| false))?;
        map.serialize_entry("resource", &Column(rows, |row| or_none(row.resource)))?;
        map.serialize_entry("fileName", &Column(rows, |row| row.file))?;
        map.serialize_entry("lineNumber", &Column(rows, |_| ()))?;
        map.serialize_entry("columnNumber", &Column(rows, |_| ()))?;
        map.end()
    }
}

impl Serialize for Resources<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.0.resources.values();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("length", &rows.len())?;
        map.serialize_entry("lib", &Column(rows, |(library, _)| *library))?;
        map.serialize_entry("name", &Column(rows, |(_, name)| *name))?;
        map.serialize_entry("host", &Column(rows, |_| ()))?;
        map.serialize_entry("type", &Column(rows, |_| LIBRARY))?;
        map.end()
    }
}

impl Serialize for Symbols<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.0.symbols.values();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("length", &rows.len())?;
        map.serialize_entry("address", &Column(rows, |row| row.address))?;
        map.serialize_entry("functionSize", &Column(rows, |_| ()))?;
        map.serialize_entry("libIndex", &Column(rows, |row| row.library))?;
        map.serialize_entry("name", &Column(rows, |row| row.name))?;
        map.end()
    }
}

impl Serialize for Stacks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.0.stacks.values();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("length", &rows.len())?;
        map.serialize_entry("prefix", &Column(rows, |(below, _)| *below))?;
        map.serialize_entry("frame", &Column(rows, |(_, frame)| *frame))?;
        map.end()
    }
}

impl Serialize for Samples<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.0.samples.as_slice();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("length", &rows.len())?;
        map.serialize_entry("weightType", "samples")?;
        map.serialize_entry("stack", &Column(rows, |row| row.stack))?;
        map.serialize_entry("timeDeltas", &Deltas(rows))?;
        map.serialize_entry("weight", &Column(rows, |row| row.ticks))?;
        map.serialize_entry("threadCPUDelta", &Column(&self.0.busy, |busy| busy / 1000))?;
        map.end()
    }
}

impl Serialize for Markers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.0.stays.as_slice();
        let names = vec![self.0.marker; rows.len()];
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("length", &rows.len())?;
        map.serialize_entry("category", &Column(rows, |_| 0))?;
        map.serialize_entry("data", &MarkerData(self.0))?;
        let begins = Column(rows, |(stay, _)| milliseconds(stay.first));
        map.serialize_entry("startTime", &begins)?;
        let ends = Column(rows, |(stay, _)| milliseconds(stay.last));
        map.serialize_entry("endTime", &ends)?;
        map.serialize_entry("name", &names)?;
        map.serialize_entry("phase", &Column(rows, |_| INTERVAL))?;
        map.end()
    }
}

impl Serialize for MarkerData<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let texts = self.0.stays.iter().map(|(_, text)| text);
        serializer.collect_seq(texts.map(|text| json!({ "type": super::MARKER, "vcpu": text })))
    }
}

impl Serialize for Thread<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { process, thread } = self;
        let tables = &thread.tables;
        let name = match thread.is_main {
            true => &process.name,
            false => &thread.name,
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("frameTable", &Frames(tables))?;
        map.serialize_entry("funcTable", &Functions(tables))?;
        map.serialize_entry("markers", &Markers(tables))?;
        map.serialize_entry("name", name)?;
        map.serialize_entry("isMainThread", &thread.is_main)?;
        map.serialize_entry("nativeSymbols", &Symbols(tables))?;
        map.serialize_entry("pausedRanges", &[(); 0])?;
        map.serialize_entry("pid", &process.pid.to_string())?;
        map.serialize_entry("processName", &process.name)?;
        map.serialize_entry("processShutdownTime", &())?;
        map.serialize_entry("processStartupTime", &milliseconds(process.began))?;
        map.serialize_entry("processType", "default")?;
        map.serialize_entry("registerTime", &milliseconds(thread.began))?;
        map.serialize_entry("resourceTable", &Resources(tables))?;
        map.serialize_entry("samples", &Samples(tables))?;
        map.serialize_entry("stackTable", &Stacks(tables))?;
        map.serialize_entry("stringArray", tables.strings.values())?;
        map.serialize_entry("tid", &thread.tid)?;
        map.serialize_entry("unregisterTime", &())?;
        map.serialize_entry("showMarkersInTimeline", &false)?;
        map.end()
    }
}
