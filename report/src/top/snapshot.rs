//! What the window shows at one moment: rows, not yet sorted or chosen.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::place::{FoundPlace, Place, place};
use super::slot::{NamedProcess, Slot, VcpuTicks, add_modes};
use crate::file::Facts;
use crate::profile::Stack;
use crate::symbolize::Tables;

/// What halted vCPUs are shown as.
const HALTED: &str = "[halted]";

/// A process in the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    /// Its pid; -1 is those that couldn't be told.
    pub pid: i32,
    /// Its name, or a word in brackets.
    pub name: String,
    /// Ticks in user mode, in the kernel, in interrupts, idle.
    pub modes: [u64; 4],
}

impl ProcessRow {
    /// All of its ticks.
    pub fn ticks(&self) -> u64 {
        self.modes
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// A function in the window; in user mode each process has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRow {
    /// Which it is.
    pub place: Place,
    /// The name of the process that it belongs to; empty for the kernel's.
    pub process: String,
    /// Ticks in which the program counter was in it.
    pub own: u64,
    /// Ticks in which it was somewhere on the stack.
    pub total: u64,
}

/// A call stack under a selected row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackRow {
    /// Whose.
    pub pid: i32,
    /// The process's name.
    pub process: String,
    /// Its frames, innermost first.
    pub frames: Vec<Place>,
    /// How many ticks were in it.
    pub ticks: u64,
}

/// Which stacks are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Those of a process.
    Process(i32),
    /// Those that a function is on.
    Function(Place),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What the recording is about.
    pub facts: Facts,
    /// How long it took all that to arrive.
    pub span: Duration,
    /// By vCPU.
    pub vcpus: Vec<VcpuTicks>,
    /// By pid.
    pub processes: Vec<ProcessRow>,
    /// In no order.
    pub functions: Vec<FunctionRow>,
    /// Samples that there was no room to tell apart.
    pub elsewhere: u64,
    /// True when nothing more follows.
    pub has_ended: bool,
    names: Arc<Tables>,
    stacks: HashMap<(i32, Stack), u64>,
}

