//! Finds files below a process's root directory, in the directory entries that the guest's kernel has in memory (`struct dentry`,
//! `struct mount`). A file that is in use, or in a file system in memory, always has its entry there.
//!
//! The guest runs meanwhile: lists may change, which leads to no file. Each list is bounded, whatever it has.

use super::process_layout::ProcessLayout;
use crate::PhysicalMemory;
use crate::image::types::{Missing, Types};
use crate::linux::view::KernelView;

/// Maximum number of mounts that are on top of each other.
const MAX_STACKED: usize = 8;
/// `OVERLAYFS_SUPER_MAGIC` (`include/uapi/linux/magic.h`).
const OVERLAY: u64 = 0x794c_7630;

/// Offsets in bytes, each from the start of its structure.
#[derive(Debug)]
pub struct DirectoryLayout {
    /// The list of a directory's entries: its head in the directory's `struct dentry`, and its links in theirs. Since 6.8 `d_children` and `d_sib`,
    /// before `d_subdirs` and `d_child`.
    entries: [u64; 2],
    /// `dentry.d_hash.pprev`: 0 for an entry that isn't in its directory any more.
    hashed: u64,
    /// `dentry.d_inode`.
    inode: u64,
    /// The list of the mounts on directories of a mount: `mount.mnt_mounts` and `mnt_child`.
    mounts: [u64; 2],
    /// `super_block.s_magic`.
    magic: u64,
    /// Bytes of a `struct inode`. An overlay's has the entry of its upper file behind it (`struct ovl_inode`, `fs/overlayfs/ovl_entry.h`).
    inode_length: u64,
}

impl DirectoryLayout {
    /// Finds the layout.
    ///
    /// # Errors
    /// The first offset that isn't known.
    pub fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let dentry = types.structures("dentry");
        let entries = match dentry.offset_of("d_children") {
            Some(children) => [children, dentry.need("d_sib")?],
            None => [dentry.need("d_subdirs")?, dentry.need("d_child")?],
        };
        let mount = types.structures("mount");
        Ok(Self {
            entries,
            // `struct hlist_bl_node`: `next`, `pprev`.
            hashed: dentry.need("d_hash")? + 8,
            inode: dentry.need("d_inode")?,
            mounts: [mount.need("mnt_mounts")?, mount.need("mnt_child")?],
            magic: types.need("super_block", "s_magic")?,
            inode_length: types.size_of("inode")?,
        })
    }
}

/// Looks files up.
pub struct Directories<'d, 'a, M> {
    pub view: &'d KernelView<'a, M>,
    pub layout: &'d DirectoryLayout,
    pub files: &'d ProcessLayout,
    /// The number of entries and mounts that may still be visited.
    pub room: &'d mut usize,
}

impl<M: PhysicalMemory> Directories<'_, '_, M> {
    /// The guest virtual address of the inode of the file with the path `names` below the directory `root`, a mount and an entry. Symbolic links aren't
    /// followed. `None` if it isn't there.
    pub fn find(&mut self, root: [u64; 2], names: &[&str]) -> Option<u64> {
        let [mut mount, mut entry] = root;
        for name in names {
            entry = self.entry(entry, name)?;
            for _ in 0..MAX_STACKED {
                let Some(mounted) = self.mounted_on(mount, entry) else {
                    break;
                };
                [mount, entry] = mounted;
            }
        }
        self.inode(entry, names.last()?)
    }

    /// The inode of the file with this entry and name. An overlay's has no contents itself: its upper file has them.
    fn inode(&self, entry: u64, name: &str) -> Option<u64> {
        let inode = self.view.pointer(entry, self.layout.inode)?;
        let superblock = self.view.pointer(inode, self.files.file.superblock)?;
        let magic = self.view.u64(superblock.wrapping_add(self.layout.magic))?;
        if magic != OVERLAY {
            return Some(inode);
        }
        let upper = self.view.pointer(inode, self.layout.inode_length)?;
        self.has_name(upper, name)?;
        self.view.pointer(upper, self.layout.inode)
    }

    /// The entry `name` of `directory`.
    fn entry(&mut self, directory: u64, name: &str) -> Option<u64> {
        let [head, link] = self.layout.entries;
        let head = directory.wrapping_add(head);
        let mut at = self.view.u64(head)?;
        // The list ends with its head, or with 0.
        while at != head && at != 0 {
            *self.room = self.room.checked_sub(1)?;
            let entry = at.wrapping_sub(link);
            if self.has_name(entry, name).is_some() {
                let hashed = self.view.u64(entry.wrapping_add(self.layout.hashed))?;
                let inode = self.view.u64(entry.wrapping_add(self.layout.inode))?;
                if hashed != 0 && inode != 0 {
                    return Some(entry);
                }
            }
            at = self.view.u64(at)?;
        }
        None
    }

    /// `Some` if `entry` has this name.
    fn has_name(&self, entry: u64, name: &str) -> Option<()> {
        let length = self
            .view
            .i32(entry.wrapping_add(self.files.file.name_length))?;
        if usize::try_from(length).ok()? != name.len() {
            return None;
        }
        let text = self.view.u64(entry.wrapping_add(self.files.file.name))?;
        let mut bytes = [0; 255];
        let bytes = bytes.get_mut(..name.len())?;
        self.view.read(text, bytes)?;
        (*bytes == *name.as_bytes()).then_some(())
    }

    /// The mount on the directory `entry` of `mount`, and its root.
    fn mounted_on(&mut self, mount: u64, entry: u64) -> Option<[u64; 2]> {
        let layout = self.files.mount.as_ref().ok()?;
        let [head, link] = self.layout.mounts;
        let head = mount.wrapping_sub(layout.within).wrapping_add(head);
        let mut at = self.view.u64(head)?;
        while at != head && at != 0 {
            *self.room = self.room.checked_sub(1)?;
            let child = at.wrapping_sub(link);
            if self.view.u64(child.wrapping_add(layout.mountpoint))? == entry {
                let inner = child.wrapping_add(layout.within);
                return Some([inner, self.view.pointer(inner, layout.root)?]);
            }
            at = self.view.u64(at)?;
        }
        None
    }
}
