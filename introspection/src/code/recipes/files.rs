//! Files, their names and sizes, and the owner of a lock.

use super::super::flow::{Flow, Node, Use};
use super::super::{Code, Findings};

/// Finds members of `struct file`, `struct dentry`, `struct inode` and `struct mutex`.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    if let Some(flow) = code.flow("file_path") {
        path(code, &flow, findings);
    }
    // `d_ancestor(ancestor, dentry)` (`fs/dcache.c`) reads only parents.
    if let Some(flow) = code.flow("d_ancestor")
        && let Some(dentry) = flow.argument(1)
    {
        for parent in flow.reads_of(dentry, 8) {
            findings.add_member("dentry", "d_parent", parent);
        }
    }
    // `truncate_setsize(inode, size)` (`mm/truncate.c`) reads the old size and writes the new one.
    if let Some(flow) = code.flow("truncate_setsize")
        && let (Some(inode), Some(size)) = (flow.argument(0), flow.argument(1))
    {
        for (offset, access) in flow.words_of(inode, 8) {
            if access.kind == Use::Write && access.value == Some(size) {
                findings.add_member("inode", "i_size", offset);
            }
        }
    }
    // `mutex_spin_on_owner(lock, owner, ...)` (`kernel/locking/mutex.c`) begins with the lock's owner.
    if let Some(flow) = code.flow("mutex_spin_on_owner")
        && let Some(lock) = flow.argument(0)
        && let Some(owner) = flow.reads_of(lock, 8).next()
    {
        findings.add_member("mutex", "owner", owner);
    }
}

/// `file_path(file, ...)` (`fs/open.c`) calls `d_path(&file->f_path, ...)`. A path is a mount and a dentry
/// (`include/linux/path.h`).
fn path(code: &Code<'_>, flow: &Flow, findings: &mut Findings) {
    for call in code.calls_to(flow, "d_path") {
        if let Node::Sum(file, offset) = flow.node(call.arguments[0])
            && flow.is_argument(file, 0)
            && let Ok(offset) = u64::try_from(offset)
        {
            findings.add_member("file", "f_path.mnt", offset);
            findings.add_member("file", "f_path.dentry", offset + 8);
        }
    }
}
