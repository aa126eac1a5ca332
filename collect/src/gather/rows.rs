//! Makes the rows of a window: samples, by the names that leave the host.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use kvmprof_recording::Mode;
use kvmprof_recording::file::KernelInfo;
use kvmprof_report::symbolize::{LabelSet, Resolver};

use super::{Count, OpenWindow, Policy};
use crate::batch::{IDLE, OTHER, Row, Tables};
use crate::names::{BatchNames, GuestStacks};

/// Maximum number of bytes of the labels of a guest's processes in a window. Those with the most ticks have theirs.
const MAX_LABELS: usize = 1 << 20;
/// The key of a process's id among its labels.
const PID: &str = "pid";

impl OpenWindow {
    /// The rows, those with the most ticks first. All have the labels `of_guest`.
    pub(super) fn rows(
        &self,
        (resolver, kernel): (&Resolver, &KernelInfo),
        stacks: &mut GuestStacks,
        (policy, of_guest): (&Policy, &BTreeMap<String, String>),
        names: &mut BatchNames<'_>,
    ) -> Vec<Row> {
        let mut sums = Sums::default();
        let mut elsewhere = self.elsewhere;
        let named = self.named(resolver, stacks, policy, &mut elsewhere);
        let ticks = |row: &NamedSamples| row.count.ticks;
        let processes = most(
            policy.processes,
            named.iter().map(|row| (row.process.as_str(), ticks(row))),
        );
        let threads = most(
            policy.threads,
            named.iter().map(|row| (row.thread.as_str(), ticks(row))),
        );
        let mut labels = LabelSets {
            keys: &policy.labels,
            of_guest,
            left: MAX_LABELS,
            known: HashMap::new(),
        };
        // What isn't of one process.
        let nobody = (LabelSet::default(), None);
        let elsewhere_labels = labels.place(nobody, resolver, &mut names.tables);
        for row in &named {
            let stack = if row.has_stack {
                stacks.place(row.stack, (resolver, kernel), names)
            } else {
                None
            };
            let shown =
                [(&row.process, &processes), (&row.thread, &threads)].map(|(name, kept)| {
                    if kept.contains(name.as_str()) {
                        name
                    } else {
                        OTHER
                    }
                });
            let own = (row.labels, row.pid);
            let labels = labels.place(own, resolver, &mut names.tables);
            let key = (row.mode, stack, labels);
            sums.add(&mut names.tables, shown, key, row.count);
        }
        for (mode, count) in Mode::ALL.into_iter().zip(elsewhere) {
            let key = (mode, None, elsewhere_labels);
            sums.add(&mut names.tables, [OTHER; 2], key, count);
        }
        let idle = Count {
            ticks: self.account.idle,
            interrupts_off: 0,
        };
        let key = (Mode::Idle, None, elsewhere_labels);
        sums.add(&mut names.tables, [IDLE; 2], key, idle);
        sums.into_rows()
    }

    /// The samples with the names of their processes and threads as they leave the host. Samples of dropped names are added to `elsewhere`.
    fn named(
        &self,
        resolver: &Resolver,
        stacks: &GuestStacks,
        policy: &Policy,
        elsewhere: &mut [Count; Mode::ALL.len()],
    ) -> Vec<NamedSamples> {
        let mut named = Vec::with_capacity(self.rows.len());
        for ((number, comm), count) in &self.rows {
            let Some((pid, stack)) = stacks.get(*number) else {
                continue;
            };
            let names = self.names.get(&pid);
            let process = names.map(|names| names.text(resolver.process_name(pid)));
            let process = known(process.unwrap_or_default());
            let thread = known(kvmprof_abi::text::task_name(comm).collect());
            if policy.drops(&process, &thread) {
                elsewhere[stack.mode.index()].add(*count);
                continue;
            }
            let (shown, thread, has_stack) = policy.shown(process.clone(), thread);
            // The labels of a process whose name is hashed may say which one it is.
            let is_shown = shown == process;
            let has_pid = is_shown && policy.labels.iter().any(|key| key == PID);
            named.push(NamedSamples {
                process: shown,
                thread,
                labels: if is_shown {
                    stack.labels
                } else {
                    LabelSet::default()
                },
                pid: has_pid.then_some(pid),
                has_stack,
                stack: *number,
                mode: stack.mode,
                count: *count,
            });
        }
        named.sort_by_key(|row| Reverse(row.count.ticks));
        named
    }
}

