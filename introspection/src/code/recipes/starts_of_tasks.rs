//! When a task was started, and how many programs it has executed.

use super::super::flow::{Access, Flow, Node, Use};
use super::super::{Code, Findings};

const TASK: &str = "task_struct";

/// Finds members of `struct task_struct`.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    if let Some(flow) = code.flow("copy_process") {
        time(code, &flow, findings);
    }
    if let Some(flow) = code.flow("begin_new_exec") {
        programs(&flow, findings);
    }
}

/// `copy_process` (`kernel/fork.c`) writes the result of `ktime_get` into the new task.
fn time(code: &Code<'_>, flow: &Flow, findings: &mut Findings) {
    let is_time = |access: &Access| {
        let value = access.value.map(|value| flow.node(value));
        let Some(Node::Result(call, _)) = value else {
            return false;
        };
        let instruction = code.instruction(call);
        let target = instruction.map(|instruction| instruction.near_branch_target());
        target.and_then(|target| code.name(target)) == Some("ktime_get")
    };
    for access in &flow.accesses {
        let is_start = access.kind == Use::Write && access.width == 8 && is_time(access);
        if let Ok(offset) = u64::try_from(access.place.offset)
            && is_start
        {
            findings.add_member(TASK, "start_time", offset);
        }
    }
}

/// `begin_new_exec` (`fs/exec.c`) adds 1 to the running task's `self_exec_id`.
fn programs(flow: &Flow, findings: &mut Findings) {
    for access in &flow.accesses {
        let place = access.place;
        let Ok(offset) = u64::try_from(place.offset) else {
            continue;
        };
        let is_next = |value| match flow.node(value) {
            Node::Sum(old, 1) => flow.node(old) == Node::Read(place.base, place.offset, 8),
            _ => false,
        };
        let is_counted = match access.kind {
            Use::Update => access.instruction.try_immediate(1).is_ok_and(|by| by == 1),
            Use::Write => access.value.is_some_and(is_next),
            Use::Read | Use::Address => false,
        };
        if is_counted && access.width == 8 && flow.per_cpu(place.base).is_some() {
            findings.add_member(TASK, "self_exec_id", offset);
        }
    }
}
