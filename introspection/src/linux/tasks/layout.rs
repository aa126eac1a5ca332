//! The layout of a kernel's data about its tasks.

use std::ops::Range;

use kvmprof_recording::tasks::TaskState;

use crate::PhysicalMemory;
use crate::image::Symbols;
use crate::image::types::{Missing, Types};
use crate::linux::view::KernelView;

/// The bits of a task's state (`include/linux/sched.h`). They are the same from 5.10 to 7.2.
mod bits {
    pub const SLEEPING: u32 = 1;
    pub const UNINTERRUPTIBLE: u32 = 2;
    pub const STOPPED: u32 = 4;
    pub const TRACED: u32 = 8;
    /// In `exit_state`, as the following one.
    pub const DEAD: u32 = 0x10;
    pub const ZOMBIE: u32 = 0x20;
    pub const PARKED: u32 = 0x40;
    /// The task isn't counted as load.
    pub const NO_LOAD: u32 = 0x400;
    /// Since 5.15: the task waits for a lock that is a spin lock without PREEMPT_RT.
    pub const LOCK_WAIT: u32 = 0x1000;
    /// Since 6.1: the task is frozen.
    pub const FROZEN: u32 = 0x8000;
}

/// The state that the kernel shows in `/proc/PID/stat` for a task with this `state` and `exit_state`
/// (`__task_state_index`, `include/linux/sched.h`).
fn state(state: u32, exit_state: u32) -> TaskState {
    const IDLE: u32 = bits::UNINTERRUPTIBLE | bits::NO_LOAD;
    if state == IDLE {
        return TaskState::Idle;
    }
    let mut all = state | exit_state;
    if all & (bits::LOCK_WAIT | bits::FROZEN) != 0 {
        all |= bits::UNINTERRUPTIBLE;
    }
    let by_bit = [
        (bits::PARKED, TaskState::Parked),
        (bits::ZOMBIE, TaskState::Zombie),
        (bits::DEAD, TaskState::Dead),
        (bits::TRACED, TaskState::Traced),
        (bits::STOPPED, TaskState::Stopped),
        (bits::UNINTERRUPTIBLE, TaskState::Uninterruptible),
        (bits::SLEEPING, TaskState::Sleeping),
    ];
    let found = by_bit.into_iter().find(|(bit, _)| all & bit != 0);
    found.map_or(TaskState::Runnable, |(_, state)| state)
}

/// Offsets in bytes, each from the start of its structure, and link-time addresses.
#[derive(Debug)]
pub struct TaskListLayout {
    /// The address of `init_task`, which the list of processes begins with.
    pub first: u64,
    /// The lists: `task_struct.tasks`, `signal` with `thread_head` in it, and `thread_node`.
    pub next: u64,
    pub signal: u64,
    pub threads: u64,
    pub next_thread: u64,
    /// `task_struct.__state` (`state` before 5.14), and `exit_state`.
    pub state: u64,
    pub exit_state: u64,
    /// `task_struct.on_cpu`, and the CPU.
    pub on_cpu: u64,
    pub cpu: u64,
    /// `task_struct.nvcsw` and `nivcsw`.
    pub switches: [u64; 2],
    /// `task_struct.sched_info.run_delay`, in kernels with CONFIG_SCHED_INFO.
    pub run_delay: Option<u64>,
    /// `task_struct.thread.sp`.
    pub stack: u64,
    /// `task_struct.start_time`.
    pub started: u64,
    /// Code whose frames are skipped to find what a task waits in (`in_sched_functions`, `kernel/sched/core.c`).
    scheduler: [Option<Range<u64>>; 2],
    /// The code at which a new task starts: `ret_from_fork`, and since 6.6 `ret_from_fork_asm`.
    pub forked: [Option<u64>; 2],
}

impl TaskListLayout {
    /// Finds the layout.
    ///
    /// # Errors
    /// The first offset or address that isn't known.
    pub fn find(symbols: &Symbols, types: &Types<'_>) -> Result<Self, Missing> {
        let [
            first,
            schedule,
            schedule_end,
            lock,
            lock_end,
            forked,
            forked_asm,
        ] = symbols.addresses_of([
            "init_task",
            "__sched_text_start",
            "__sched_text_end",
            "__lock_text_start",
            "__lock_text_end",
            "ret_from_fork",
            "ret_from_fork_asm",
        ]);
        let range = |begin: Option<u64>, end: Option<u64>| Some(begin?..end?);
        let task = types.structures("task_struct");
        let old_or_new = |new, old| task.offset_of(old).map_or_else(|| task.need(new), Ok);
        // Before 5.16, the CPU was a member of the task itself.
        let cpu = task.offset_of("thread_info.cpu");
        Ok(Self {
            first: first.ok_or(Missing::Symbol("init_task"))?,
            next: task.need("tasks")?,
            signal: task.need("signal")?,
            threads: types.need("signal_struct", "thread_head")?,
            next_thread: task.need("thread_node")?,
            state: old_or_new("__state", "state")?,
            exit_state: task.need("exit_state")?,
            on_cpu: task.need("on_cpu")?,
            cpu: cpu.map_or_else(|| task.need("cpu"), Ok)?,
            switches: [task.need("nvcsw")?, task.need("nivcsw")?],
            run_delay: task.offset_of("sched_info.run_delay"),
            stack: task.need("thread.sp")?,
            started: task.need("start_time")?,
            scheduler: [range(schedule, schedule_end), range(lock, lock_end)],
            forked: [forked, forked_asm],
        })
    }

    /// The state of the task at `task`.
    pub fn state_of<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        task: u64,
    ) -> Option<TaskState> {
        let word = |offset| view.i32(task.wrapping_add(offset)).map(i32::cast_unsigned);
        Some(state(word(self.state)?, word(self.exit_state)?))
    }

    /// The vCPU on which the task at `task` is, or was last.
    pub fn vcpu_of<M: PhysicalMemory>(&self, view: &KernelView<'_, M>, task: u64) -> Option<u16> {
        u16::try_from(view.i32(task.wrapping_add(self.cpu))?).ok()
    }

    /// Whether the code at link-time address `address` belongs to the scheduler or to a lock.
    pub fn is_scheduler(&self, address: u64) -> bool {
        let mut ranges = self.scheduler.iter().flatten();
        ranges.any(|range| range.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_those_of_proc() {
        for (bits, letter) in [
            (0, 'R'),
            (1, 'S'),
            (2, 'D'),
            // Killable; a new task; a task that is being woken.
            (0x102, 'D'),
            (0x800, 'R'),
            (0x200, 'R'),
            (0x104, 'T'),
            (8, 't'),
            (0x40, 'P'),
            (0x402, 'I'),
            // Freezable, frozen.
            (0x2001, 'S'),
            (0x8000, 'D'),
            (0x1000, 'D'),
        ] {
            assert_eq!(state(bits, 0).letter(), letter, "{bits:#x}");
        }
        assert_eq!(state(0x80, 0x20).letter(), 'Z');
        assert_eq!(state(0x80, 0x10).letter(), 'X');
    }
}
