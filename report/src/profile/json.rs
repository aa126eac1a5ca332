//! The report as a JSON document.

use kvmprof_recording::Mode;
use serde_json::{Map, Value, json};

use super::groups::{GroupNames, Value as GroupValue};
use super::levels::{Group, groups};
use super::{
    Criteria, Grouping, Levels, ModeCounts, Pause, Profile, Relatives, Selection, Share, SortBy,
    Thread, by_label, functions, label_keys, lines, modules, pauses,
};
use crate::budget::{OutputBudget, TooMuch};
use crate::model::{NameId, sum_modes, task_name};

/// All of `profile`: the recording's properties, the account, and all tables; those of modules, functions and lines
/// have the first `top` rows by `sort`. Tables of several recordings have their sums; `recordings` has the properties of each, and
/// processes have the number of their recording, from 0.
pub fn document(profile: &Profile, sort: SortBy, top: usize) -> Value {
    if profile.merged.is_empty() {
        return with(properties(profile), tables(profile, sort, top));
    }
    let recordings = profile.recordings().map(|recording| {
        let file = json!({ "file": recording.file });
        with(file, properties(recording))
    });
    let sums = json!({
        "recordings": recordings.collect::<Vec<_>>(),
        "account": profile.account(),
        "complete": profile.recordings().all(|one| one.contents.closed.is_some()),
        "interrupted": profile.recordings().any(|one| one.contents.unread > 0),
    });
    with(sums, tables(profile, sort, top))
}

/// The properties and the account of one recording.
fn properties(recording: &Profile) -> Value {
    let contents = &recording.contents;
    json!({
        "facts": contents.info,
        "kernel": contents.kernel,
        "account": contents.account,
        "resets": contents.resets.len(),
        "pauses": pauses(recording).iter().map(pause).collect::<Vec<_>>(),
        "complete": contents.closed.is_some(),
        "interrupted": contents.unread > 0,
        "bytes_cut_off": contents.cut_off,
    })
}

/// In s from the recording's begin.
fn pause(pause: &Pause) -> Value {
    json!({
        "begin": pause.begin.as_secs_f64(),
        "end": pause.end.map(|end| end.as_secs_f64()),
    })
}

fn tables(profile: &Profile, sort: SortBy, top: usize) -> Value {
    let tables = json!({
        "time": {
            "begin": profile.selection.time.begin.map(|time| time.as_secs_f64()),
            "end": profile.selection.time.end.map(|time| time.as_secs_f64()),
        },
        "selection": selection_document(&profile.selection),
        "samples": profile.samples(),
        "processes": processes(profile),
        "threads": threads(profile),
        "vcpus": vcpus(profile),
        "modules": module_rows(profile, sort, top),
        "functions": function_rows(profile, sort, top),
        "lines": line_rows(profile, sort, top),
    });
    with(tables, labels(profile))
}

/// The first `top` of `relatives`.
pub fn relatives_document(relatives: &Relatives, top: usize) -> Value {
    let rows = relatives.rows.iter().take(top).map(|row| {
        json!({
            "name": &*row.key.0,
            "module": &*row.key.1,
            "samples": row.total,
            "share": share(row.total, relatives.samples),
        })
    });
    json!({
        "function": relatives.function,
        "samples": relatives.samples,
        "rows": rows.collect::<Vec<_>>(),
    })
}

fn share(count: u64, whole: u64) -> Value {
    let share = Share::new(count.min(whole), whole);
    json!({ "value": share.value, "low": share.low, "high": share.high })
}

/// A row's counts with their shares.
fn counts(own: u64, total: u64, whole: u64) -> Value {
    json!({
        "self": own,
        "self_share": share(own, whole),
        "total": total,
        "total_share": share(total, whole),
    })
}

fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

fn modes(counts: ModeCounts, whole: u64) -> Value {
    let samples = sum_modes(&counts);
    let by_mode = Mode::ALL.into_iter().zip(counts);
    let by_mode: Map<_, _> = by_mode
        .map(|(mode, count)| (mode.name().to_owned(), count.into()))
        .collect();
    let all = json!({ "samples": samples, "share": share(samples, whole) });
    with(all, by_mode.into())
}

/// The number of a recording, if there are several.
fn of_recording(profile: &Profile, number: usize) -> Value {
    if profile.merged.is_empty() {
        json!({})
    } else {
        json!({ "recording": number })
    }
}

fn processes(profile: &Profile) -> Vec<Value> {
    let whole = profile.samples();
    let processes = profile.all_processes();
    processes
        .map(|(recording, pid, process)| {
            let who = json!({ "pid": pid, "name": process.name });
            let who = with(who, of_recording(profile, recording));
            with(who, modes(process.modes, whole))
        })
        .collect()
}

fn threads(profile: &Profile) -> Vec<Value> {
    let whole = profile.samples();
    let threads = profile.all_threads().into_iter();
    threads
        .map(|(recording, thread)| {
            let who = thread_identity(profile, recording, &thread);
            with(who, modes(thread.modes, whole))
        })
        .collect()
}

/// What identifies a thread of a recording.
fn thread_identity(profile: &Profile, recording: usize, thread: &Thread) -> Value {
    let name = task_name(&thread.comm);
    let mut who = json!({ "pid": thread.pid, "tid": thread.tid, "name": name });
    if let Some(own) = thread.inner_tid {
        who["inner_tid"] = own.into();
    }
    with(who, of_recording(profile, recording))
}

/// The selection without the time. Lists that are empty select all, or leave out nothing.
pub fn selection_document(selection: &Selection) -> Value {
    let more =
        json!({ "not": criteria(&selection.not), "transforms": texts(&selection.transforms) });
    with(criteria(&selection.only), more)
}

