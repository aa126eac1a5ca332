//! Labels of processes: what the kernel knows of a process beside its mappings, as texts by keys. Recordings have them in a block of their own; whatever shows,
//! filters, groups or exports a recording takes any key. A label more is a row more here.

use std::collections::BTreeMap;

use crate::PhysicalMemory;
use crate::image::types::Types;
use crate::linux::view::KernelView;

/// Where the kernel has a label's value, which is a number of 32 bits.
struct Source {
    key: &'static str,
    /// Structures and their members, from the task on: pointers, and at the end the number.
    path: &'static [(&'static str, &'static str)],
}

/// The labels.
const SOURCES: [Source; 1] = [
    // The user in whose name the task acts, as a number of the first user namespace.
    Source {
        key: "user",
        path: &[("task_struct", "cred"), ("cred", "uid")],
    },
];

/// What tells the values of a process's labels apart from earlier ones; `None` where a value isn't known.
pub type LabelNumbers = [Option<u32>; SOURCES.len()];

/// The offsets on the way to each of the labels, in bytes; none if the kernel has other structures.
#[derive(Debug)]
pub struct LabelLayout(Vec<Vec<u64>>);

impl LabelLayout {
    /// Finds the layout.
    pub fn find(types: &Types<'_>) -> Self {
        let offsets = SOURCES.map(|source| {
            let steps = source.path.iter();
            let offsets = steps.map(|(structure, member)| types.offset_of(structure, member));
            offsets.collect::<Option<Vec<u64>>>().unwrap_or_default()
        });
        Self(offsets.into())
    }

    /// The labels of the process of the task at `task`.
    pub fn numbers<M: PhysicalMemory>(&self, view: &KernelView<'_, M>, task: u64) -> LabelNumbers {
        let mut numbers = LabelNumbers::default();
        for (number, offsets) in numbers.iter_mut().zip(&self.0) {
            *number = read(view, task, offsets);
        }
        numbers
    }
}

fn read<M: PhysicalMemory>(view: &KernelView<'_, M>, task: u64, offsets: &[u64]) -> Option<u32> {
    let (last, pointers) = offsets.split_last()?;
    let mut at = task;
    for offset in pointers {
        at = view.pointer(at, *offset)?;
    }
    view.i32(at.wrapping_add(*last)).map(i32::cast_unsigned)
}

/// The labels with these numbers.
pub fn texts(numbers: &LabelNumbers) -> BTreeMap<String, String> {
    let all = SOURCES.iter().zip(numbers);
    let known = all.filter_map(|(source, number)| Some((source.key, (*number)?)));
    known
        .map(|(key, number)| (key.to_owned(), number.to_string()))
        .collect()
}
