//! Looks at a Linux guest's tasks: what each task does or waits for at one moment.

use crate::{COMM_LENGTH, StackEnd};

/// The state of a task, as in `/proc/PID/stat` (proc(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaskState {
    /// R: on a vCPU, or ready to run.
    #[default]
    Runnable,
    /// S: sleeps until an event or a signal.
    Sleeping,
    /// D: sleeps until an event; only a fatal signal can interrupt that, if any.
    Uninterruptible,
    /// T: stopped by a signal.
    Stopped,
    /// t: stopped by a debugger.
    Traced,
    /// X: about to be removed.
    Dead,
    /// Z: has ended, and its parent hasn't waited for it yet.
    Zombie,
    /// P: a parked thread of the kernel.
    Parked,
    /// I: a thread of the kernel that waits for work, and isn't counted as load.
    Idle,
}

impl TaskState {
    /// All states.
    pub const ALL: [Self; 9] = [
        Self::Runnable,
        Self::Sleeping,
        Self::Uninterruptible,
        Self::Stopped,
        Self::Traced,
        Self::Dead,
        Self::Zombie,
        Self::Parked,
        Self::Idle,
    ];

    /// Its letter in `/proc/PID/stat`.
    pub const fn letter(self) -> char {
        match self {
            Self::Runnable => 'R',
            Self::Sleeping => 'S',
            Self::Uninterruptible => 'D',
            Self::Stopped => 'T',
            Self::Traced => 't',
            Self::Dead => 'X',
            Self::Zombie => 'Z',
            Self::Parked => 'P',
            Self::Idle => 'I',
        }
    }

    /// The state with this letter.
    pub fn from_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.letter() == letter)
    }
}

/// The kernel stack of a task that isn't on a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TaskStack {
    /// It wasn't read in this look: it was the turn of other tasks.
    #[default]
    Unread,
    /// There is none: the task is on a vCPU, or has ended.
    Absent,
    /// The task ran while it was read.
    Changed,
    /// It was read.
    Known {
        /// The index of its innermost frame among those of the look.
        first: u32,
        /// The number of its frames.
        count: u8,
        /// How many of the innermost frames are of the scheduler and of locks. The next one is the function that waits.
        scheduler: u8,
        /// How it ends.
        end: StackEnd,
    },
}

/// A task at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Process (thread-group) id, as the guest itself would print it.
    pub pid: i32,
    /// Thread id, as the guest itself would print it.
    pub tid: i32,
    /// Its name, padded with NULs.
    pub comm: [u8; COMM_LENGTH],
    /// Its state.
    pub state: TaskState,
    /// Whether it is on a vCPU.
    pub is_on_vcpu: bool,
    /// The vCPU on which it is, or was last.
    pub vcpu: u16,
    /// The number of its context switches so far, voluntary or not. A task that isn't on a vCPU hasn't run while this is the
    /// same.
    pub switches: u64,
    /// How long it was runnable so far without being on a vCPU, in ns of the guest (`sched_info.run_delay`); `None` if the guest's kernel
    /// doesn't count it.
    pub run_delay: Option<u64>,
    /// Its stack, which shows where it waits.
    pub stack: TaskStack,
}

/// All tasks of a guest at one moment, except the idle tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskLook {
    /// The time of the look, in ns of the host's CLOCK_MONOTONIC.
    pub time: u64,
    /// The vCPU that stood still for the look.
    pub vcpu: u16,
    /// How long the vCPU stood still, in ns.
    pub duration: u64,
    /// Whether it has all tasks. It doesn't if there were more than the maximum, or if the guest was changing its lists of tasks.
    pub is_complete: bool,
    /// The tasks in the order of the kernel's list, with those of a process together.
    pub tasks: Vec<Task>,
    /// The frames of their stacks, each innermost first.
    pub frames: Vec<u64>,
}

impl TaskLook {
    /// The frames of `stack`, innermost first, in the form of a sample's; empty if it isn't known.
    pub fn frames_of(&self, stack: TaskStack) -> &[u64] {
        let TaskStack::Known { first, count, .. } = stack else {
            return &[];
        };
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let end = first.saturating_add(usize::from(count));
        self.frames.get(first..end).unwrap_or_default()
    }

    /// Removes all tasks, and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.tasks.clear();
        self.frames.clear();
        self.is_complete = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_letter_of_its_own() {
        for state in TaskState::ALL {
            assert_eq!(TaskState::from_letter(state.letter()), Some(state));
        }
        assert_eq!(TaskState::from_letter('W'), None);
    }

    #[test]
    fn frames_outside_the_look_are_missing() {
        let look = TaskLook {
            frames: vec![1, 2, 3],
            ..TaskLook::default()
        };
        let stack = |first, count| TaskStack::Known {
            first,
            count,
            scheduler: 0,
            end: StackEnd::Complete,
        };
        assert_eq!(look.frames_of(stack(1, 2)), [2, 3]);
        assert!(look.frames_of(stack(2, 2)).is_empty());
        assert!(look.frames_of(stack(u32::MAX, 255)).is_empty());
        assert!(look.frames_of(TaskStack::Unread).is_empty());
    }
}
