//! Samples by function.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::Profile;
use crate::model::{Frame, HALTED, HALTED_MODULE};
use crate::symbolize::SourceLine;

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SortBy {
    /// Samples with the program counter in the function
    #[default]
    #[value(name = "self")]
    Own,
    /// Samples with the function anywhere on the stack
    Total,
}

/// One function, or an address without a known function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, or its address.
    pub name: String,
    /// `[kernel]`, a module, or a file.
    pub module: String,
    /// Whether it is a kernel function.
    pub is_kernel: bool,
    /// Samples in which the program counter was in it.
    pub own: u64,
    /// Samples in which it was somewhere on the stack, each counted once.
    pub total: u64,
}

/// Samples of a group of frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<Key> {
    /// The group.
    pub key: Key,
    /// Samples in which the program counter was in it.
    pub own: u64,
    /// Samples in which it was somewhere on the stack, each counted once.
    pub total: u64,
}

impl<Key> Row<Key> {
    /// The same samples of the group `key`.
    pub fn with<Other>(&self, key: Other) -> Row<Other> {
        Row {
            key,
            own: self.own,
            total: self.total,
        }
    }

    fn by(&self, sort: SortBy) -> (u64, u64) {
        match sort {
            SortBy::Own => (self.own, self.total),
            SortBy::Total => (self.total, self.own),
        }
    }
}

/// A function's name and module, and whether it is a kernel function.
type FunctionName<'a> = (&'a Arc<str>, &'a Arc<str>, bool);

/// The functions of `profile`, by `sort`.
pub fn functions(profile: &Profile, sort: SortBy) -> Vec<Function> {
    let code = &profile.code;
    let halted: (Arc<str>, Arc<str>) = (HALTED.into(), HALTED_MODULE.into());
    let rows = sum(profile, |_, frame| Some(frame.function));
    let rows = rows.into_iter().map(|row| {
        let function = code.function(row.key);
        row.with((
            code.text(function.name),
            code.text(function.module),
            function.is_kernel,
        ))
    });
    let mut rows: Vec<Row<FunctionName<'_>>> = rows.collect();
    rows.extend(halted_row(profile, (&halted.0, &halted.1, true)));
    by_samples(&mut rows, sort);
    let functions = rows.into_iter();
    functions
        .map(|Row { key, own, total }| Function {
            name: key.0.as_ref().to_owned(),
            module: key.1.as_ref().to_owned(),
            is_kernel: key.2,
            own,
            total,
        })
        .collect()
}

/// The kernel, its modules and the files of `profile`, by `sort`.
pub fn modules(profile: &Profile, sort: SortBy) -> Vec<Row<Arc<str>>> {
    let rows = sum(profile, |_, frame| Some(frame.module_id));
    let rows = rows.into_iter().map(|row| {
        let name = Arc::clone(profile.code.text(row.key));
        row.with(name)
    });
    let mut rows: Vec<Row<Arc<str>>> = rows.collect();
    rows.extend(halted_row(profile, HALTED_MODULE.into()));
    by_samples(&mut rows, sort);
    rows
}

/// The source lines of `profile`, by `sort`; none without debug information.
pub fn lines(profile: &Profile, sort: SortBy) -> Vec<Row<SourceLine>> {
    let rows = sum(profile, |_, frame| frame.line);
    let rows = rows.into_iter().map(|row| {
        let line = row.key;
        let file = Arc::clone(profile.code.text(line.file));
        row.with(SourceLine {
            file,
            line: line.line,
        })
    });
    let mut rows: Vec<Row<SourceLine>> = rows.collect();
    by_samples(&mut rows, sort);
    rows
}

/// The row of halted vCPUs, if there are any.
fn halted_row<Key>(profile: &Profile, key: Key) -> Option<Row<Key>> {
    let idle = profile.recordings().map(|recording| recording.idle);
    let idle = idle.fold(0, u64::saturating_add);
    (idle > 0).then_some(Row {
        key,
        own: idle,
        total: idle,
    })
}

/// Sorts `rows` by `sort`, and those with equal samples by their keys.
pub fn by_samples<Key: Ord>(rows: &mut [Row<Key>], sort: SortBy) {
    rows.sort_by(|left, right| {
        let order = right.by(sort).cmp(&left.by(sort));
        order.then_with(|| left.key.cmp(&right.key))
    });
}

/// Groups the samples of all recordings by the `key` of a process's frames.
pub fn sum<Key: Copy + Eq + Hash>(
    profile: &Profile,
    key: impl Fn(i32, &Frame<'_>) -> Option<Key>,
) -> Vec<Row<Key>> {
    let mut rows: HashMap<Key, (u64, u64), RandomState> = HashMap::default();
    let mut seen = HashSet::<Key, RandomState>::default();
    for recording in profile.recordings() {
        for stack in recording.stacks() {
            seen.clear();
            for (index, frame) in recording.frames(stack).enumerate() {
                let Some(key) = key(stack.pid, &frame) else {
                    continue;
                };
                let is_first = seen.insert(key);
                if index == 0 || is_first {
                    let (own, total) = rows.entry(key).or_default();
                    *own += if index == 0 { stack.ticks } else { 0 };
                    *total += if is_first { stack.ticks } else { 0 };
                }
            }
        }
    }
    let rows = rows.into_iter();
    rows.map(|(key, (own, total))| Row { key, own, total })
        .collect()
}
