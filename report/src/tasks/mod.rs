//! What a guest's tasks do when they are looked at: who runs, who could, and what the others wait for.
//!
//! Counts are of looks: a task that is seen in ten looks counts ten times.

mod document;
mod sums;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use kvmprof_recording::tasks::TaskState;

use crate::profile::{CUT_SHORT, KERNEL_MARK};
use crate::symbolize::{Asked, MappingSet, Resolver};
use crate::text::visible;

pub use document::document;
pub use sums::{TaskSums, Thread, VcpuQueue, Wait, WaitKey};
pub use table::print;

/// Waits of one state in one function, of all tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRow {
    /// The state.
    pub state: TaskState,
    /// The function that waits, and its callers, innermost first; empty if the stack isn't known.
    pub functions: Vec<String>,
    /// How often a task was seen there.
    pub seen: u64,
    /// How many different tasks were.
    pub tasks: usize,
    /// For how long one of them hadn't run at least, in ns of the host.
    pub longest: u64,
    /// The task that was seen there most often.
    pub most: Thread,
}

/// The frames of `wait`, innermost first, from the function that waits on.
fn functions(resolver: &Resolver, key: &WaitKey) -> Vec<String> {
    let frames = key.stack.frames.iter().skip(key.stack.scheduler);
    let mut names = Vec::new();
    for address in frames {
        let resolved = resolver.resolve(Asked {
            pid: key.thread.pid,
            mappings: MappingSet::default(),
            address: *address,
            is_kernel: true,
        });
        let inlined = resolved.frames.iter();
        names.extend(inlined.map(|frame| frame.function.to_string()));
    }
    names
}

/// The waits of `sums` by state and function, most often seen first. Only those of tasks that are on no vCPU.
pub fn wait_rows(sums: &TaskSums, resolver: &Resolver) -> Vec<WaitRow> {
    let mut rows: HashMap<(TaskState, Vec<String>), (WaitRow, u64)> = HashMap::new();
    let mut names: HashMap<*const sums::WaitStack, Vec<String>> = HashMap::new();
    for (key, wait) in &sums.waits {
        // One stack is many tasks'.
        let known = names.entry(Rc::as_ptr(&key.stack));
        let functions = known.or_insert_with(|| functions(resolver, key)).clone();
        let first = functions.first().cloned().into_iter().collect();
        let row = rows.entry((key.state, first)).or_insert_with(|| {
            let row = WaitRow {
                state: key.state,
                functions: functions.clone(),
                seen: 0,
                tasks: 0,
                longest: 0,
                most: key.thread,
            };
            (row, 0)
        });
        let (row, most) = row;
        row.seen += wait.seen;
        row.tasks += 1;
        row.longest = row.longest.max(wait.longest);
        let is_more =
            (wait.seen, std::cmp::Reverse(key.thread)) > (*most, std::cmp::Reverse(row.most));
        if is_more {
            (row.most, *most, row.functions) = (key.thread, wait.seen, functions);
        }
    }
    let mut rows: Vec<WaitRow> = rows.into_values().map(|(row, _)| row).collect();
    rows.sort_by(|a, b| {
        let key = |row: &WaitRow| (row.state, row.functions.clone());
        b.seen.cmp(&a.seen).then_with(|| key(a).cmp(&key(b)))
    });
    rows
}

/// Folded stacks of the waits: process, state, and the functions from the outermost in, with the number of times that a task was
/// seen there. Without those of threads of the kernel that wait for work.
pub fn folded(sums: &TaskSums, resolver: &Resolver) -> Vec<String> {
    let mut lines = BTreeMap::<String, u64>::new();
    for (key, wait) in &sums.waits {
        if key.state == TaskState::Idle {
            continue;
        }
        let name = key.thread.name().replace(';', ":");
        let mut line = format!("{name}-{};{}", key.thread.pid, state_name(key.state));
        if !key.stack.is_whole {
            line.push(';');
            line.push_str(CUT_SHORT);
        }
        for function in functions(resolver, key).iter().rev() {
            line.push(';');
            line.push_str(&function.replace(';', ":"));
            line.push_str(KERNEL_MARK);
        }
        *lines.entry(line).or_default() += wait.seen;
    }
    let lines = lines.into_iter();
    lines
        .map(|(line, count)| format!("{line} {count}"))
        .collect()
}

/// What a state is called.
pub fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Runnable => "runnable",
        TaskState::Sleeping => "sleeping",
        TaskState::Uninterruptible => "uninterruptible",
        TaskState::Stopped => "stopped",
        TaskState::Traced => "traced",
        TaskState::Dead => "dead",
        TaskState::Zombie => "zombie",
        TaskState::Parked => "parked",
        TaskState::Idle => "idle",
    }
}

impl Thread {
    /// Its name, as far as it can be shown.
    pub fn name(&self) -> String {
        let bytes = self.comm.split(|byte| *byte == 0).next();
        visible(&String::from_utf8_lossy(bytes.unwrap_or_default()))
    }
}
