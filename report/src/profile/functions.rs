//! Samples by function.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::{Profile, StackFrame};
use crate::symbolize::SourceLine;

/// The function of halted vCPUs.
pub const HALTED: &str = "[halted]";
/// The module of halted vCPUs.
pub const HALTED_MODULE: &str = "[idle]";

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
    fn by(&self, sort: SortBy) -> (u64, u64) {
        match sort {
            SortBy::Own => (self.own, self.total),
            SortBy::Total => (self.total, self.own),
        }
    }
}

/// The functions of `profile`, by `sort`.
pub fn functions(profile: &Profile, sort: SortBy) -> Vec<Function> {
    let halted = (HALTED.into(), HALTED_MODULE.into(), true);
    let rows = sum(profile, sort, Some(halted), |_, frame| {
        let function = Arc::clone(&frame.frame.function);
        Some((function, Arc::clone(&frame.frame.module), frame.is_kernel))
    });
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
    sum(profile, sort, Some(HALTED_MODULE.into()), |_, frame| {
        Some(Arc::clone(&frame.frame.module))
    })
}

/// The source lines of `profile`, by `sort`; none without debug information.
pub fn lines(profile: &Profile, sort: SortBy) -> Vec<Row<SourceLine>> {
    sum(profile, sort, None, |_, frame| frame.frame.source.clone())
}

/// Groups the samples of all recordings by the `key` of a process's frames. `halted` is the key of halted vCPUs.
pub fn sum<Key: Clone + Ord + Hash>(
    profile: &Profile,
    sort: SortBy,
    halted: Option<Key>,
    key: impl Fn(i32, &StackFrame) -> Option<Key>,
) -> Vec<Row<Key>> {
    let mut rows: HashMap<Key, (u64, u64)> = HashMap::new();
    let mut seen = HashSet::new();
    for recording in profile.recordings() {
        for ((pid, stack), count) in &recording.stacks {
            seen.clear();
            for (index, frame) in recording.frames(*pid, stack).iter().enumerate() {
                let Some(key) = key(*pid, frame) else {
                    continue;
                };
                let is_first = seen.insert(key.clone());
                if index == 0 || is_first {
                    let (own, total) = rows.entry(key).or_default();
                    *own += if index == 0 { count } else { &0 };
                    *total += if is_first { count } else { &0 };
                }
            }
        }
    }
    let idle = profile.recordings().map(|recording| recording.idle);
    let idle = idle.fold(0, u64::saturating_add);
    if let Some(key) = halted
        && idle > 0
    {
        let (own, total) = rows.entry(key).or_default();
        *own = own.saturating_add(idle);
        *total = total.saturating_add(idle);
    }
    let rows = rows.into_iter();
    let mut rows: Vec<Row<Key>> = rows
        .map(|(key, (own, total))| Row { key, own, total })
        .collect();
    rows.sort_by(|left, right| {
        let order = right.by(sort).cmp(&left.by(sort));
        order.then_with(|| left.key.cmp(&right.key))
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::super::collect::testing::profile;
    use super::*;

    #[test]
    fn own_and_total_samples_differ_by_the_stacks() {
        let rows = |sort| -> Vec<(String, u64, u64)> {
            functions(&profile(&[]), sort)
                .into_iter()
                .map(|function| (function.name, function.own, function.total))
                .collect()
        };
        let row = |name: &str, own, total| (name.to_owned(), own, total);
        assert_eq!(
            rows(SortBy::Own),
            [
                row("[halted]", 2, 2),
                row("copy", 2, 2),
                row("entry", 1, 3),
                row("0x40", 1, 1),
                row("0x50", 0, 2),
            ]
        );
        assert_eq!(rows(SortBy::Total)[0], row("entry", 1, 3));
    }

    #[test]
    fn modules_have_the_samples_of_their_functions() {
        let rows: Vec<(String, u64, u64)> = modules(&profile(&[]), SortBy::Own)
            .into_iter()
            .map(|row| (row.key.as_ref().to_owned(), row.own, row.total))
            .collect();
        let row = |name: &str, own, total| (name.to_owned(), own, total);
        assert_eq!(
            rows,
            [
                row("[fs]", 2, 2),
                row("[idle]", 2, 2),
                row("[kernel]", 1, 3),
                row("[user]", 1, 3),
            ]
        );
        assert!(lines(&profile(&[]), SortBy::Own).is_empty());
    }
}
