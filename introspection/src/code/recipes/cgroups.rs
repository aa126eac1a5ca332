//! A task's cgroup, and its name: `struct css_set`, `struct cgroup` (`include/linux/cgroup-defs.h`) and
//! `struct kernfs_node` (`include/linux/kernfs.h`).

use super::super::flow::{Flow, Value};
use super::super::{Code, Findings};

/// Finds the members on the way from a task to the name of its cgroup.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    // `cgroup_enter_frozen` and `cgroup_leave_frozen` (`kernel/cgroup/freezer.c`) pass the running task's cgroup on.
    for flow in code.flows(["cgroup_enter_frozen", "cgroup_leave_frozen"]) {
        for call in code.calls_to(&flow, "cgroup_update_frozen") {
            of_running_task(&flow, call.arguments[0], findings);
        }
    }
    // `bpf_get_current_cgroup_id` (`kernel/bpf/helpers.c`) returns `cgroup->kn->id` of the running task.
    if let Some(flow) = code.flow("bpf_get_current_cgroup_id") {
        for returned in &flow.returned {
            if let Some((node, _)) = flow.read_from(*returned, 8)
                && let Some((cgroup, offset)) = flow.read_from(node, 8)
                && of_running_task(&flow, cgroup, findings)
            {
                findings.add_member("cgroup", "kn", offset);
            }
        }
    }
    // `cgroup_path_ns_locked(cgroup, ...)` (`kernel/cgroup/cgroup.c`), which may be a part of `cgroup_path_ns`.
    for flow in code.flows(["cgroup_path_ns_locked", "cgroup_path_ns"]) {
        for call in code.calls_to(&flow, "kernfs_path_from_node") {
            if let Some((cgroup, offset)) = flow.read_from(call.arguments[0], 8)
                && flow.is_argument(cgroup, 0)
            {
                findings.add_member("cgroup", "kn", offset);
            }
        }
    }
    names(code, findings);
}

/// Whether `value` is `current->cgroups->dfl_cgrp`.
fn of_running_task(flow: &Flow, value: Value, findings: &mut Findings) -> bool {
    if let Some((set, cgroup)) = flow.read_from(value, 8)
        && let Some((task, cgroups)) = flow.read_from(set, 8)
        && flow.per_cpu(task).is_some()
    {
        findings.add_member("task_struct", "cgroups", cgroups);
        findings.add_member("css_set", "dfl_cgrp", cgroup);
        return true;
    }
    false
}

/// `kernfs_name` and `kernfs_get_parent` (`fs/kernfs/dir.c`): a node's name is copied unless the node has no parent.
fn names(code: &Code<'_>, findings: &mut Findings) {
    const NODE: &str = "kernfs_node";
    if let Some(flow) = code.flow("kernfs_get_parent") {
        for returned in &flow.returned {
            if let Some((node, offset)) = flow.read_from(*returned, 8)
                && flow.is_argument(node, 0)
            {
                findings.add_member(NODE, "parent", offset);
            }
        }
    }
    for flow in code.flows(["kernfs_name_locked", "kernfs_name"]) {
        for call in &flow.calls {
            // `strlcpy` before 6.8.
            let is_copy = ["strlcpy", "strscpy", "sized_strscpy"]
                .iter()
                .any(|name| code.is_call_to(call, name));
            if let Some((node, offset)) = flow.read_from(call.arguments[1], 8)
                && is_copy
                && flow.is_argument(node, 0)
            {
                findings.add_member(NODE, "name", offset);
            }
        }
    }
}
