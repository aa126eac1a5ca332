//! What a guest's tasks do in the looks of a recording: which run, which could run, and what the others wait for.
//!
//! Counts are of looks: a task that is seen in ten looks counts ten times.

mod document;
mod sums;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use kvmprof_recording::tasks::TaskState;

use crate::budget::{OutputBudget, TooMuch};
use crate::graph::{CUT, GROUP, MARKS};
use crate::profile::{KERNEL_MARK, plain};
use crate::symbolize::{self, CodeAddress, Resolver};

pub use document::document;
pub use sums::{FreeWait, LookRun, TaskSums, Thread, VcpuQueue, Wait, WaitKey, WaitStack};
pub use table::print;

/// Waits of one state in one function, of all tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRow {
    /// The state.
    pub state: TaskState,
    /// The function that waits, and its callers, innermost first; empty if the stack isn't known.
    pub functions: Rc<[Arc<str>]>,
    /// How often a task was seen there.
    pub seen: u64,
    /// How many different tasks were.
    pub tasks: usize,
    /// For how long one of them hadn't run at least, in ns of the host.
    pub longest: u64,
    /// The task that was seen there most often.
    pub most: Thread,
}

/// The frames of a stack, innermost first, from the function that waits on: of each address the functions that are inlined into each other.
pub(crate) fn frames(
    resolver: &Resolver,
    stack: &WaitStack,
) -> impl DoubleEndedIterator<Item = Rc<[symbolize::Frame]>> {
    let addresses = stack.frames.iter().skip(stack.scheduler);
    addresses.map(|address| resolver.resolve(CodeAddress::in_kernel(*address)).frames)
}

/// The functions of a wait, innermost first, from the one that waits on.
fn functions(resolver: &Resolver, key: &WaitKey) -> Rc<[Arc<str>]> {
    let mut names = Vec::new();
    for inlined in frames(resolver, &key.stack) {
        names.extend(inlined.iter().map(|frame| Arc::clone(&frame.function)));
    }
    names.into()
}

/// The waits of `sums` by state and innermost function, the most often seen first. Tasks that are on a vCPU don't wait.
pub fn wait_rows(sums: &TaskSums, resolver: &Resolver) -> Vec<WaitRow> {
    type RowKey = (TaskState, Option<Arc<str>>);
    let mut rows: HashMap<RowKey, (WaitRow, u64, HashSet<Thread>)> = HashMap::new();
    // A recording may have as many stacks as it likes, of functions with names as long as it likes: names are shared.
    let mut names: HashMap<*const sums::WaitStack, Rc<[Arc<str>]>> = HashMap::new();
    for (key, wait) in &sums.waits {
        // Many tasks have the same stack.
        let known = names.entry(Rc::as_ptr(&key.stack));
        let functions = Rc::clone(known.or_insert_with(|| functions(resolver, key)));
        let first = functions.first().cloned();
        let row = rows.entry((key.state, first)).or_insert_with(|| {
            let row = WaitRow {
                state: key.state,
                functions: Rc::clone(&functions),
                seen: 0,
                tasks: 0,
                longest: 0,
                most: key.thread,
            };
            (row, 0, HashSet::new())
        });
        let (row, most, tasks) = row;
        row.seen += wait.seen;
        // One may have waited there in several stacks.
        row.tasks += usize::from(tasks.insert(key.thread));
        row.longest = row.longest.max(wait.longest);
        let is_more =
            (wait.seen, std::cmp::Reverse(key.thread)) > (*most, std::cmp::Reverse(row.most));
        if is_more {
            (row.most, *most, row.functions) = (key.thread, wait.seen, functions);
        }
    }
    let mut rows: Vec<WaitRow> = rows.into_values().map(|(row, ..)| row).collect();
    rows.sort_by(|a, b| {
        let by_seen = b.seen.cmp(&a.seen).then_with(|| a.state.cmp(&b.state));
        by_seen.then_with(|| a.functions.cmp(&b.functions))
    });
    rows
}

/// Folded stacks of the waits for [`Graph::draw`](crate::graph::Graph::draw): process, state, and the functions from the outermost in, with the number of
/// times that a task was seen there. Threads of the kernel that wait for work are left out.
///
/// # Errors
/// They, or the picture, don't fit into `budget`.
pub fn folded(
    sums: &TaskSums,
    resolver: &Resolver,
    budget: &OutputBudget,
) -> Result<Vec<String>, TooMuch> {
    let waits = || {
        let all = sums.waits.iter();
        all.filter(|(key, _)| key.state != TaskState::Idle)
    };
    // A function is one frame, also where it begins stacks that were cut short and whole ones.
    let mut torn: BTreeSet<(Thread, TaskState, Arc<str>)> = BTreeSet::new();
    let outermost = |key: &WaitKey| {
        Some((
            key.thread,
            key.state,
            Arc::clone(functions(resolver, key).last()?),
        ))
    };
    torn.extend(
        waits()
            .filter(|(key, _)| !key.stack.is_whole)
            .filter_map(|(key, _)| outermost(key)),
    );
    let mut lines = BTreeMap::<String, u64>::new();
    for (key, wait) in waits() {
        let name = plain(&sums.name(key.thread)).replace(MARKS, "");
        let mut line = format!("{name}-{};{}{GROUP}", key.thread.pid, state_name(key.state));
        budget.take_frame(&line)?;
        let is_torn = outermost(key).is_some_and(|outermost| torn.contains(&outermost));
        for (number, function) in functions(resolver, key).iter().rev().enumerate() {
            // Before it becomes a part of the line: a name may be as long as the recording's symbols.
            budget.take_frame(function)?;
            line.push(';');
            line.push_str(&plain(function).replace(MARKS, ""));
            if number == 0 && is_torn {
                line.push(CUT);
            }
            line.push_str(KERNEL_MARK);
        }
        *lines.entry(line).or_default() += wait.seen;
    }
    let lines = lines.into_iter();
    Ok(lines
        .map(|(line, count)| format!("{line} {count}"))
        .collect())
}

/// The name of a state.
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
