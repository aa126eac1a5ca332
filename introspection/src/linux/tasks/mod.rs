//! Reads all tasks of a Linux guest from its memory, at one moment.
//!
//! One vCPU is stopped meanwhile, but others may run. So each stack is checked: a task that hasn't left a vCPU
//! meanwhile, and isn't on one, hasn't run while its stack was read. A task that hasn't run since the previous look
//! keeps its stack from then, so that few stacks are read.

mod layout;
#[cfg(test)]
mod tests;

use kvmprof_recording::file::{MAX_FRAMES, MAX_TASKS};
use kvmprof_recording::tasks::{Task, TaskLook, TaskStack};
use kvmprof_recording::{DEFAULT_STACK_FRAMES, StackEnd};

use super::LinuxKnowledge;
use super::modules::LoadedModules;
use super::stacks::SwitchedTask;
use super::view::KernelView;
use crate::unwind::Stack;
use crate::{PhysicalMemory, Registers, padded};

pub use layout::TaskListLayout;

/// Maximum number of stacks that one look reads. Later looks read the others.
const MAX_UNWOUND: usize = 256;
/// Number of tasks of the previous look that are compared to find one task. The kernel's list keeps its order, so a
/// task is missed only if more tasks in a row have ended.
const WINDOW: usize = 32;

/// Distinguishes tasks over several looks, and shows whether a task has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    /// The address of its `task_struct`.
    task: u64,
    started: u64,
    switches: u64,
}

/// Which tasks a look reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskScope {
    /// Only the main thread of the first process, which runs the kernel's initcalls and then is init. Needs few reads.
    FirstThread,
    /// All tasks.
    #[default]
    All,
}

/// Looks at the tasks of one guest, and stores the last look.
#[derive(Debug)]
pub struct TaskReader {
    scope: TaskScope,
    look: TaskLook,
    keys: Vec<Key>,
    before: TaskLook,
    keys_before: Vec<Key>,
    /// The index in the list at which the next look begins to read stacks.
    turn: usize,
    stack: Box<Stack>,
}

impl Default for TaskReader {
    /// A reader without a look. Allocates all memory that it will ever need.
    fn default() -> Self {
        let look = || TaskLook {
            tasks: Vec::with_capacity(MAX_TASKS),
            frames: Vec::with_capacity(MAX_FRAMES),
            ..TaskLook::default()
        };
        Self {
            scope: TaskScope::All,
            look: look(),
            keys: Vec::with_capacity(MAX_TASKS),
            before: look(),
            keys_before: Vec::with_capacity(MAX_TASKS),
            turn: 0,
            stack: Box::default(),
        }
    }
}

impl TaskReader {
    /// The last look.
    pub fn look(&self) -> &TaskLook {
        &self.look
    }

    /// The last look, for setting its time and its vCPU.
    pub fn look_mut(&mut self) -> &mut TaskLook {
        &mut self.look
    }

    /// Sets the tasks that later looks read.
    pub fn set_scope(&mut self, scope: TaskScope) {
        self.scope = scope;
    }

    /// Forgets all looks, because the guest restarts.
    pub fn forget(&mut self) {
        self.look.clear();
        self.keys.clear();
    }
}

/// A kernel at the time of a look.
struct Moment<'a, M> {
    layout: &'a TaskListLayout,
    view: KernelView<'a, M>,
    registers: &'a Registers,
    modules: &'a LoadedModules,
}

impl LinuxKnowledge {
    /// Whether this kernel's tasks can be read.
    pub(crate) fn has_task_list(&self) -> bool {
        self.task_list.is_some()
    }

    /// Looks at all tasks, while a vCPU is stopped with `registers`. False while the kernel's slide is unknown, or if
    /// its tasks can't be read.
    ///
    /// Takes no lock and allocates nothing. Makes a bounded number of reads for any contents of guest memory.
    pub(super) fn look_at_tasks<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        modules: &LoadedModules,
        reader: &mut TaskReader,
    ) -> bool {
        let (Some(layout), Some(view)) = (&self.task_list, self.view(memory, registers)) else {
            return false;
        };
        let moment = Moment {
            layout,
            view,
            registers,
            modules,
        };
        std::mem::swap(&mut reader.look, &mut reader.before);
        std::mem::swap(&mut reader.keys, &mut reader.keys_before);
        reader.look.clear();
        reader.keys.clear();
        reader.look.is_complete = moment.read_lists(reader).is_some();
        reader.keep_stacks();
        moment.read_stacks(memory, reader);
        true
    }
}

