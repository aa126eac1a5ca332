//! The mode of a vCPU in the kernel.

use kvmprof_recording::Mode;

use super::cpu::Task;
use super::task_layout::SOFTIRQ;
use super::view::KernelView;
use crate::PhysicalMemory;

/// The mode of a vCPU in the kernel that isn't halted, with this `preempt_count`.
pub fn kernel_mode<M: PhysicalMemory>(
    view: &KernelView<'_, M>,
    preempt_count: Option<u32>,
    task: Option<&Task>,
) -> Mode {
    let linux = view.linux();
    let has = |count: Option<u32>, bits: u32| count.is_some_and(|count| count & bits != 0);
    let softirqs = task.zip(linux.tasks.softirq_count);
    let softirqs = softirqs.and_then(|(task, offset)| view.i32(task.address.wrapping_add(offset)));
    let softirqs = softirqs.map(i32::cast_unsigned);
    if has(preempt_count, linux.addresses.interrupts) || has(softirqs, SOFTIRQ) {
        return Mode::Interrupt;
    }
    // Before tasks are scheduled, the kernel's start-up has pid 0.
    let scheduling = || {
        let state = linux.addresses.system_state;
        let state = state.and_then(|state| view.variable_u32(state));
        state.is_none_or(|state| state >= linux.addresses.scheduling)
    };
    match task {
        Some(Task { thread: 0, .. }) if scheduling() => Mode::Idle,
        _ => Mode::Kernel,
    }
}
