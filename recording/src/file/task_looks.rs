//! Blocks of looks at the guest's tasks. Each stands for itself: what its looks refer to is in the same block.

use std::collections::HashMap;

use crate::tasks::{Task, TaskLook, TaskStack, TaskState};
use crate::{COMM_LENGTH, DEFAULT_STACK_FRAMES, StackEnd};

use super::varint::{Numbers, push, push_comm, push_flags, push_frames, push_signed};

/// The size at which a block is full, in bytes.
const FULL: usize = 64 << 10;
/// Maximum number of tasks in a look, and of all frames of their stacks.
pub const MAX_TASKS: usize = 4096;
/// See [`MAX_TASKS`].
pub const MAX_FRAMES: usize = 64 * MAX_TASKS;

/// The records of a block, by their first byte.
mod record {
    /// The next thread: pid, tid, length of its name, its name.
    pub const THREAD: u8 = 1;
    /// The next stack: frames, those of the scheduler, how it ends, and the frames, each by its distance from the one before.
    pub const STACK: u8 = 2;
    /// A look: vCPU, time since the last one, duration, whether it is complete, how many tasks, and these.
    pub const LOOK: u8 = 3;
}

/// In a task's flags: it is on a vCPU.
const ON_VCPU: u8 = 1;
/// In a task's flags: its run delay follows.
const HAS_DELAY: u8 = 2;
/// The numbers of stacks that tasks have if their stack isn't in the block.
const UNREAD: u64 = 0;
const ABSENT: u64 = 1;
const CHANGED: u64 = 2;
const FIRST_STACK: u64 = 3;

type Thread = (i32, i32, [u8; COMM_LENGTH]);

/// Puts looks into blocks.
#[derive(Debug, Default)]
pub struct TasksEncoder {
    bytes: Vec<u8>,
    threads: HashMap<Thread, u64>,
    stacks: HashMap<Vec<u64>, u64>,
    time: u64,
}

impl TasksEncoder {
    /// Adds the tasks of `look` whose processes are `wanted`.
    pub fn push(&mut self, look: &TaskLook, wanted: impl Fn(i32) -> bool) {
        let mut body = Vec::new();
        let mut count = 0;
        for task in look.tasks.iter().filter(|task| wanted(task.pid)) {
            self.push_task(&mut body, look, task);
            count += 1;
        }
        let bytes = &mut self.bytes;
        bytes.push(record::LOOK);
        push(bytes, look.vcpu.into());
        push_signed(bytes, look.time.wrapping_sub(self.time).cast_signed());
        push(bytes, look.duration);
        bytes.push(u8::from(look.is_complete));
        push(bytes, count);
        bytes.append(&mut body);
        self.time = look.time;
    }

    fn push_task(&mut self, body: &mut Vec<u8>, look: &TaskLook, task: &Task) {
        let thread = self.thread((task.pid, task.tid, task.comm));
        let stack = match task.stack {
            TaskStack::Unread => UNREAD,
            TaskStack::Absent => ABSENT,
            TaskStack::Changed => CHANGED,
            TaskStack::Known { scheduler, end, .. } => {
                FIRST_STACK + self.stack(look.frames_of(task.stack), scheduler, end)
            }
        };
        push(body, thread);
        // Letters are ASCII.
        body.push(u8::try_from(task.state.letter()).unwrap_or(b'R'));
        let flags = [
            (task.is_on_vcpu, ON_VCPU),
            (task.run_delay.is_some(), HAS_DELAY),
        ];
        push_flags(body, flags);
        push(body, task.vcpu.into());
        push(body, task.switches);
        if let Some(delay) = task.run_delay {
            push(body, delay);
        }
        push(body, stack);
    }

    fn thread(&mut self, thread: Thread) -> u64 {
        let next = self.threads.len() as u64;
        *self.threads.entry(thread).or_insert_with(|| {
            let (pid, tid, comm) = thread;
            let bytes = &mut self.bytes;
            bytes.push(record::THREAD);
            push_signed(bytes, pid.into());
            push_signed(bytes, tid.into());
            push_comm(bytes, &comm);
            next
        })
    }