impl<M: PhysicalMemory> Moment<'_, M> {
    /// Adds the tasks to the look. `None` if they are incomplete: not all are requested, there are too many, or a list
    /// is broken.
    fn read_lists(&self, reader: &mut TaskReader) -> Option<()> {
        let layout = self.layout;
        let first = self.view.linked(layout.first);
        let mut process = first;
        // Each step adds a task: the room for them bounds both loops.
        loop {
            let next = self.view.pointer(process, layout.next)?;
            process = next.wrapping_sub(layout.next);
            if process == first {
                return Some(());
            }
            self.read_task(process, reader)?;
            if reader.scope == TaskScope::FirstThread {
                return None;
            }
            let signal = self.view.pointer(process, layout.signal)?;
            let head = signal.wrapping_add(layout.threads);
            let mut link = self.view.pointer(head, 0)?;
            while link != head {
                let thread = link.wrapping_sub(layout.next_thread);
                if thread != process {
                    self.read_task(thread, reader)?;
                }
                let next = self.view.pointer(link, 0)?;
                if next == link {
                    return None;
                }
                link = next;
            }
        }
    }

    fn read_task(&self, task: u64, reader: &mut TaskReader) -> Option<()> {
        let (layout, names, view) = (self.layout, &self.view.linux().tasks, &self.view);
        if reader.look.tasks.len() >= MAX_TASKS {
            return None;
        }
        let at = |offset: u64| task.wrapping_add(offset);
        let word = |offset| view.i32(at(offset)).map(i32::cast_unsigned);
        let comm = view.read_array(at(names.comm.ok()?))?;
        let key = self.key(task)?;
        let is_on_vcpu = word(layout.on_cpu)? != 0;
        let has_ended = word(layout.exit_state)? != 0;
        let run_delay = layout.run_delay.map(|offset| view.u64(at(offset)));
        reader.look.tasks.push(Task {
            pid: view.i32(at(names.tgid.ok()?))?,
            tid: view.i32(at(names.pid.ok()?))?,
            comm: padded(comm),
            state: layout.state_of(view, task)?,
            is_on_vcpu,
            vcpu: layout.vcpu_of(view, task)?,
            switches: key.switches,
            run_delay: run_delay.flatten(),
            stack: match is_on_vcpu || has_ended {
                true => TaskStack::Absent,
                false => TaskStack::Unread,
            },
        });
        reader.keys.push(key);
        Some(())
    }

    fn key(&self, task: u64) -> Option<Key> {
        let read = |offset| self.view.u64(task.wrapping_add(offset));
        let [own, forced] = self.layout.switches;
        Some(Key {
            task,
            started: read(self.layout.started)?,
            switches: read(own)?.wrapping_add(read(forced)?),
        })
    }

    /// Reads the stacks that are still unread, up to the maximum of a look.
    fn read_stacks(&self, memory: &M, reader: &mut TaskReader) {
        let count = reader.look.tasks.len();
        let begin = if reader.turn < count { reader.turn } else { 0 };
        let mut left = MAX_UNWOUND;
        for place in (begin..count).chain(0..begin) {
            let task = reader.look.tasks.get(place).map(|task| task.stack);
            let (Some(TaskStack::Unread), Some(key)) = (task, reader.keys.get(place).copied())
            else {
                continue;
            };
            if left == 0 {
                reader.turn = place;
                return;
            }
            left -= 1;
            let stack = self.read_stack(memory, key, reader);
            if let Some(task) = reader.look.tasks.get_mut(place) {
                task.stack = stack;
            }
        }
    }

    fn read_stack(&self, memory: &M, key: Key, reader: &mut TaskReader) -> TaskStack {
        let (layout, linux) = (self.layout, self.view.linux());
        let Some(sp) = self.view.u64(key.task.wrapping_add(layout.stack)) else {
            return TaskStack::Changed;
        };
        let stack = &mut *reader.stack;
        stack.clear();
        linux.unwind_switched(
            memory,
            self.registers,
            &SwitchedTask {
                task: key.task,
                sp,
                forked: layout.forked,
            },
            self.modules,
            stack,
        );
        let on_cpu = self.view.i32(key.task.wrapping_add(layout.on_cpu));
        if on_cpu != Some(0) || self.key(key.task) != Some(key) {
            return TaskStack::Changed;
        }
        let slide = linux.slide().unwrap_or(0);
        let frames = stack.frames();
        let is_scheduler = |frame: &&u64| layout.is_scheduler(frame.wrapping_sub(slide));
        let scheduler = frames.iter().take_while(is_scheduler).count();
        let scheduler = u8::try_from(scheduler).unwrap_or(u8::MAX);
        let end = stack.summary().kernel_end;
        keep(&mut reader.look, frames, scheduler, end)
    }
}

/// Adds `frames` with this `end` to `look`. The first `scheduler` frames belong to the scheduler.
fn keep(look: &mut TaskLook, frames: &[u64], scheduler: u8, end: StackEnd) -> TaskStack {
    let has_room = look.frames.len() + frames.len() <= MAX_FRAMES;
    let count = u8::try_from(frames.len()).ok();
    match (u32::try_from(look.frames.len()), count) {
        (Ok(first), Some(count)) if has_room => {
            look.frames.extend_from_slice(frames);
            TaskStack::Known {
                first,
                count,
                scheduler,
                end,
            }
        }
        _ => TaskStack::Unread,
    }
}

impl TaskReader {
    /// Copies the stacks of tasks that haven't run meanwhile from the previous look.
    fn keep_stacks(&mut self) {
        let mut begin = 0_usize;
        for (place, key) in self.keys.iter().enumerate() {
            let end = begin.saturating_add(WINDOW).min(self.keys_before.len());
            let candidates = self.keys_before.get(begin..end).unwrap_or_default();
            let Some(found) = candidates.iter().position(|old| old.task == key.task) else {
                continue;
            };
            let found = begin + found;
            begin = found + 1;
            let is_same = self.keys_before.get(found) == Some(key);
            let (Some(old), true) = (self.before.tasks.get(found), is_same) else {
                continue;
            };
            let TaskStack::Known { scheduler, end, .. } = old.stack else {
                continue;
            };
            let is_unread = |task: &Task| task.stack == TaskStack::Unread && task.tid == old.tid;
            if self.look.tasks.get(place).is_some_and(is_unread) {
                let frames = self.before.frames_of(old.stack);
                let stack = keep(&mut self.look, frames, scheduler, end);
                if let Some(task) = self.look.tasks.get_mut(place) {
                    task.stack = stack;
                }
            }
        }
    }
}

const _: () = assert!(DEFAULT_STACK_FRAMES <= u8::MAX as usize);
