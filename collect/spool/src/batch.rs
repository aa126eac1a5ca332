//! The collected data: the windows of all guests in the same interval of time are one batch.
//!
//! A batch is self-contained: it has the names, frames and stacks that its rows refer to, each once.

use std::collections::BTreeMap;

use indexmap::IndexSet;
use kvmprof_recording::Mode;
use kvmprof_recording::file::Account;
use serde::{Deserialize, Serialize};

/// The name that replaces all names beyond a limit.
pub const OTHER: &str = "other";
/// The process and the thread of ticks at which a vCPU was halted.
pub const IDLE: &str = "idle";

/// The windows of all guests that began at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Batch {
    /// The start of the windows, in s since 1970 (CLOCK_REALTIME): a multiple of their length.
    pub start: u64,
    /// The length of the windows, in s.
    pub length: u32,
    /// Identifies the run of the collector that made the windows. A window is identified by its guest, its start and this.
    pub boot: String,
    /// The host's name.
    pub host: String,
    /// Labels from the configuration.
    pub labels: BTreeMap<String, String>,
    /// Names of functions, modules, processes and threads, and build ids.
    pub names: Vec<String>,
    /// The functions in the stacks.
    pub frames: Vec<Frame>,
    /// Call stacks: indexes into `frames`, innermost first.
    pub stacks: Vec<Vec<u32>>,
    /// Labels of processes, by their keys.
    pub label_sets: Vec<BTreeMap<String, String>>,
    /// The windows.
    pub windows: Vec<Window>,
}

/// A function in a call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// The index of its name in [`Batch::names`].
    pub function: u32,
    /// The index of its module's name in [`Batch::names`].
    pub module: u32,
    /// Whether it is a function of the kernel.
    pub is_kernel: bool,
    /// The index of its module's build id in [`Batch::names`], in hexadecimal. `None` if it isn't known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<u32>,
}

/// A function whose names aren't in a batch yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function<T> {
    /// Its name.
    pub name: T,
    /// Its module's name.
    pub module: T,
    /// Its module's build id in hexadecimal; empty if it isn't known.
    pub build_id: T,
    /// Whether it is a function of the kernel.
    pub is_kernel: bool,
}

/// The ticks of one guest in the interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// The guest's name.
    pub guest: String,
    /// The release of its kernel; empty if it isn't known.
    pub kernel: String,
    /// Ticks a second on each vCPU.
    pub hz: u32,
    /// Whether ticks have a random phase. `None` in batches of an earlier release.
    pub jitter: Option<bool>,
    /// The account of its ticks.
    pub account: Account,
    /// Its samples and idle ticks, summed up by process, thread, mode and stack.
    pub rows: Vec<Row>,
}

/// Ticks with the same process, thread, mode and stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The index of the process's name in [`Batch::names`].
    pub process: u32,
    /// The index of the thread's name in [`Batch::names`].
    pub thread: u32,
    /// The number of the mode ([`Mode::ALL`]).
    pub mode: u8,
    /// The index in [`Batch::stacks`]. `None` for idle ticks without a sample, and for samples beyond the limits.
    pub stack: Option<u32>,
    /// Number of ticks.
    pub ticks: u64,
    /// Number of these ticks at which interrupts were off. `None` if that isn't known for the window: the host's kernel has taken the samples, or an
    /// earlier release has made the batch.
    #[serde(default)]
    pub interrupts_off: Option<u64>,
    /// The index in [`Batch::label_sets`]. `None` if the process has no labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<u32>,
}

impl Row {
    /// The mode of the vCPU. Idle if the number is invalid.
    pub fn mode(&self) -> Mode {
        let mode = Mode::ALL.get(usize::from(self.mode));
        mode.copied().unwrap_or(Mode::Idle)
    }

    /// Whether these are ticks of halted vCPUs without a sample.
    pub fn ticks_are_idle(&self) -> bool {
        self.stack.is_none() && self.mode() == Mode::Idle
    }
}

impl Window {
    /// Number of ticks in its rows: samples, and idle ticks without a sample.
    pub fn ticks(&self) -> u64 {
        (self.rows.iter()).fold(0, |sum, row| row.ticks.saturating_add(sum))
    }

    /// The time between two ticks of a vCPU, in ns.
    pub fn period(&self) -> u64 {
        1_000_000_000 / u64::from(self.hz.max(1))
    }
}

impl Batch {
    /// Number of ticks in the rows of all windows.
    pub fn ticks(&self) -> u64 {
        (self.windows.iter()).fold(0, |sum, window| window.ticks().saturating_add(sum))
    }

    /// The function of a frame.
    pub fn function(&self, frame: &Frame) -> Function<&str> {
        Function {
            name: self.name(frame.function),
            module: self.name(frame.module),
            build_id: frame.build_id.map_or("", |place| self.name(place)),
            is_kernel: frame.is_kernel,
        }
    }

    /// The name with this index. Empty if there is none.
    pub fn name(&self, place: u32) -> &str {
        self.names.get(place as usize).map_or("", String::as_str)
    }

    /// The frames of a row's stack, innermost first. Indexes out of range are skipped.
    pub fn frames(&self, row: &Row) -> impl Iterator<Item = (u32, Frame)> {
        let stack = row.stack.and_then(|stack| self.stacks.get(stack as usize));
        let places = stack.into_iter().flatten().copied();
        places.filter_map(|place| Some((place, *self.frames.get(place as usize)?)))
    }

    /// The labels of a row's process.
    pub fn labels(&self, row: &Row) -> impl Iterator<Item = (&str, &str)> {
        let set = row.labels.and_then(|set| self.label_sets.get(set as usize));
        let labels = set.into_iter().flatten();
        labels.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The end of the windows, in s since 1970.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.length.into())
    }
}