/// Samples with the same stack and the same name of the thread.
struct NamedSamples {
    process: String,
    thread: String,
    /// The stack's number.
    stack: u32,
    mode: Mode,
    labels: LabelSet,
    /// The process's id, if it leaves the host.
    pid: Option<i32>,
    /// Whether the stack leaves the host.
    has_stack: bool,
    count: Count,
}

/// The labels of a process in the recording, and its id, if that leaves the host.
type LabelKey = (LabelSet, Option<i32>);

/// The labels of processes as they leave the host.
struct LabelSets<'p> {
    /// The keys that do.
    keys: &'p [String],
    /// Those of the guest.
    of_guest: &'p BTreeMap<String, String>,
    /// The room for further sets, in bytes.
    left: usize,
    /// The indexes of sets in the batch's tables.
    known: HashMap<LabelKey, Option<u32>>,
}

impl LabelSets<'_> {
    /// The index of the guest's labels and those of a process, which come first. `None` if there are none, or no room for them.
    fn place(&mut self, key: LabelKey, resolver: &Resolver, tables: &mut Tables) -> Option<u32> {
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let (set, pid) = key;
        let pid = pid.map(|pid| pid.to_string());
        let guests = self.of_guest.iter();
        let guests = guests.map(|(key, value)| (key.as_str(), value.as_str()));
        let shown = guests.chain(resolver.tables().labels.get(set));
        let shown = shown.filter(|(key, _)| self.keys.iter().any(|shown| shown == key));
        let all: Vec<(&str, &str)> = shown.chain(pid.as_deref().map(|pid| (PID, pid))).collect();
        let bytes = all.iter().map(|(key, value)| key.len() + value.len()).sum();
        let set = self.left.checked_sub(bytes).and_then(|left| {
            self.left = left;
            tables.labels(all.into_iter())
        });
        self.known.insert(key, set);
        set
    }
}

/// Process, thread, mode, stack and labels.
type RowKey = (u32, u32, u8, Option<u32>, Option<u32>);

/// The ticks of rows.
#[derive(Default)]
struct Sums(HashMap<RowKey, Count>);

impl Sums {
    fn add(
        &mut self,
        tables: &mut Tables,
        [process, thread]: [&str; 2],
        (mode, stack, labels): (Mode, Option<u32>, Option<u32>),
        count: Count,
    ) {
        if count.ticks > 0 {
            let (process, thread) = (tables.name(process), tables.name(thread));
            let key = (process, thread, mode as u8, stack, labels);
            self.0.entry(key).or_default().add(count);
        }
    }

    fn into_rows(self) -> Vec<Row> {
        let rows = self.0.into_iter();
        let mut rows: Vec<Row> = rows
            .map(|((process, thread, mode, stack, labels), count)| Row {
                process,
                thread,
                mode,
                stack,
                ticks: count.ticks,
                interrupts_off: Some(count.interrupts_off),
                labels,
            })
            .collect();
        rows.sort_by_key(|row| {
            (
                Reverse(row.ticks),
                row.process,
                row.thread,
                row.mode,
                row.stack,
                row.labels,
            )
        });
        rows
    }
}

/// `name`, or a replacement for an empty one.
fn known(name: String) -> String {
    if name.is_empty() {
        "[unknown]".to_owned()
    } else {
        name
    }
}

/// The `count` names that have the most ticks.
fn most<'a>(count: usize, names: impl Iterator<Item = (&'a str, u64)>) -> HashSet<&'a str> {
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for (name, ticks) in names {
        *sums.entry(name).or_default() += ticks;
    }
    let mut sums: Vec<(&str, u64)> = sums.into_iter().collect();
    sums.sort_by_key(|(name, ticks)| (Reverse(*ticks), *name));
    sums.into_iter().take(count).map(|(name, _)| name).collect()
}
