//! Whether a task runs, waits or has ended.

use super::super::flow::Use;
use super::super::{Code, Findings};

const TASK: &str = "task_struct";

/// Finds members of `struct task_struct`.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    // Each sets the running task's state (`kernel/time/sleep_timeout.c`): `TASK_INTERRUPTIBLE`, `TASK_UNINTERRUPTIBLE`.
    for (name, state) in [
        ("schedule_timeout_interruptible", 1),
        ("schedule_timeout_uninterruptible", 2),
    ] {
        let Some(flow) = code.flow(name) else {
            continue;
        };
        for access in &flow.accesses {
            let is_state = access.kind == Use::Write
                && access.instruction.try_immediate(1).ok() == Some(state)
                && flow.per_cpu(access.place.base).is_some();
            if let Ok(offset) = u64::try_from(access.place.offset)
                && is_state
            {
                findings.add_member(TASK, "__state", offset);
            }
        }
    }
    // `kick_process(task)` (`kernel/sched/core.c`) begins with the task's CPU.
    if let Some(flow) = code.flow("kick_process")
        && let Some(task) = flow.argument(0)
        && let Some(cpu) = flow.reads_of(task, 4).next()
    {
        findings.add_member(TASK, "thread_info.cpu", cpu);
    }
    // `mutex_spin_on_owner(lock, owner, ...)` (`kernel/locking/mutex.c`) reads whether the owner is on a CPU. That was an
    // int, and is a byte since 7.0.
    if let Some(flow) = code.flow("mutex_spin_on_owner")
        && let Some(owner) = flow.argument(1)
    {
        let mut reads = flow.reads_of(owner, 1).chain(flow.reads_of(owner, 4));
        let cpu = findings.member(TASK, "thread_info.cpu");
        if let Some(on_cpu) = reads.find(|offset| Some(*offset) != cpu) {
            findings.add_member(TASK, "on_cpu", on_cpu);
        }
    }
    // `finish_task_switch(previous)` (`kernel/sched/core.c`) says that the previous task isn't on a CPU any more: the first
    // number in it that becomes 0.
    if let Some(flow) = code.flow("finish_task_switch")
        && let Some(previous) = flow.argument(0)
    {
        let mut cleared = flow.accesses.iter().filter(|access| {
            matches!(access.width, 1 | 4)
                && access.kind == Use::Write
                && access.place.base == previous
                && access.instruction.try_immediate(1).ok() == Some(0)
        });
        let on_cpu = cleared.next().map(|access| access.place.offset);
        if let Some(on_cpu) = on_cpu.and_then(|offset| u64::try_from(offset).ok()) {
            findings.add_member(TASK, "on_cpu", on_cpu);
        }
    }
    // `wait_consider_task(options, ptrace, task)` (`kernel/exit.c`) begins with the task's `exit_state`.
    if let Some(flow) = code.flow("wait_consider_task")
        && let Some(task) = flow.argument(2)
        && let Some(exit_state) = flow.reads_of(task, 4).next()
    {
        findings.add_member(TASK, "exit_state", exit_state);
    }
    // `do_exit` (`kernel/exit.c`) counts the process's threads that live.
    let signal = findings.member(TASK, "signal");
    if let Some(flow) = code.flow("do_exit")
        && let Some(signal) = signal
    {
        for access in &flow.accesses {
            let is_count = access.kind == Use::Update && access.width == 4 && access.is_atomic();
            let of_task = flow.read_from(access.place.base, 8).filter(|_| is_count);
            if let Some((task, offset)) = of_task
                && offset == signal
                && flow.per_cpu(task).is_some()
                && let Ok(live) = u64::try_from(access.place.offset)
            {
                findings.add_member("signal_struct", "live", live);
            }
        }
    }
}