    fn stack(&mut self, frames: &[u64], scheduler: u8, end: StackEnd) -> u64 {
        let count = u8::try_from(frames.len()).unwrap_or(u8::MAX);
        let head = [count, scheduler.min(count), end as u8];
        let [a, b, c] = head.map(u64::from);
        let mut key = vec![a | b << 8 | c << 16];
        key.extend(frames);
        if let Some(index) = self.stacks.get(&key) {
            return *index;
        }
        let bytes = &mut self.bytes;
        bytes.push(record::STACK);
        bytes.extend(head);
        push_frames(bytes, frames);
        let index = self.stacks.len() as u64;
        self.stacks.insert(key, index);
        index
    }

    /// True when the block should be taken.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }

    /// True when there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes the block, still unpacked. Later looks go into the next one.
    pub fn take(&mut self) -> Vec<u8> {
        self.threads.clear();
        self.stacks.clear();
        self.time = 0;
        std::mem::take(&mut self.bytes)
    }
}

struct Stack {
    scheduler: u8,
    end: StackEnd,
    frames: Vec<u64>,
}

/// Reads a block: hands each look to `each`. `None` when the block is invalid. What came before the fault has been delivered.
pub fn decode(bytes: &[u8], mut each: impl FnMut(&TaskLook)) -> Option<()> {
    let mut numbers = Numbers(bytes);
    let mut threads: Vec<Thread> = Vec::new();
    let mut stacks: Vec<Stack> = Vec::new();
    let mut time = 0_u64;
    let mut look = TaskLook::default();
    while !numbers.is_empty() {
        match numbers.byte()? {
            record::THREAD => threads.push(decode_thread(&mut numbers)?),
            record::STACK => stacks.push(decode_stack(&mut numbers)?),
            record::LOOK => {
                look.clear();
                look.vcpu = numbers.next_as()?;
                time = time.wrapping_add_signed(numbers.next_signed()?);
                look.time = time;
                look.duration = numbers.next()?;
                look.is_complete = numbers.byte()? & 1 != 0;
                let count: usize = numbers.next_as()?;
                if count > MAX_TASKS {
                    return None;
                }
                for _ in 0..count {
                    let task = decode_task(&mut numbers, &threads, &stacks, &mut look.frames)?;
                    look.tasks.push(task);
                }
                each(&look);
            }
            _ => return None,
        }
    }
    Some(())
}

fn decode_thread(numbers: &mut Numbers<'_>) -> Option<Thread> {
    Some((numbers.pid()?, numbers.pid()?, numbers.comm()?))
}

fn decode_stack(numbers: &mut Numbers<'_>) -> Option<Stack> {
    let (count, scheduler) = (numbers.byte()?, numbers.byte()?);
    let end = *StackEnd::ALL.get(usize::from(numbers.byte()?))?;
    if usize::from(count) > DEFAULT_STACK_FRAMES || scheduler > count {
        return None;
    }
    let mut frames = Vec::new();
    numbers.frames(count.into(), &mut frames)?;
    Some(Stack {
        scheduler,
        end,
        frames,
    })
}

