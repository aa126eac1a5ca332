//! A task's root directory: `struct fs_struct` (`include/linux/fs_struct.h`).

use super::super::flow::{Flow, Node, Use, Value};
use super::super::{Code, Findings};

/// Finds `task_struct.fs`, and members of `struct fs_struct`.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    // `exit_fs(task)` (`fs/fs_struct.c`) takes it from the task, and frees it if it was the last user.
    if let Some(flow) = code.flow("exit_fs")
        && let Some(task) = flow.argument(0)
    {
        for (offset, access) in flow.words_of(task, 8) {
            let is_cleared =
                access.kind == Use::Write && access.instruction.try_immediate(1).ok() == Some(0);
            if is_cleared && let Some(held) = flow.find(Node::Read(task, access.place.offset, 8)) {
                findings.add_member("task_struct", "fs", offset);
                root(code, &flow, held, findings);
            }
        }
    }
    // `free_fs_struct(fs)` does the second half.
    if let Some(flow) = code.flow("free_fs_struct")
        && let Some(held) = flow.argument(0)
    {
        root(code, &flow, held, findings);
    }
}

/// Both the root and the working directory are passed to `path_put`. They follow each other. A path is a mount and a
/// dentry (`include/linux/path.h`).
fn root(code: &Code<'_>, flow: &Flow, held: Value, findings: &mut Findings) {
    let places: Vec<u64> = code
        .calls_to(flow, "path_put")
        .filter_map(|call| match flow.node(call.arguments[0]) {
            Node::Sum(base, offset) if base == held => u64::try_from(offset).ok(),
            _ => None,
        })
        .collect();
    if let [root, working] = places.as_slice()
        && *working == root + 16
    {
        findings.add_member("fs_struct", "root.mnt", *root);
        findings.add_member("fs_struct", "root.dentry", root + 8);
    }
}
