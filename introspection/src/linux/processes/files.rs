//! Identifies the file of a mapping: its path from the names of directory entries, and its inode.

use crate::PhysicalMemory;

use super::{FileIdentity, MappedFile, ProcessView};

/// Maximum number of names in a path.
const MAX_NAMES: usize = 64;
/// Maximum length of a path, in bytes (`PATH_MAX`).
const MAX_PATH: usize = 4096;
/// Maximum length of a name (`NAME_MAX`).
const MAX_NAME: usize = 255;

impl<M: PhysicalMemory> ProcessView<'_, M> {
    /// The file at `file` (`struct file`). `None` if it is unreadable.
    pub fn file(&self, file: u64) -> Option<MappedFile> {
        let inode = self.view.u64(file.wrapping_add(self.layout.file.inode))?;
        Some(MappedFile {
            path: self.path(file)?,
            identity: self.identity(inode)?,
        })
    }

    /// The identity of the file with the inode at `inode`.
    pub fn identity(&self, inode: u64) -> Option<FileIdentity> {
        let Self { view, layout } = self;
        let at = |offset: u64| view.u64(inode.wrapping_add(offset));
        let superblock = at(layout.file.superblock)?;
        let device = view.i32(superblock.wrapping_add(layout.file.device))?;
        Some(FileIdentity {
            inode,
            number: at(layout.file.number)?,
            device: device.cast_unsigned(),
            length: at(layout.file.length)?,
            modified: layout.file.modified.and_then(at).unwrap_or(0),
        })
    }

    /// The path of the file at `file`, from the root of the topmost mount.
    pub fn path(&self, file: u64) -> Option<String> {
        let Self { view, layout } = self;
        let mut dentry = view.u64(file.wrapping_add(layout.file.dentry))?;
        let mut mount = view.u64(file.wrapping_add(layout.file.mount))?;
        let mut names: Vec<String> = Vec::new();
        // Each step goes to a parent directory or to the parent mount.
        for _ in 0..2 * MAX_NAMES {
            if names.len() >= MAX_NAMES {
                break;
            }
            if let Some((upper, point)) = self.mounted_on(mount, dentry) {
                (mount, dentry) = (upper, point);
                continue;
            }
            let parent = view.u64(dentry.wrapping_add(layout.file.parent))?;
            if parent == dentry {
                // A file without a directory has only a name, such as `memfd:NAME` of memfd_create(2).
                if names.is_empty() {
                    names.push(self.name(dentry)?);
                }
                break;
            }
            names.push(self.name(dentry)?);
            dentry = parent;
        }
        let mut path = String::new();
        for name in names.iter().rev() {
            path.push('/');
            path.push_str(name);
        }
        (path.len() <= MAX_PATH).then_some(path)
    }

    /// The parent of the mount at `mount` (`struct vfsmount`), and the directory entry that it is mounted on. `None` if
    /// `dentry` isn't the mount's root, or the mount has no parent.
    fn mounted_on(&self, mount: u64, dentry: u64) -> Option<(u64, u64)> {
        let (view, layout) = (self.view, self.layout.mount.as_ref().ok()?);
        let root = view.u64(mount.wrapping_add(layout.root))?;
        if root != dentry {
            return None;
        }
        let outer = mount.wrapping_sub(layout.within);
        let parent = view.u64(outer.wrapping_add(layout.parent))?;
        let point = view.u64(outer.wrapping_add(layout.mountpoint))?;
        (parent != outer && parent >> 63 == 1).then(|| (parent.wrapping_add(layout.within), point))
    }

    /// The name of the directory entry at `dentry`, with `?` for bytes that would break a line or a terminal.
    fn name(&self, dentry: u64) -> Option<String> {
        let Self { view, layout } = self;
        let pointer = view.u64(dentry.wrapping_add(layout.file.name))?;
        let length = view.i32(dentry.wrapping_add(layout.file.name_length))?;
        let length = usize::try_from(length).ok()?;
        let mut bytes = [0; MAX_NAME];
        let bytes = bytes.get_mut(..length)?;
        view.read(pointer, bytes)?;
        let name = String::from_utf8_lossy(bytes);
        Some(name.replace(|letter: char| letter.is_control() || letter == '/', "?"))
    }
}
