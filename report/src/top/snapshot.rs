//! The state of the window at one moment: rows, neither sorted nor filtered.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::model::Slot;
use crate::budget::OutputBudget;
use crate::model::{Frame, HALTED, Limits, Sums, sum_modes};
use crate::profile::{
    LabelRow, ModeCounts, Profile, Selection, StackSum, TreeLine, VcpuTicks, by_label, folded_idle,
    folded_stack, sum, tree_lines,
};
use crate::symbolize::Resolver;
use kvmprof_recording::file::{Contents, RecordingInfo, Unobserved};

/// Maximum number of bytes of a call tree.
const MAX_TREE: u64 = 64 << 20;

/// A process in the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    /// Its pid; -1 for unknown processes.
    pub pid: i32,
    /// Its name, or a word in brackets.
    pub name: String,
    /// Ticks by mode.
    pub modes: ModeCounts,
}

impl ProcessRow {
    /// All of its ticks.
    pub fn ticks(&self) -> u64 {
        sum_modes(&self.modes)
    }
}

/// A function, or an address without a known function. In user mode each process has its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId {
    /// Its process; `None` for kernel functions.
    pub pid: Option<i32>,
    /// Its name or address.
    pub name: Arc<str>,
}

impl FunctionId {
    fn new(pid: i32, frame: &Frame<'_>) -> Self {
        Self {
            pid: (!frame.is_kernel).then_some(pid),
            name: Arc::clone(frame.name),
        }
    }
}

/// A function in the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRow {
    /// The function.
    pub function: FunctionId,
    /// The name of its process; empty for kernel functions.
    pub process: String,
    /// Ticks in which the program counter was in it.
    pub own: u64,
    /// Ticks in which it was somewhere on the stack.
    pub total: u64,
}

/// A call stack under a selected row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackRow {
    /// The process's pid.
    pub pid: i32,
    /// The process's name.
    pub process: String,
    /// Its frames, innermost first.
    pub frames: Vec<FunctionId>,
    /// The number of its ticks.
    pub ticks: u64,
}

/// Selects stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All stacks.
    All,
    /// The stacks of a process.
    Process(i32),
    /// The stacks that contain a function.
    Function(FunctionId),
    /// The stacks of processes whose label has this value, or that don't have it.
    Label(Option<String>),
}

/// The contents of the window at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The recording's properties.
    pub info: RecordingInfo,
    /// The time in which these ticks arrived.
    pub span: Duration,
    /// Ticks by vCPU.
    pub vcpus: Vec<VcpuTicks>,
    /// Processes by pid.
    pub processes: Vec<ProcessRow>,
    /// Functions, not sorted.
    pub functions: Vec<FunctionRow>,
    /// The key of the label whose values are shown, if there is one.
    pub by: Option<String>,
    /// The values of that label.
    pub labels: Vec<LabelRow>,
    /// The number of samples that were left out because of the window's limits.
    pub elsewhere: u64,
    /// True after the end of the stream.
    pub has_ended: bool,
    profile: Profile,
}

