//! The groups of samples by groupings: what tables with levels and flame graphs show of a profile.

use std::collections::BTreeMap;

use kvmprof_recording::{IDLE_PID, Mode};

use super::folded::{of_recording, root};
use super::labels::{NO_VALUE, label_name};
use super::{Grouping, Levels, Profile, StackSum, Thread};
use crate::model::{Frame, Line, NameId, NodeId};
use crate::symbolize::LabelSet;

/// A group. Processes and threads have the numbers of their recordings, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value<'a> {
    Mode(Mode),
    Vcpu(u16),
    Process(usize, i32),
    /// Its pid and its tid.
    Thread(usize, i32, i32),
    Module(NameId),
    /// Its name, its module, and whether it is the kernel's.
    Function(NameId, NameId, bool),
    Line(Line),
    Label(&'a str),
    /// Samples without such a value: of processes without the label, of frames without a known line.
    None,
}

/// Ticks that have all of this in common.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// The recording, and its number.
    pub recording: &'a Profile,
    pub number: usize,
    /// Its process, stack and mode, and the number of ticks.
    pub stack: StackSum,
    /// `None` if nothing is grouped by it.
    pub thread: Option<Thread>,
    pub vcpu: Option<u16>,
    /// Whether they are idle ticks without a sample: these have no frames.
    pub is_halted: bool,
}

impl<'a> Counted<'a> {
    /// The frames, innermost first; of a halted vCPU the note that stands for them.
    pub fn frames(&self) -> Vec<Frame<'a>> {
        match self.is_halted {
            true => vec![self.recording.code.halted()],
            false => self.recording.code.frames(self.stack.node).collect(),
        }
    }
}

impl Grouping {
    /// The group of `counted`; of those of code, that of its `frame`.
    pub fn value<'a>(&self, counted: &Counted<'a>, frame: Option<&Frame<'a>>) -> Value<'a> {
        let stack = &counted.stack;
        let recording = counted.number;
        let thread = |thread: Thread| Value::Thread(recording, thread.pid, thread.tid);
        let function =
            |frame: &Frame<'a>| Value::Function(frame.name_id, frame.module_id, frame.is_kernel);
        match self {
            Self::Mode => Value::Mode(stack.mode),
            Self::Vcpu => counted.vcpu.map_or(Value::None, Value::Vcpu),
            Self::Process => Value::Process(recording, stack.pid),
            Self::Thread => counted.thread.map_or(Value::None, thread),
            Self::Module => frame.map_or(Value::None, |frame| Value::Module(frame.module_id)),
            Self::Function => frame.map_or(Value::None, function),
            Self::Line => frame
                .and_then(|frame| frame.line)
                .map_or(Value::None, Value::Line),
            Self::Label(key) => {
                let labels = counted.recording.labels();
                let value = labels.value(stack.labels, key);
                value.map_or(Value::None, Value::Label)
            }
        }
    }
}

/// All samples and idle ticks of `profile`, with what `levels` need.
pub fn counted<'a>(profile: &'a Profile, levels: &Levels) -> impl Iterator<Item = Counted<'a>> {
    let by_parts = levels.need_parts();
    let recordings = profile.recordings().enumerate();
    recordings.flat_map(move |(number, recording)| {
        let sampled = move |stack: StackSum| Counted {
            recording,
            number,
            stack,
            thread: None,
            vcpu: None,
            is_halted: false,
        };
        let parts = by_parts.then_some(recording.parts.as_slice());
        let parts = parts.into_iter().flatten().filter_map(move |part| {
            let stack = recording.stacks.get(part.stack as usize)?;
            let thread = part.thread.map(|thread| thread as usize);
            Some(Counted {
                thread: thread.and_then(|thread| recording.threads.get(thread).copied()),
                vcpu: part.vcpu,
                ..sampled(StackSum {
                    ticks: part.ticks,
                    ..*stack
                })
            })
        });
        let whole = (!by_parts).then(|| recording.stacks().map(move |stack| sampled(*stack)));
        let halted = idle_ticks(recording, by_parts).into_iter();
        let halted = halted.map(move |(vcpu, ticks)| Counted {
            thread: Some(Thread::default()),
            vcpu,
            is_halted: true,
            ..sampled(StackSum {
                pid: IDLE_PID,
                node: NodeId::default(),
                mode: Mode::Idle,
                labels: LabelSet::default(),
                is_cut_short: false,
                ticks,
            })
        });
        whole.into_iter().flatten().chain(parts).chain(halted)
    })
}