impl Snapshot {
    /// What `slots` have together.
    pub(super) fn of<'a>(
        facts: &Facts,
        names: &Arc<Tables>,
        slots: impl Iterator<Item = &'a Slot>,
        has_ended: bool,
    ) -> Self {
        let mut vcpus = vec![VcpuTicks::default(); usize::from(vcpus_of(facts))];
        let mut processes: BTreeMap<i32, NamedProcess> = BTreeMap::new();
        let mut stacks: HashMap<(i32, Stack), u64> = HashMap::new();
        let (mut span, mut idle, mut elsewhere) = (Duration::ZERO, 0_u64, 0_u64);
        for slot in slots {
            span += slot.end.saturating_sub(slot.begin);
            idle = idle.saturating_add(slot.idle);
            elsewhere = elsewhere.saturating_add(slot.elsewhere);
            if vcpus.len() < slot.vcpus.len() {
                vcpus.resize(slot.vcpus.len(), VcpuTicks::default());
            }
            for (vcpu, more) in vcpus.iter_mut().zip(&slot.vcpus) {
                vcpu.add(more);
            }
            for (pid, process) in &slot.processes {
                add_process(processes.entry(*pid).or_default(), process);
            }
            for (key, count) in &slot.stacks {
                match stacks.get_mut(key) {
                    Some(sum) => *sum += count,
                    None => drop(stacks.insert(key.clone(), *count)),
                }
            }
        }
        let processes: Vec<ProcessRow> = processes
            .into_iter()
            .map(|(pid, (process, _))| ProcessRow {
                pid,
                name: shown_name(pid, &process.name),
                modes: process.modes,
            })
            .collect();
        let mut snapshot = Self {
            facts: facts.clone(),
            span,
            vcpus,
            processes,
            functions: Vec::new(),
            elsewhere,
            has_ended,
            names: Arc::clone(names),
            stacks,
        };
        snapshot.functions = snapshot.sum_functions(idle);
        snapshot
    }

    /// All ticks in the window.
    pub fn ticks(&self) -> u64 {
        self.sum(VcpuTicks::total)
    }

    /// Ticks whose mode is known: what shares are shares of.
    pub fn known(&self) -> u64 {
        self.sum(VcpuTicks::known)
    }

    /// The sum of a part of all vCPUs' ticks.
    pub fn sum(&self, part: impl Fn(&VcpuTicks) -> u64) -> u64 {
        self.vcpus
            .iter()
            .fold(0, |sum, vcpu| sum.saturating_add(part(vcpu)))
    }

    /// Whether the stream has brought symbols.
    pub fn has_symbols(&self) -> bool {
        !self.names.kernel.is_empty()
    }

    /// The name of a process, or a word in brackets.
    pub fn process_name(&self, pid: i32) -> &str {
        self.processes
            .binary_search_by_key(&pid, |row| row.pid)
            .ok()
            .and_then(|index| self.processes.get(index))
            .map_or("", |row| row.name.as_str())
    }

    fn sum_functions(&self, idle: u64) -> Vec<FunctionRow> {
        let mut rows: HashMap<FoundPlace<'_>, (u64, u64)> = HashMap::new();
        let mut seen = Vec::new();
        for ((pid, stack), count) in &self.stacks {
            seen.clear();
            for index in 0..stack.frames.len() {
                let place = place(&self.names, *pid, stack, index);
                if !seen.contains(&place) {
                    rows.entry(place.clone()).or_default().1 += count;
                    seen.push(place);
                }
            }
            if let Some(innermost) = seen.first() {
                rows.entry(innermost.clone()).or_default().0 += count;
            }
        }
        if idle > 0 {
            rows.insert(Place::Kernel(HALTED.into()), (idle, idle));
        }
        rows.into_iter()
            .map(|(place, (own, total))| FunctionRow {
                process: place
                    .pid()
                    .map(|pid| self.process_name(pid).to_owned())
                    .unwrap_or_default(),
                place: place.into_owned(),
                own,
                total,
            })
            .collect()
    }

    /// The stacks of `target`, those with the most ticks first.
    pub fn stacks(&self, target: &Target) -> Vec<StackRow> {
        let mut sums: HashMap<(i32, Vec<FoundPlace<'_>>), u64> = HashMap::new();
        for ((pid, stack), count) in &self.stacks {
            if matches!(target, Target::Process(wanted) if wanted != pid) {
                continue;
            }
            let places: Vec<_> = (0..stack.frames.len())
                .map(|index| place(&self.names, *pid, stack, index))
                .collect();
            let is_wanted = match target {
                Target::Process(_) => true,
                Target::Function(wanted) => places.iter().any(|place| wanted.is(place)),
            };
            if is_wanted {
                *sums.entry((*pid, places)).or_default() += count;
            }
        }
        let mut rows: Vec<StackRow> = sums
            .into_iter()
            .map(|((pid, places), ticks)| StackRow {
                pid,
                process: self.process_name(pid).to_owned(),
                frames: places.into_iter().map(Place::into_owned).collect(),
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
}

/// How many vCPUs have a bar from the start; a vCPU's number is of 16 bits.
fn vcpus_of(facts: &Facts) -> u16 {
    u16::try_from(facts.vcpus).unwrap_or(u16::MAX)
}

fn add_process(sum: &mut NamedProcess, more: &NamedProcess) {
    add_modes(&mut sum.0.modes, more.0.modes);
    if !more.0.name.is_empty() && (more.1 || !sum.1) {
        sum.0.name.clone_from(&more.0.name);
        sum.1 = more.1;
    }
}

fn shown_name(pid: i32, name: &str) -> String {
    match (pid, name) {
        (-1, "") => "[unknown]",
        (0, "") => "[idle]",
        (_, "") => "[no name]",
        (_, name) => name,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::testing::snapshot;
    use super::*;

    #[test]
    fn functions_are_the_kernels_or_a_processs() {
        let snapshot = snapshot();
        let mut rows: Vec<_> = snapshot
            .functions
            .iter()
            .map(|row| (row.place.label(), row.process.as_str(), row.own, row.total))
            .collect();
        rows.sort_unstable();
        let rows: Vec<_> = rows
            .iter()
            .map(|(label, process, own, total)| (label.as_str(), *process, *own, *total))
            .collect();
        assert_eq!(
            rows,
            [
                ("0x400100", "weaver", 10, 10),
                ("0x400100", "worker", 60, 60),
                ("0x400200", "worker", 0, 30),
                ("[halted]", "", 50, 50),
                ("copy_page", "", 30, 30),
                ("do_syscall", "", 0, 30),
                ("handle_irq", "", 10, 10),
            ]
        );
    }

    #[test]
    fn stacks_are_those_of_the_target() {
        let snapshot = snapshot();
        let of_process: Vec<_> = snapshot
            .stacks(&Target::Process(7))
            .iter()
            .map(|row| (row.ticks, row.frames.len()))
            .collect();
        assert_eq!(of_process, [(60, 1), (30, 3), (10, 1)]);
        let target = Target::Function(Place::Kernel("do_syscall".to_owned()));
        let of_function = snapshot.stacks(&target);
        assert_eq!(of_function.len(), 1);
        let labels: Vec<_> = of_function[0].frames.iter().map(Place::label).collect();
        assert_eq!(labels, ["copy_page", "do_syscall", "0x400200"]);
        assert_eq!(of_function[0].process, "worker");
    }
}