fn decode_task(
    numbers: &mut Numbers<'_>,
    threads: &[Thread],
    stacks: &[Stack],
    frames: &mut Vec<u64>,
) -> Option<Task> {
    let thread: usize = numbers.next_as()?;
    let (pid, tid, comm) = *threads.get(thread)?;
    let state = TaskState::from_letter(numbers.byte()?.into())?;
    let flags = numbers.byte()?;
    let vcpu = numbers.next_as()?;
    let switches = numbers.next()?;
    let run_delay = match flags & HAS_DELAY {
        0 => None,
        _ => Some(numbers.next()?),
    };
    let stack = match numbers.next()? {
        UNREAD => TaskStack::Unread,
        ABSENT => TaskStack::Absent,
        CHANGED => TaskStack::Changed,
        number => {
            let index = usize::try_from(number - FIRST_STACK).ok()?;
            let stack = stacks.get(index)?;
            let first = u32::try_from(frames.len()).ok()?;
            if frames.len() + stack.frames.len() > MAX_FRAMES {
                return None;
            }
            frames.extend(&stack.frames);
            TaskStack::Known {
                first,
                count: u8::try_from(stack.frames.len()).ok()?,
                scheduler: stack.scheduler,
                end: stack.end,
            }
        }
    };
    Some(Task {
        pid,
        tid,
        comm,
        state,
        is_on_vcpu: flags & ON_VCPU != 0,
        vcpu,
        switches,
        run_delay,
        stack,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tasks() -> impl Strategy<Value = Vec<(Task, u8)>> {
        let state = prop::sample::select(TaskState::ALL.to_vec());
        let rest = any::<(bool, u16, u64, Option<u64>)>();
        let names = (0..5_i32, any::<i32>(), any::<[u8; 3]>(), state);
        let task = (names, rest, 0..6_u8);
        let task = task.prop_map(|((pid, tid, name, state), rest, kind)| {
            let (is_on_vcpu, vcpu, switches, run_delay) = rest;
            let mut comm = [0; COMM_LENGTH];
            comm[..3].copy_from_slice(&name.map(|byte| byte | 1));
            let task = Task {
                pid,
                tid,
                comm,
                state,
                is_on_vcpu,
                vcpu,
                switches,
                run_delay,
                stack: TaskStack::Unread,
            };
            (task, kind)
        });
        prop::collection::vec(task, 0..20)
    }

    fn look(time: u64, tasks: &[(Task, u8)]) -> TaskLook {
        let mut look = TaskLook {
            time,
            vcpu: 3,
            duration: 700,
            is_complete: time.is_multiple_of(2),
            ..TaskLook::default()
        };
        for (task, kind) in tasks {
            let first = u32::try_from(look.frames.len()).unwrap();
            let stack = match kind {
                0 => TaskStack::Unread,
                1 => TaskStack::Absent,
                2 => TaskStack::Changed,
                count => {
                    let count = u64::from(*count);
                    let base = 0xffff_ffff_8100_0000 + count;
                    look.frames
                        .extend((0..count).map(|frame| base + frame * 77));
                    TaskStack::Known {
                        first,
                        count: *kind,
                        scheduler: 2,
                        end: StackEnd::Complete,
                    }
                }
            };
            look.tasks.push(Task { stack, ..*task });
        }
        look
    }

    proptest! {
        #[test]
        fn looks_round_trip(
            all in prop::collection::vec((any::<u64>(), tasks()), 0..6),
            cut in 0..1000_usize,
        ) {
            let looks: Vec<_> = all.iter().map(|(time, tasks)| look(*time, tasks)).collect();
            let mut encoder = TasksEncoder::default();
            looks.iter().for_each(|look| encoder.push(look, |_| true));
            let bytes = encoder.take();
            prop_assert!(encoder.is_empty());
            let mut read = Vec::new();
            prop_assert!(decode(&bytes, |look| read.push(look.clone())).is_some());
            prop_assert_eq!(&read, &looks);
            // A truncated block gives a part of its looks, and no panic.
            let mut part = Vec::new();
            let _ = decode(&bytes[..cut.min(bytes.len())], |look| part.push(look.clone()));
            prop_assert!(looks.starts_with(&part));
        }
    }

    #[test]
    fn only_selected_processes_are_kept() {
        let tasks = [1, 2, 1].map(|pid| Task {
            pid,
            ..Task::default()
        });
        let mut encoder = TasksEncoder::default();
        encoder.push(&look(7, &tasks.map(|task| (task, 0))), |pid| pid == 2);
        let mut pids = Vec::new();
        decode(&encoder.take(), |look| {
            pids.extend(look.tasks.iter().map(|task| task.pid))
        })
        .unwrap();
        assert_eq!(pids, [2]);
    }

    #[test]
    fn a_look_with_too_many_tasks_or_a_missing_stack_is_refused() {
        let mut bytes = vec![record::LOOK, 0, 0, 0, 1];
        push(&mut bytes, MAX_TASKS as u64 + 1);
        assert_eq!(decode(&bytes, |_| {}), None);
        let thread = [record::THREAD, 2, 2, 1, b'a'];
        let task = |stack| {
            let look = [record::LOOK, 0, 0, 0, 1, 1, 0, b'S', 0, 0, 5, stack];
            [&thread[..], &look].concat()
        };
        assert_eq!(decode(&task(2), |_| {}), Some(()));
        assert_eq!(decode(&task(3), |_| {}), None);
    }
}
