//! The data of the page's script.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::calls::Calls;
use super::code;
use super::exits::{self, Exits};
use super::marks;
use super::merged::Merged;
use super::pack::PackedNumbers;
use super::waits::{self, Waits};
use crate::model::counts::{Cell, Counts};
use crate::model::{Table, task_name};
use crate::profile::{Profile, selection_document};
use crate::symbolize::{BuildIds, SourceTexts};
use crate::text::visible;

/// Maximum number of counts; the rarest stacks are counted together if there are more.
const MAX_CELLS: usize = 500_000;

/// The data as JSON. Times are in ns from the recording's start.
///
/// - `begin`, `width`, `bins`: the first bin's begin, the width of all of them and their number; `length`: from the first bin's
///   begin to the last tick;
/// - `times`, `selection`: what the command selected, the first of each recording; if recordings have different times, `begin`
///   is 0 and stands for all their begins;
/// - `restarts`, `pauses`, `execs`: the results of [`marks`];
/// - `comparison`: whether the second recording is compared with the first;
/// - `files`: the recordings' names; none if the only one has none; `naming`: the options by which functions have their names;
/// - `event`: the event that makes the ticks; null for the clock, whose rate is `hz`;
/// - `processes`: their `recording` (its number), `pid` and `name`; `threads`: their `recording`, `pid`, `tid` and `name`. -1 is
///   unknown, null is all that aren't told apart;
/// - `labels`, if there are any: sets of labels of processes, by their keys, and `labelled`, the number of each thread's set;
/// - `modules`: their `name`, and `build`, the build ids of files with that name;
/// - `functions`: `name`, `module` (its number), `kernel` (1 or 0), the lowest address in hexadecimal (`low`), how far above it the highest one is, too, if that is another (`span`),
///   source `lines`;
/// - `code`: the result of [`code::json`], none in a comparison;
/// - `nodes`, packed: their number; then for each node but the root, its number less its parent's, then four times its function, plus 1 if its
///   callers are missing, plus 2 if it is inlined;
/// - `cells`, packed: their number; then by bin, vCPU, mode and thread, for each run of cells in which these are the same: bin (less the one before),
///   vCPU times four plus mode, thread (as a difference), the number of cells, and for each of these its node (less the one before in
///   this run) and ticks; `rare`: the node of rare stacks;
/// - `waits`: the result of [`waits::json`], `exits` that of [`exits::json`], if there are any;
/// - `missed`, packed: bin, vCPU plus 65536 times the recording, idle, stolen, lost, ungathered; `halted`: the threads, by
///   recording, and the node of those that are idle.
pub fn json(
    profile: &Profile,
    counts: Vec<Counts>,
    (waits, exits): (&[Waits], &[Exits]),
    texts: &SourceTexts,
    is_comparison: bool,
) -> String {
    let mut calls = Calls::new(profile, is_comparison);
    let node_of = |recording, stack| calls.of_stack(recording, stack);
    let lengths: Vec<u64> = counts.iter().map(Counts::length_ns).collect();
    let merged = Merged::new(profile, counts, MAX_CELLS, node_of, calls.rare());
    let bins = &merged.bins;
    let waits = waits::json(profile, waits, &mut calls, bins);
    let exits = exits::json(profile, exits, bins);
    let times = profile.recordings().map(|recording| {
        let time = recording.selection.time;
        json!({ "begin": time.begin.map(ns), "end": time.end.map(ns) })
    });
    let times: Vec<Value> = times.collect();
    let is_same_time = times.iter().all(|time| *time == times[0]);
    let begin = profile.selection.time.begin.filter(|_| is_same_time);
    let modules = Modules::new(profile, &calls);
    let mut document = json!({
        "begin": begin.map_or(0, ns),
        "restarts": marks::restarts(profile, is_same_time),
        "pauses": marks::pauses(profile, is_same_time),
        "execs": marks::execs(profile, is_same_time),
        "comparison": is_comparison,
        "width": bins.width(),
        "bins": bins.used(),
        "length": bins.length(),
        "lengths": lengths,
        "times": times,
        "selection": selection_document(&profile.selection),
        "files": files(profile),
        "naming": profile.naming.iter().map(|option| visible(option)).collect::<Vec<_>>(),
        "hz": profile.contents.info.hz,
        "event": profile.contents.info.event.map(|event| event.describe()),
        "processes": processes(profile),
        "threads": threads(&merged),
        "modules": modules.json(),
        "functions": functions(&calls, &modules),
        "code": if is_comparison { json!([]) } else { code::json(profile, &calls, texts) },
        "rare": calls.rare(),
        "halted": { "threads": merged.idle, "node": calls.halted() },
    });
    add_labels(&mut document, profile, &merged);
    if let Some(waits) = waits {
        document["waits"] = waits;
    }
    if let Some(exits) = exits {
        document["exits"] = exits;
    }
    let mut text = document.to_string();
    text.pop();
    for (name, packed) in [
        ("nodes", nodes(&calls)),
        ("cells", packed(&merged.cells)),
        ("missed", missed(&merged)),
    ] {
        text += &format!(",\"{name}\":\"");
        packed.write(&mut text);
        text.push('"');
    }
    text.push('}');
    text
}

pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn processes(profile: &Profile) -> Value {
    let processes = || profile.all_processes();
    let recordings: Vec<usize> = processes().map(|(recording, ..)| recording).collect();
    let pids: Vec<i32> = processes().map(|(_, pid, _)| pid).collect();
    let names = processes().map(|(_, pid, process)| visible(process.shown_name(pid)));
    let names: Vec<String> = names.collect();
    json!({ "recording": recordings, "pid": pids, "name": names })
}

