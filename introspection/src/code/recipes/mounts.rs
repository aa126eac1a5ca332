//! Mounts: `struct vfsmount` (`include/linux/mount.h`) within `struct mount` (`fs/mount.h`).

use super::super::flow::{Flow, Node, Use};
use super::super::{Code, Findings};

/// Finds their members.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    if let Some(flow) = code.flow("follow_up") {
        parent(&flow, findings);
    }
    // `mount_subtree(mount, name)` (`fs/namespace.c`) looks a name up, from the mount's root on.
    if let Some(flow) = code.flow("mount_subtree") {
        for call in code.calls_to(&flow, "vfs_path_lookup") {
            let [root, mount, ..] = call.arguments;
            if let Some((base, offset)) = flow.read_from(root, 8)
                && base == mount
            {
                findings.add_member("vfsmount", "mnt_root", offset);
            }
        }
    }
}

/// `follow_up(path)` (`fs/namei.c`) replaces a path's mount by that mount's parent, and its dentry by where it is
/// mounted. A path is a mount and a dentry (`include/linux/path.h`).
fn parent(flow: &Flow, findings: &mut Findings) {
    let Some(path) = flow.argument(0) else {
        return;
    };
    let Some(mount) = flow.find(Node::Read(path, 0, 8)) else {
        return;
    };
    let written = |offset| {
        let mut words = flow.words_of(path, 8);
        let found = words.find(|(at, access)| *at == offset && access.kind == Use::Write)?;
        found.1.value.map(|value| flow.node(value))
    };
    let (Some(Node::Sum(parent, within)), Some(Node::Read(base, point, 8))) =
        (written(0), written(8))
    else {
        return;
    };
    // What is read is before or behind the `struct vfsmount`.
    let Node::Read(other, parent, 8) = flow.node(parent) else {
        return;
    };
    let from_start = |offset: i64| u64::try_from(offset.checked_add(within)?).ok();
    if let (true, Some(parent), Some(point), Ok(within)) = (
        base == mount && other == mount,
        from_start(parent),
        from_start(point),
        u64::try_from(within),
    ) {
        findings.add_member("mount", "mnt", within);
        findings.add_member("mount", "mnt_parent", parent);
        findings.add_member("mount", "mnt_mountpoint", point);
    }
}
