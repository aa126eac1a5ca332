//! Offsets in the kernel's data about processes and mappings.

use super::directories::DirectoryLayout;
use super::labels::LabelLayout;
use super::perf_map::PerfMapLayout;
use crate::image::types::{Missing, Types};
use crate::linux::view::KernelView;

/// Maximum number of bytes of one structure that are read at once.
pub const MAX_READ: usize = 256;

/// Offsets in bytes, each from the start of its structure.
#[derive(Debug)]
pub struct ProcessLayout {
    /// `task_struct.mm`.
    pub mm: u64,
    pub address_space: AddressSpaceLayout,
    pub area: AreaLayout,
    pub file: FileLayout,
    /// Offsets for paths beyond the file's own mount, if known. Without them, a path begins at its mount.
    pub mount: Result<MountLayout, Missing>,
    /// Offsets for the contents of files, if known.
    pub page_cache: Result<PageCacheLayout, Missing>,
    /// Offsets for the paths of perf maps, if known.
    pub perf_map: Result<PerfMapLayout, Missing>,
    /// Offsets for finding files by their paths, if known.
    pub directories: Result<DirectoryLayout, Missing>,
    pub labels: LabelLayout,
}

/// The kernel's memory, with the layout of processes in it.
#[derive(Debug)]
pub struct ProcessView<'v, M> {
    pub view: &'v KernelView<'v, M>,
    pub layout: &'v ProcessLayout,
}

impl<'v, M> ProcessView<'v, M> {
    pub fn new(view: &'v KernelView<'v, M>, layout: &'v ProcessLayout) -> Self {
        Self { view, layout }
    }
}

/// `struct mm_struct`.
#[derive(Debug)]
pub struct AddressSpaceLayout {
    pub pgd: u64,
    pub map_count: u64,
    pub total_vm: u64,
    pub exec_vm: u64,
    pub start_code: u64,
    pub arg_start: u64,
    pub arg_end: u64,
    /// `exe_file`, a pointer.
    pub executable: Option<u64>,
    pub areas: Areas,
}

/// How the kernel stores an address space's areas.
#[derive(Debug)]
pub enum Areas {
    /// Since 6.1: in a tree with its root at this offset.
    Tree { root: u64, nodes: MapleLayout },
    /// Before 6.1: in a list with its head at this offset.
    List { head: u64, next: u64 },
}

/// `struct maple_range_64` and `struct maple_arange_64` (`include/linux/maple_tree.h`).
#[derive(Debug)]
pub struct MapleLayout {
    pub range: NodeLayout,
    pub allocation: NodeLayout,
}

/// Offsets of a node's pivots and slots.
#[derive(Clone, Copy, Debug)]
pub struct NodeLayout {
    pub pivots: usize,
    pub slots: usize,
    /// The number of pivots, which is one less than that of slots.
    pub count: usize,
}

/// `struct vm_area_struct`.
#[derive(Debug)]
pub struct AreaLayout {
    pub start: usize,
    pub end: usize,
    pub flags: usize,
    pub page_offset: usize,
    pub file: usize,
    /// `vm_private_data`.
    pub private: usize,
    /// The number of bytes that contain all these members.
    pub length: usize,
}

/// `struct file`, `struct dentry`, `struct inode`, `struct super_block`.
#[derive(Debug)]
pub struct FileLayout {
    pub inode: u64,
    /// `f_path.dentry` and `f_path.mnt`.
    pub dentry: u64,
    pub mount: u64,
    pub name: u64,
    pub name_length: u64,
    pub parent: u64,
    pub number: u64,
    pub superblock: u64,
    pub device: u64,
    pub length: u64,
    pub modified: Option<u64>,
}

/// `struct vfsmount`, and `struct mount`, which contains it.
#[derive(Debug)]
pub struct MountLayout {
    pub root: u64,
    pub within: u64,
    pub parent: u64,
    pub mountpoint: u64,
}

/// `struct address_space`, `struct xarray`, `struct xa_node`, `struct page`.
#[derive(Debug)]
pub struct PageCacheLayout {
    /// `inode.i_mapping`.
    pub mapping: u64,
    /// `address_space.i_pages.xa_head`.
    pub head: u64,
    pub shift: u64,
    pub slots: u64,
    /// The number of a node's slots is this power of two: 6, or 4 with CONFIG_BASE_SMALL (`XA_CHUNK_SHIFT`).
    pub slot_bits: u32,
    /// Bytes of a `struct page`.
    pub page: u64,
    /// `page.flags`, and the bit in it that says that the page has the file's contents (`PG_uptodate`).
    pub flags: u64,
    pub uptodate: u32,
}

impl ProcessLayout {
    /// Finds the layout.
    ///
    /// # Errors
    /// The first offset that isn't known.
    pub fn find(types: &Types<'_>) -> Result<Self, Missing> {
        Ok(Self {
            mm: types.need("task_struct", "mm")?,
            address_space: AddressSpaceLayout::find(types)?,
            area: AreaLayout::find(types)?,
            file: FileLayout::find(types)?,
            mount: MountLayout::find(types),
            page_cache: PageCacheLayout::find(types),
            perf_map: PerfMapLayout::find(types),
            directories: DirectoryLayout::find(types),
            labels: LabelLayout::find(types),
        })
    }
}