impl Snapshot {
    /// The sum of `slots`. `resolver` names the frames.
    pub(super) fn new<'a>(
        info: &RecordingInfo,
        resolver: &Rc<Resolver>,
        slots: impl Iterator<Item = &'a Slot>,
        by: Option<&str>,
        has_ended: bool,
    ) -> Self {
        let mut sums = Sums::new(Limits::NONE);
        let mut span = Duration::ZERO;
        for slot in slots {
            span += slot.end.saturating_sub(slot.begin);
            sums.merge(&slot.sums);
        }
        // Each vCPU has a bar from the start.
        let seen = sums.vcpus.keys().last();
        let count = seen.map_or(0, |last| u32::from(*last) + 1);
        let count = count.max(info.vcpus.min(u16::MAX.into()));
        let vcpus = (0..count).map(|vcpu| {
            let ticks = u16::try_from(vcpu)
                .ok()
                .and_then(|vcpu| sums.vcpus.get(&vcpu));
            ticks.copied().unwrap_or_default()
        });
        let mut snapshot = Self {
            info: info.clone(),
            span,
            vcpus: vcpus.collect(),
            processes: Vec::new(),
            functions: Vec::new(),
            by: by.map(str::to_owned),
            labels: Vec::new(),
            elsewhere: sums.elsewhere,
            has_ended,
            profile: sums.into_profile(
                Contents::default(),
                Rc::clone(resolver),
                Selection::default(),
                &Unobserved,
            ),
        };
        snapshot.processes = snapshot.process_rows();
        snapshot.functions = snapshot.function_rows();
        snapshot.labels = by.map_or_else(Vec::new, |key| by_label(&snapshot.profile, key));
        snapshot
    }

    /// All ticks in the window.
    pub fn ticks(&self) -> u64 {
        self.sum(VcpuTicks::total)
    }

    /// Ticks with a known mode. Shares are relative to these.
    pub fn known(&self) -> u64 {
        self.sum(VcpuTicks::known)
    }

    /// The sum over all vCPUs of a part of their ticks.
    pub fn sum(&self, part: impl Fn(&VcpuTicks) -> u64) -> u64 {
        self.vcpus
            .iter()
            .fold(0, |sum, vcpu| sum.saturating_add(part(vcpu)))
    }

    /// Whether the stream has had symbols.
    pub fn has_symbols(&self) -> bool {
        self.profile.has_symbols()
    }

    /// The name of a process, or a word in brackets.
    pub fn process_name(&self, pid: i32) -> &str {
        self.processes
            .binary_search_by_key(&pid, |row| row.pid)
            .ok()
            .and_then(|index| self.processes.get(index))
            .map_or("", |row| row.name.as_str())
    }

    fn process_rows(&self) -> Vec<ProcessRow> {
        let processes = self.profile.processes.iter();
        let rows = processes.map(|(pid, process)| ProcessRow {
            pid: *pid,
            name: match process.shown_name(*pid) {
                "" => "[no name]".to_owned(),
                name => name.to_owned(),
            },
            modes: process.modes,
        });
        rows.collect()
    }

    fn function_rows(&self) -> Vec<FunctionRow> {
        let rows = sum(&self.profile, |pid, frame| {
            Some(((!frame.is_kernel).then_some(pid), frame.name_id))
        });
        let row = |function: FunctionId, own, total| FunctionRow {
            process: match function.pid {
                Some(pid) => self.process_name(pid).to_owned(),
                None => String::new(),
            },
            function,
            own,
            total,
        };
        let rows = rows.into_iter().map(|one| {
            let (pid, name) = one.key;
            let name = Arc::clone(self.profile.code.text(name));
            row(FunctionId { pid, name }, one.own, one.total)
        });
        let mut rows: Vec<FunctionRow> = rows.collect();
        let idle = self.profile.idle;
        if idle > 0 {
            let (pid, name) = (None, HALTED.into());
            rows.push(row(FunctionId { pid, name }, idle, idle));
        }
        rows
    }

    /// The stacks of `target`, those with the most ticks first.
    pub fn stacks(&self, target: &Target) -> Vec<StackRow> {
        let mut sums: HashMap<(i32, Vec<FunctionId>), u64> = HashMap::new();
        for stack in self.stacks_of(target) {
            let frames: Vec<FunctionId> = self.functions_of(stack).collect();
            *sums.entry((stack.pid, frames)).or_default() += stack.ticks;
        }
        let mut rows: Vec<StackRow> = sums
            .into_iter()
            .map(|((pid, frames), ticks)| StackRow {
                pid,
                process: self.process_name(pid).to_owned(),
                frames,
                ticks,
            })
            .collect();
        rows.sort_by(|left, right| {
            right
                .ticks
                .cmp(&left.ticks)
                .then_with(|| left.pid.cmp(&right.pid))
                .then_with(|| left.frames.cmp(&right.frames))
        });
        rows
    }

    fn stacks_of(&self, target: &Target) -> impl Iterator<Item = &StackSum> {
        self.profile.stacks().filter(move |stack| match target {
            Target::All => true,
            Target::Process(wanted) => *wanted == stack.pid,
            Target::Label(wanted) => self.label(stack) == wanted.as_deref(),
            Target::Function(wanted) => self.functions_of(stack).any(|one| one == *wanted),
        })
    }

    /// The call tree of the stacks of `target`, in lines of at most `width` characters. That of all has idle ticks, too. `None` if
    /// the names are too long for a tree.
    pub fn tree(&self, target: &Target, width: usize) -> Option<Vec<TreeLine>> {
        let budget = OutputBudget::new(MAX_TREE);
        let line = |stack: &StackSum| {
            let frames = folded_stack(&self.profile, None, stack, &budget).ok()?;
            Some(format!("{frames} {}", stack.ticks))
        };
        let mut lines: Vec<String> = self.stacks_of(target).map(line).collect::<Option<_>>()?;
        let idle = self.profile.idle;
        if *target == Target::All && idle > 0 {
            lines.push(format!("{} {idle}", folded_idle(&self.profile, None)));
        }
        Some(tree_lines(&lines, Some(self.known()), Some(width)))
    }

    /// The value of the label of a stack's process.
    fn label(&self, stack: &StackSum) -> Option<&str> {
        let key = self.by.as_deref()?;
        self.profile.labels().value(stack.labels, key)
    }

    fn functions_of(&self, stack: &StackSum) -> impl Iterator<Item = FunctionId> {
        let frames = self.profile.frames(stack);
        frames.map(|frame| FunctionId::new(stack.pid, &frame))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::snapshot;
    use super::*;

    #[test]
    fn stacks_of_a_function_are_those_with_it() {
        let snapshot = snapshot();
        let target = Target::Function(FunctionId {
            pid: None,
            name: "do_syscall".into(),
        });
        let of_function = snapshot.stacks(&target);
        assert_eq!(of_function.len(), 1);
        let frames = of_function[0].frames.iter();
        let labels: Vec<&str> = frames.map(|frame| &*frame.name).collect();
        assert_eq!(labels, ["copy_page", "do_syscall", "0x400200"]);
        assert_eq!(of_function[0].process, "worker");
    }
}