/// Builds the tables of a batch.
#[derive(Debug, Default)]
pub struct Tables {
    names: IndexSet<String>,
    frames: IndexSet<Frame>,
    stacks: IndexSet<Vec<u32>>,
    label_sets: IndexSet<BTreeMap<String, String>>,
}

impl Tables {
    /// The index of a name, which is added if it is new.
    pub fn name(&mut self, name: &str) -> u32 {
        if let Some(place) = self.names.get_index_of(name) {
            return number(place);
        }
        number(self.names.insert_full(name.to_owned()).0)
    }

    /// The index of a function, which is added if it is new.
    pub fn frame<T: AsRef<str>>(&mut self, function: &Function<T>) -> u32 {
        let build_id = function.build_id.as_ref();
        let frame = Frame {
            function: self.name(function.name.as_ref()),
            module: self.name(function.module.as_ref()),
            is_kernel: function.is_kernel,
            build_id: (!build_id.is_empty()).then(|| self.name(build_id)),
        };
        number(self.frames.insert_full(frame).0)
    }

    /// The index of a stack, which is added if it is new.
    pub fn stack(&mut self, frames: Vec<u32>) -> u32 {
        number(self.stacks.insert_full(frames).0)
    }

    /// The index of a set of labels, which is added if it is new. `None` for an empty set.
    pub fn labels<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>) -> Option<u32> {
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let labels: BTreeMap<String, String> = labels.collect();
        let is_there = !labels.is_empty();
        is_there.then(|| number(self.label_sets.insert_full(labels).0))
    }

    /// Puts the tables into `batch`.
    pub fn into_batch(self, batch: &mut Batch) {
        batch.names = self.names.into_iter().collect();
        batch.frames = self.frames.into_iter().collect();
        batch.stacks = self.stacks.into_iter().collect();
        batch.label_sets = self.label_sets.into_iter().collect();
    }
}

/// The index of a table's entry as rows have it. The limits of all guests together keep it far below 2^32.
pub fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

#[cfg(any(test, feature = "testing"))]
pub mod testing {
    //! Batches for tests.

    use super::*;

    /// A batch that starts at `start`, of guests with two processes: `ticks` of `work` under `main` in `worker`, and 3 idle ones.
    pub fn batch(start: u64, guests: &[&str], ticks: u64) -> Batch {
        let mut tables = Tables::default();
        let frames = ["work", "main"].map(|name| {
            tables.frame(&Function {
                name,
                module: "prog",
                build_id: "b1d0",
                is_kernel: false,
            })
        });
        let stack = tables.stack(frames.into());
        let (worker, idle) = (tables.name("worker"), tables.name(IDLE));
        let row = |process, mode: Mode, stack, ticks| Row {
            process,
            thread: process,
            mode: mode as u8,
            stack,
            ticks,
            interrupts_off: Some(ticks / 3),
            labels: None,
        };
        let window = |guest: &&str| Window {
            guest: (*guest).to_owned(),
            kernel: "6.12.1".to_owned(),
            hz: 20,
            jitter: Some(true),
            account: Account {
                ticks: ticks + 3,
                samples: ticks,
                idle: 3,
                ..Account::default()
            },
            rows: vec![
                row(worker, Mode::User, Some(stack), ticks),
                row(idle, Mode::Idle, None, 3),
            ],
        };
        let mut batch = Batch {
            start,
            length: 10,
            boot: "b007".to_owned(),
            host: "host-1".to_owned(),
            labels: BTreeMap::from([("zone".to_owned(), "north".to_owned())]),
            windows: guests.iter().map(window).collect(),
            ..Batch::default()
        };
        tables.into_batch(&mut batch);
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::testing::batch;
    use super::*;

    #[test]
    fn rows_refer_to_names() {
        let batch = batch(100, &["a", "b"], 7);
        assert_eq!((batch.ticks(), batch.end()), (20, 110));
        let row = batch.windows[1].rows[0];
        let functions: Vec<&str> = (batch.frames(&row))
            .map(|(_, frame)| batch.name(frame.function))
            .collect();
        assert_eq!(functions, ["work", "main"]);
        assert_eq!(batch.name(row.process), "worker");
        assert_eq!(batch.frames(&batch.windows[0].rows[1]).count(), 0);
    }

    /// A batch of a former release is read.
    #[test]
    fn missing_fields_of_a_batch_are_unknown() {
        let batch = batch(100, &["a"], 7);
        let mut document = serde_json::to_value(&batch).unwrap();
        let window = document["windows"][0].as_object_mut().unwrap();
        assert_eq!(window.remove("jitter"), Some(true.into()));
        for row in window["rows"].as_array_mut().unwrap() {
            assert!(
                row.as_object_mut()
                    .unwrap()
                    .remove("interrupts_off")
                    .is_some()
            );
        }
        let old: Batch = serde_json::from_value(document).unwrap();
        let (old, new) = (&old.windows[0], &batch.windows[0]);
        assert_eq!((old.jitter, old.ticks()), (None, new.ticks()));
        assert!(old.rows.iter().all(|row| row.interrupts_off.is_none()));
    }

    #[test]
    fn invalid_indices_give_no_row() {
        let mut batch = batch(100, &["a"], 7);
        let row = Row {
            mode: 200,
            stack: Some(u32::MAX),
            ..batch.windows[0].rows[0]
        };
        assert_eq!((batch.frames(&row).count(), row.mode()), (0, Mode::Idle));
        batch.frames.clear();
        assert_eq!(batch.frames(&batch.windows[0].rows[0]).count(), 0);
        assert_eq!(batch.name(u32::MAX), "");
    }
}
