//! The lists of all processes and of a process's threads: functions that visit all of them (`for_each_process`,
//! `for_each_process_thread`, `include/linux/sched/signal.h`).

use super::super::flow::{Flow, Node, Value};
use super::super::{Code, Findings};

/// Functions that visit all processes, and most of them all threads (`kernel/sys.c`, `kernel/signal.c`,
/// `kernel/sched/syscalls.c`).
const VISITORS: [&str; 7] = [
    "__x64_sys_setpriority",
    "__x64_sys_getpriority",
    "__do_sys_setpriority",
    "__do_sys_getpriority",
    "kill_something_info",
    "normalize_rt_tasks",
    "show_state_filter",
];

/// Finds the lists.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    let Some(signal) = findings.member("task_struct", "signal") else {
        return;
    };
    for flow in code.flows(VISITORS) {
        processes(&flow, signal, findings);
    }
    if let Some(flow) = code.flow("__x64_sys_getppid") {
        parent(code, &flow, findings);
    }
}

/// The first element of the list is read from `init_task.tasks.next`, and the task is before it. Threads are listed in
/// its `signal`.
fn processes(flow: &Flow, signal: u64, findings: &mut Findings) {
    for (element, node) in flow.values() {
        let Node::Read(base, head, 8) = node else {
            continue;
        };
        if flow.node(base) != Node::Constant(0) {
            continue;
        }
        for back in befores(flow, element) {
            // The task's `signal`, from the element.
            let Some(distance) = signal.checked_sub(back) else {
                continue;
            };
            let shared = flow.find(Node::Read(element, distance.cast_signed(), 8));
            let Some(shared) = shared else {
                continue;
            };
            findings.add_member("task_struct", "tasks", back);
            let first = head.cast_unsigned().wrapping_sub(back);
            findings.add_variable("init_task", first);
            threads(flow, shared, findings);
        }
    }
}

/// The first thread is read from `signal->thread_head.next`, and the task is before that.
fn threads(flow: &Flow, shared: Value, findings: &mut Findings) {
    for (element, node) in flow.values() {
        let Node::Read(base, head, 8) = node else {
            continue;
        };
        let Some(head) = u64::try_from(head).ok().filter(|_| base == shared) else {
            continue;
        };
        for back in befores(flow, element) {
            findings.add_member("signal_struct", "thread_head", head);
            findings.add_member("task_struct", "thread_node", back);
        }
    }
}

/// The distances of values before `element`.
fn befores(flow: &Flow, element: Value) -> impl Iterator<Item = u64> {
    flow.values().filter_map(move |(_, node)| match node {
        Node::Sum(base, distance) if base == element && distance < 0 => {
            Some(distance.unsigned_abs())
        }
        _ => None,
    })
}

/// `getppid()` (`kernel/sys.c`) passes the running task's `real_parent` on.
fn parent(code: &Code<'_>, flow: &Flow, findings: &mut Findings) {
    for call in code.calls_to(flow, "__task_pid_nr_ns") {
        if let Some((task, parent)) = flow.read_from(call.arguments[0], 8)
            && flow.per_cpu(task).is_some()
        {
            findings.add_member("task_struct", "real_parent", parent);
        }
    }
}