impl AddressSpaceLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let mm = types.structures("mm_struct");
        let areas = match mm.offset_of("mm_mt.ma_root") {
            Some(root) => Areas::Tree {
                root,
                nodes: MapleLayout {
                    range: NodeLayout::find(types, "maple_range_64")?,
                    allocation: NodeLayout::find(types, "maple_arange_64")?,
                },
            },
            None => Areas::List {
                head: mm.need("mmap")?,
                next: types.need("vm_area_struct", "vm_next")?,
            },
        };
        Ok(Self {
            pgd: mm.need("pgd")?,
            map_count: mm.need("map_count")?,
            total_vm: mm.need("total_vm")?,
            exec_vm: mm.need("exec_vm")?,
            start_code: mm.need("start_code")?,
            arg_start: mm.need("arg_start")?,
            // It follows at once (`include/linux/mm_types.h`).
            arg_end: mm.need("arg_start")? + 8,
            executable: mm.offset_of("exe_file"),
            areas,
        })
    }
}

impl NodeLayout {
    fn find(types: &Types<'_>, name: &'static str) -> Result<Self, Missing> {
        let node = types.structures(name);
        let (pivots, slots) = (node.need("pivot")?, node.need("slot")?);
        let layout = || {
            let (pivots, slots) = (usize::try_from(pivots).ok()?, usize::try_from(slots).ok()?);
            let count = slots.checked_sub(pivots)? / 8;
            let fits = slots.checked_add((count + 1) * 8)? <= MAX_READ;
            (fits && count > 0).then_some(Self {
                pivots,
                slots,
                count,
            })
        };
        layout().ok_or(Missing::Form(name))
    }
}

impl AreaLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        const NAME: &str = "vm_area_struct";
        let area = types.structures(NAME);
        let index = |member| {
            let offset = usize::try_from(area.need(member)?).ok();
            let inside = offset.filter(|offset| *offset <= MAX_READ - 16);
            inside.ok_or(Missing::Form(NAME))
        };
        let (start, end, flags) = (index("vm_start")?, index("vm_end")?, index("vm_flags")?);
        let (page_offset, file) = (index("vm_pgoff")?, index("vm_file")?);
        Ok(Self {
            start,
            end,
            flags,
            page_offset,
            file,
            // It follows at once (`include/linux/mm_types.h`).
            private: file + 8,
            length: start.max(end).max(flags).max(page_offset).max(file + 8) + 8,
        })
    }
}

impl FileLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let file = types.structures("file");
        let dentry = types.structures("dentry");
        let inode = types.structures("inode");
        Ok(Self {
            inode: file.need("f_inode")?,
            dentry: file.need("f_path.dentry")?,
            mount: file.need("f_path.mnt")?,
            name: dentry.need("d_name.name")?,
            name_length: dentry.need("d_name.len")?,
            parent: dentry.need("d_parent")?,
            number: inode.need("i_ino")?,
            superblock: inode.need("i_sb")?,
            device: types.need("super_block", "s_dev")?,
            length: inode.need("i_size")?,
            // Since 6.11, since 6.6, and before.
            modified: (inode.offset_of("i_mtime_sec"))
                .or_else(|| inode.offset_of("__i_mtime"))
                .or_else(|| inode.offset_of("i_mtime")),
        })
    }
}

impl MountLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        // There are other structures of this name.
        let mount = types.structures("mount");
        Ok(Self {
            root: types.need("vfsmount", "mnt_root")?,
            within: mount.need("mnt")?,
            parent: mount.need("mnt_parent")?,
            mountpoint: mount.need("mnt_mountpoint")?,
        })
    }
}

impl PageCacheLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let node = types.structures("xa_node");
        let size = types.size_of("page")?;
        let uptodate = types.enumerator("pageflags", "PG_uptodate");
        let slots = node.need("slots")?;
        let room = types.size_of("xa_node")?.checked_sub(slots);
        Ok(Self {
            mapping: types.need("inode", "i_mapping")?,
            head: types.need("address_space", "i_pages.xa_head")?,
            shift: node.need("shift")?,
            slots,
            slot_bits: room.and_then(slot_bits).ok_or(Missing::Form("xa_node"))?,
            page: Some(size)
                .filter(|size| *size >= 32)
                .ok_or(Missing::Form("page"))?,
            flags: types.need("page", "flags")?,
            uptodate: uptodate
                .filter(|bit| *bit < 64)
                .ok_or(Missing::Form("page"))?,
        })
    }
}

/// The logarithm of the number of slots of a node with `room` bytes for them and for the three words of marks that each 64
/// of them have (`include/linux/xarray.h`).
fn slot_bits(room: u64) -> Option<u32> {
    (2..=8).find(|bits| {
        let count = 1_u64 << bits;
        8 * (count + 3 * count.div_ceil(64)) == room
    })
}
