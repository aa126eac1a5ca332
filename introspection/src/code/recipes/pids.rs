//! A task's ids in namespaces, and its process group: `__task_pid_nr_ns(task, type, namespace)` (`kernel/pid.c`).

use iced_x86::Mnemonic;

use super::super::flow::{Flow, Use, Value};
use super::super::{Code, Findings};

/// Finds the members on the way from a task to an id.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    let Some(flow) = code.flow("__task_pid_nr_ns") else {
        return;
    };
    let is_task = |value: Value| flow.is_argument(value, 0) || flow.per_cpu(value).is_some();
    // `task->signal->pids[type]` for a process, and `task->thread_pid` for a thread, also of the running task.
    let pids = flow.accesses.iter().find_map(|access| {
        let is_array = access.place.scale == 8 && access.kind != Use::Write;
        let (task, signal) = flow.read_from(access.place.base, 8).filter(|_| is_array)?;
        let offset = u64::try_from(access.place.offset).ok()?;
        is_task(task).then_some((signal, offset))
    });
    let of_tasks = flow.accesses.iter().filter_map(|access| {
        let is_word = access.width == 8 && access.place.scale == 0;
        let is_it = is_word && is_task(access.place.base);
        is_it.then(|| u64::try_from(access.place.offset).ok())?
    });
    let mut threads = of_tasks.filter(|offset| pids.is_none_or(|(signal, _)| *offset != signal));
    if let Some(thread) = threads.next() {
        findings.add_member("task_struct", "thread_pid", thread);
    }
    if let Some((signal, offset)) = pids {
        findings.add_member("task_struct", "signal", signal);
        findings.add_member("signal_struct", "pids", offset);
    }
    for access in &flow.accesses {
        numbers(
            &flow,
            access.place.base,
            access.place.offset,
            access.width,
            findings,
        );
    }
}

/// `pid_nr_ns(pid, namespace)` (`kernel/pid.c`) compares the pid's level with the namespace's, whose place among the
/// numbers is found by a shift.
pub fn find_levels(code: &Code<'_>, findings: &mut Findings) {
    let Some(flow) = code.flow("pid_nr_ns") else {
        return;
    };
    if let Some(pid) = flow.argument(0)
        && let Some(level) = flow.reads_of(pid, 4).next()
    {
        findings.add_member("pid", "level", level);
    }
    let Some(function) = code.function("pid_nr_ns") else {
        return;
    };
    for instruction in code.instructions(function) {
        let bits = instruction
            .try_immediate(1)
            .ok()
            .filter(|bits| (3..=6).contains(bits));
        if let (Mnemonic::Shl, Some(bits)) = (instruction.mnemonic(), bits) {
            findings.add_size("upid", 1 << bits);
        }
    }
}

/// The user of the running task: `getuid()` (`kernel/sys.c`) passes `current->cred->uid` on.
pub fn find_user(code: &Code<'_>, findings: &mut Findings) {
    let Some(flow) = code.flow("__x64_sys_getuid") else {
        return;
    };
    for call in &flow.calls {
        if let Some((credentials, user)) = flow.read_from(call.arguments[1], 4)
            && let Some((task, offset)) = flow.read_from(credentials, 8)
            && flow.per_cpu(task).is_some()
        {
            findings.add_member("task_struct", "cred", offset);
            findings.add_member("cred", "uid", user);
        }
    }
}

/// `pid->numbers[level]`: the number of 4 bytes, and after it the namespace, which is compared.
fn numbers(flow: &Flow, base: Value, offset: i64, width: u8, findings: &mut Findings) {
    if width != 4 || flow.is_argument(base, 0) || flow.is_argument(base, 2) {
        return;
    }
    let Ok(offset) = u64::try_from(offset) else {
        return;
    };
    if flow
        .reads_of(base, 8)
        .any(|namespace| namespace == offset + 8)
        && offset > 8
    {
        findings.add_member("pid", "numbers", offset);
        findings.add_member("upid", "nr", 0);
    }
}