fn texts<T: ToString>(all: &[T]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn criteria(criteria: &Criteria) -> Value {
    json!({
        "pids": criteria.pids,
        "tids": criteria.tids,
        "comms": criteria.comms,
        "vcpus": criteria.vcpus,
        "modes": criteria.modes.iter().map(|mode| mode.name()).collect::<Vec<_>>(),
        "labels": texts(&criteria.labels),
        "modules": criteria.modules,
        "greps": texts(&criteria.greps),
    })
}

fn vcpus(profile: &Profile) -> Vec<Value> {
    let whole = profile.samples();
    let vcpus = profile.all_vcpus().into_iter();
    vcpus
        .map(|(vcpu, counts)| {
            let which = json!({ "vcpu": vcpu });
            with(which, modes(counts, whole))
        })
        .collect()
}

/// The tables of all labels by their keys; no member if there are none.
fn labels(profile: &Profile) -> Value {
    let whole = profile.samples();
    let rows = |key: &str| -> Vec<Value> {
        let rows = by_label(profile, key).into_iter();
        rows.map(|row| with(json!({ "value": row.value }), modes(row.modes, whole)))
            .collect()
    };
    let tables = label_keys(profile).into_iter();
    let tables: Map<String, Value> = tables
        .map(|key| (key.to_owned(), rows(key).into()))
        .collect();
    if tables.is_empty() {
        json!({})
    } else {
        json!({ "labels": tables })
    }
}

fn module_rows(profile: &Profile, sort: SortBy, top: usize) -> Vec<Value> {
    let whole = profile.samples();
    let rows = modules(profile, sort).into_iter().take(top);
    rows.map(|row| {
        let which = json!({ "name": &*row.key });
        with(which, counts(row.own, row.total, whole))
    })
    .collect()
}

fn function_rows(profile: &Profile, sort: SortBy, top: usize) -> Vec<Value> {
    let whole = profile.samples();
    let rows = functions(profile, sort).into_iter().take(top);
    rows.map(|function| {
        let which = json!({
            "name": function.name,
            "module": function.module,
            "kernel": function.is_kernel,
        });
        with(which, counts(function.own, function.total, whole))
    })
    .collect()
}

fn line_rows(profile: &Profile, sort: SortBy, top: usize) -> Vec<Value> {
    let whole = profile.samples();
    let rows = lines(profile, sort).into_iter().take(top);
    rows.map(|row| {
        let which = json!({ "file": &*row.key.file, "line": row.key.line });
        with(which, counts(row.own, row.total, whole))
    })
    .collect()
}

/// The groups of `profile` by `levels`, of which each has its own ones; at most `top` of a group, with the number of those that are left out.
///
/// # Errors
/// They don't fit into `budget`.
pub fn levels_document(
    profile: &Profile,
    levels: &Levels,
    sort: SortBy,
    top: usize,
    budget: &OutputBudget,
) -> Result<Value, TooMuch> {
    let all = groups(profile, levels, sort, budget)?;
    let rows = LevelRows {
        profile,
        names: GroupNames::new(profile),
        levels,
        top,
    };
    let by: Vec<&str> = levels.groupings().iter().map(Grouping::name).collect();
    Ok(with(json!({ "by": by }), rows.of(&all, 0)))
}

/// Makes rows of groups.
struct LevelRows<'a> {
    profile: &'a Profile,
    names: GroupNames<'a>,
    levels: &'a Levels,
    top: usize,
}

impl LevelRows<'_> {
    /// The rows of `groups` by the grouping of this number.
    fn of(&self, groups: &[Group<'_>], level: usize) -> Value {
        let Some(grouping) = self.levels.groupings().get(level) else {
            return json!({});
        };
        let whole = self.profile.samples();
        let rows = groups.iter().take(self.top).map(|group| {
            let counts = match self.levels.are_of_code() {
                true => counts(group.own, group.total, whole),
                false => modes(group.modes, whole),
            };
            let row = with(self.identity(grouping, group.value), counts);
            with(row, self.of(&group.groups, level + 1))
        });
        let rows: Vec<Value> = rows.collect();
        json!({ "rows": rows, "rows_left_out": groups.len().saturating_sub(self.top) })
    }

    /// What identifies a group, with the members that it has in its table without levels; null if it is of samples without a value.
    fn identity(&self, grouping: &Grouping, value: GroupValue<'_>) -> Value {
        let text = |name: NameId| &**self.profile.code.text(name);
        match value {
            GroupValue::Mode(mode) => json!({ "mode": mode.name() }),
            GroupValue::Vcpu(vcpu) => json!({ "vcpu": vcpu }),
            GroupValue::Process(number, pid) => {
                let recording = self.profile.recordings().nth(number);
                let process = recording.and_then(|recording| recording.processes.get(&pid));
                let who = json!({ "pid": pid, "name": process.map(|process| &process.name) });
                with(who, of_recording(self.profile, number))
            }
            GroupValue::Thread(number, pid, tid) => {
                let thread = self.names.thread(number, pid, tid);
                thread_identity(self.profile, number, &thread)
            }
            GroupValue::Module(name) => json!({ "name": text(name) }),
            GroupValue::Function(name, module, is_kernel) => {
                json!({ "name": text(name), "module": text(module), "kernel": is_kernel })
            }
            GroupValue::Line(line) => json!({ "file": text(line.file), "line": line.line }),
            GroupValue::Label(value) => json!({ "value": value }),
            GroupValue::None => match grouping {
                Grouping::Vcpu => json!({ "vcpu": null }),
                Grouping::Thread => json!({ "pid": null, "tid": null, "name": null }),
                Grouping::Line => json!({ "file": null, "line": null }),
                _ => json!({ "value": null }),
            },
        }
    }
}