/// The idle ticks without a sample, by vCPU if `by_vcpu` and as far as theirs are known.
fn idle_ticks(recording: &Profile, by_vcpu: bool) -> Vec<(Option<u16>, u64)> {
    let mut left = recording.idle;
    let mut ticks = Vec::new();
    if by_vcpu {
        // Those of a vCPU that are idle and have no sample.
        let idle = recording.vcpus.iter();
        let mut idle: BTreeMap<u16, u64> = idle
            .map(|(vcpu, modes)| (*vcpu, modes[Mode::Idle.index()]))
            .collect();
        for part in &recording.parts {
            let stack = recording.stacks.get(part.stack as usize);
            let is_idle = stack.is_some_and(|stack| stack.mode == Mode::Idle);
            if let Some(idle) = part
                .vcpu
                .filter(|_| is_idle)
                .and_then(|vcpu| idle.get_mut(&vcpu))
            {
                *idle = idle.saturating_sub(part.ticks);
            }
        }
        for (vcpu, idle) in idle {
            let own = idle.min(left);
            left -= own;
            ticks.push((Some(vcpu), own));
        }
    }
    ticks.push((None, left));
    ticks.retain(|(_, ticks)| *ticks > 0);
    ticks
}

/// Names groups.
pub struct GroupNames<'a> {
    profile: &'a Profile,
    /// By recording, pid and tid.
    threads: BTreeMap<(usize, i32, i32), Thread>,
}

impl<'a> GroupNames<'a> {
    pub fn new(profile: &'a Profile) -> Self {
        let threads = profile.all_threads().into_iter();
        let threads = threads.map(|(number, thread)| ((number, thread.pid, thread.tid), thread));
        Self {
            profile,
            threads: threads.collect(),
        }
    }

    /// The thread of this recording with this pid and tid.
    pub fn thread(&self, recording: usize, pid: i32, tid: i32) -> Thread {
        let known = self.threads.get(&(recording, pid, tid)).copied();
        known.unwrap_or(Thread {
            pid,
            tid,
            ..Thread::default()
        })
    }

    /// The name of the group `value` of `grouping`, as one frame of a stack has it: such as `container=4f1d`, `dd-130`, or a function's name.
    pub fn name(&self, grouping: &Grouping, value: Value<'_>) -> String {
        let text = |name: NameId| self.profile.code.text(name).to_string();
        let numbered = |number| (!self.profile.merged.is_empty()).then_some(number);
        match value {
            Value::Mode(mode) => label_name(grouping.name(), Some(mode.name())),
            Value::Vcpu(vcpu) => label_name(grouping.name(), Some(&vcpu.to_string())),
            Value::Process(number, pid) => {
                let recording = self.profile.recordings().nth(number);
                root(recording.unwrap_or(self.profile), numbered(number), pid)
            }
            Value::Thread(number, pid, tid) => {
                let thread = self.thread(number, pid, tid).label();
                let thread = of_recording(thread, numbered(number));
                label_name(grouping.name(), Some(&thread))
            }
            Value::Module(name) | Value::Function(name, ..) => text(name),
            Value::Line(line) => format!("{}:{}", text(line.file), line.line),
            Value::Label(value) => label_name(grouping.name(), Some(value)),
            Value::None if grouping.is_of_code() => NO_VALUE.to_owned(),
            Value::None => label_name(grouping.name(), None),
        }
    }
}