fn files(profile: &Profile) -> Vec<String> {
    let recordings = profile.recordings();
    let files: Vec<String> = recordings.map(|one| visible(&one.file)).collect();
    // One that wasn't read from a file has no name.
    if files == [""] { Vec::new() } else { files }
}

fn threads(merged: &Merged) -> Value {
    let threads = merged.threads.iter();
    let recordings: Vec<u32> = threads.clone().map(|one| one.recording).collect();
    let pids: Vec<Option<i32>> = (threads.clone())
        .map(|one| one.thread.map(|thread| thread.pid))
        .collect();
    let tids: Vec<Option<i32>> = (threads.clone())
        .map(|one| one.thread.map(|thread| thread.tid))
        .collect();
    let names = threads.map(|one| {
        let name = one.thread.map(|thread| visible(&task_name(&thread.comm)));
        name.unwrap_or_default()
    });
    let names: Vec<String> = names.collect();
    json!({ "recording": recordings, "pid": pids, "tid": tids, "name": names })
}

/// Adds the labels of threads to `document`, if a process has any. A thread that had several sets is several threads there.
fn add_labels(document: &mut Value, profile: &Profile, merged: &Merged) {
    let recordings: Vec<&Profile> = profile.recordings().collect();
    let mut sets: Table<BTreeMap<&str, &str>> = Table::default();
    let numbers = merged.threads.iter().map(|one| {
        let labels = recordings[one.recording as usize].labels();
        let set = one.thread.map(|thread| thread.labels);
        sets.number(labels.get(set.unwrap_or_default()).collect())
    });
    let numbers: Vec<u32> = numbers.collect();
    if sets.values().iter().any(|set| !set.is_empty()) {
        document["labels"] = json!(sets.values());
        document["labelled"] = numbers.into();
    }
}

/// The modules of the functions, by name.
struct Modules {
    numbers: BTreeMap<String, usize>,
    /// Of each recording.
    builds: Vec<BuildIds>,
}

impl Modules {
    fn new(profile: &Profile, calls: &Calls) -> Self {
        let functions = calls.functions().iter();
        let names: BTreeSet<String> = functions
            .map(|function| function.module.to_string())
            .collect();
        Self {
            numbers: names.into_iter().zip(0..).collect(),
            builds: (profile.recordings())
                .map(|recording| BuildIds::new(&recording.contents))
                .collect(),
        }
    }

    fn json(&self) -> Value {
        let names: Vec<String> = self.numbers.keys().map(|name| visible(name)).collect();
        let builds = |name: &String| {
            let all = self.builds.iter().flat_map(|builds| builds.all(name));
            let all: BTreeSet<&str> = all.collect();
            all.into_iter().collect::<Vec<_>>().join(", ")
        };
        let builds: Vec<String> = names.iter().map(builds).collect();
        json!({ "name": names, "build": builds })
    }
}

fn functions(calls: &Calls, modules: &Modules) -> Value {
    let functions = calls.functions();
    let column = |value: &dyn Fn(&super::calls::Function) -> Value| {
        Value::Array(functions.iter().map(value).collect())
    };
    json!({
        "name": column(&|function| visible(&function.name).into()),
        "module": column(&|function| modules.numbers.get(&*function.module).copied().into()),
        "kernel": column(&|function| u8::from(function.is_kernel).into()),
        "low": column(&|function| match function.addresses {
            Some((low, _)) => format!("{low:x}").into(),
            None => "".into(),
        }),
        "span": column(&|function| match function.addresses {
            Some((low, high)) if high > low => format!("{:x}", high - low).into(),
            _ => "".into(),
        }),
        "lines": column(&|function| {
            let lines = function.lines.iter().map(|line| format!("{}:{}", line.file, line.line));
            lines.collect::<Vec<_>>().join(", ").into()
        }),
    })
}

fn nodes(calls: &Calls) -> PackedNumbers {
    let mut packed = PackedNumbers::default();
    packed.push(calls.nodes().len() as u64);
    for (number, node) in (0..).zip(calls.nodes()).skip(1) {
        packed.push(number - u64::from(node.parent));
        let flags = u64::from(node.is_cut_short) + 2 * u64::from(node.is_inlined);
        packed.push(4 * u64::from(node.function) + flags);
    }
    packed
}

fn packed(cells: &[(u16, Cell, u32)]) -> PackedNumbers {
    let mut packed = PackedNumbers::default();
    packed.push(cells.len() as u64);
    let place = |bin: u16, cell: &Cell| (bin, cell.vcpu, cell.mode, cell.thread);
    let (mut last_bin, mut last_thread) = (0, 0);
    for run in cells.chunk_by(|one, other| place(one.0, &one.1) == place(other.0, &other.1)) {
        let (bin, vcpu, mode, thread) = place(run[0].0, &run[0].1);
        packed.push(u64::from(bin - last_bin));
        packed.push(u64::from(vcpu) * 4 + u64::from(mode));
        packed.push_difference(last_thread, thread);
        packed.push(run.len() as u64);
        (last_bin, last_thread) = (bin, thread);
        let mut last_node = 0;
        for (_, cell, ticks) in run {
            packed.push(u64::from(cell.stack - last_node));
            packed.push((*ticks).into());
            last_node = cell.stack;
        }
    }
    packed
}

fn missed(merged: &Merged) -> PackedNumbers {
    let mut packed = PackedNumbers::default();
    for ((bin, recording, vcpu), parts) in &merged.missed {
        packed.push(u64::from(*bin));
        packed.push((u64::from(*recording) << 16) + u64::from(*vcpu));
        parts.iter().for_each(|part| packed.push(*part));
    }
    packed
}
