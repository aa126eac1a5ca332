//! The mode of a vCPU in the kernel, and whether it can be preempted.

use kvmprof_recording::{Mode, Preemption};

use super::cpu::Task;
use super::task_layout::SOFTIRQ;
use super::view::KernelView;
use crate::PhysicalMemory;

/// Whether the scheduler could preempt the code at privilege level `cpl`, with this `preempt_count`. It can't if one of
/// `bits` is set in the count. 0 for `bits` means that the kernel doesn't count everything that disables preemption.
pub fn preemption(cpl: u8, bits: u32, count: Option<u32>) -> Preemption {
    match count {
        _ if bits == 0 => Preemption::Unknown,
        _ if cpl != 0 => Preemption::On,
        Some(count) if count & bits == 0 => Preemption::On,
        Some(_) => Preemption::Off,
        None => Preemption::Unknown,
    }
}

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
