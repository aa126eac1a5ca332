//! The permissions of the nodes.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// The mode and group that nodes get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The permission bits.
    pub mode: u32,
    /// The group's id; `None` leaves the group as it is, root's.
    pub group: Option<u32>,
}

impl Permissions {
    /// Sets the mode and group of `node` where they differ.
    ///
    /// # Errors
    /// If there is no node, or it can't be changed.
    pub fn apply(self, node: &Path) -> io::Result<()> {
        let now = fs::metadata(node)?;
        if let Some(group) = self.group.filter(|group| *group != now.gid()) {
            chown(node, None, Some(group))?;
        }
        if now.mode() & 0o7777 != self.mode {
            fs::set_permissions(node, fs::Permissions::from_mode(self.mode))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_gets_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("pcs");
        fs::write(&node, "").unwrap();
        let permissions = Permissions {
            mode: 0o640,
            group: Some(fs::metadata(&node).unwrap().gid()),
        };
        for _ in 0..2 {
            permissions.apply(&node).unwrap();
            assert_eq!(fs::metadata(&node).unwrap().mode() & 0o7777, 0o640);
        }
        assert!(permissions.apply(&folder.path().join("none")).is_err());
    }
}
