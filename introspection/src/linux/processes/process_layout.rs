//! Offsets from BTF in the kernel's data about processes and mappings.

use super::labels::LabelLayout;
use super::perf_map::PerfMapLayout;
use crate::image::btf::Btf;

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
    /// Offsets for paths beyond the file's own mount. Without them, a path begins at its mount.
    pub mount: Option<MountLayout>,
    /// Offsets for the contents of files, if known.
    pub page_cache: Option<PageCacheLayout>,
    /// Offsets for the paths of perf maps, if known.
    pub perf_map: Option<PerfMapLayout>,
    pub labels: LabelLayout,
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
    /// `context.vdso`.
    pub vdso: Option<u64>,
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
    /// Bytes of a `struct page`.
    pub page: u64,
    /// `page.flags`, and the bit in it that says that the page has the file's contents (`PG_uptodate`).
    pub flags: u64,
    pub uptodate: u32,
}

impl ProcessLayout {
    /// Finds the layout. `None` for a kernel with other structures.
    pub fn find(btf: &Btf<'_>) -> Option<Self> {
        Some(Self {
            mm: btf.offset_of("task_struct", "mm")?,
            address_space: AddressSpaceLayout::find(btf)?,
            area: AreaLayout::find(btf)?,
            file: FileLayout::find(btf)?,
            mount: MountLayout::find(btf),
            page_cache: PageCacheLayout::find(btf),
            perf_map: PerfMapLayout::find(btf),
            labels: LabelLayout::find(btf),
        })
    }
}

impl AddressSpaceLayout {
    fn find(btf: &Btf<'_>) -> Option<Self> {
        let mm = btf.structures("mm_struct");
        let areas = match mm.offset_within("mm_mt", "ma_root") {
            Some(root) => Areas::Tree {
                root,
                nodes: MapleLayout {
                    range: NodeLayout::find(btf, "maple_range_64")?,
                    allocation: NodeLayout::find(btf, "maple_arange_64")?,
                },
            },
            None => Areas::List {
                head: mm.offset_of("mmap")?,
                next: btf.offset_of("vm_area_struct", "vm_next")?,
            },
        };
        Some(Self {
            pgd: mm.offset_of("pgd")?,
            map_count: mm.offset_of("map_count")?,
            total_vm: mm.offset_of("total_vm")?,
            exec_vm: mm.offset_of("exec_vm")?,
            start_code: mm.offset_of("start_code")?,
            arg_start: mm.offset_of("arg_start")?,
            vdso: mm.offset_within("context", "vdso"),
            areas,
        })
    }
}

impl NodeLayout {
    fn find(btf: &Btf<'_>, name: &str) -> Option<Self> {
        let node = btf.structures(name);
        let index = |member| usize::try_from(node.offset_of(member)?).ok();
        let (pivots, slots) = (index("pivot")?, index("slot")?);
        let count = slots.checked_sub(pivots)? / 8;
        let fits = slots.checked_add((count + 1) * 8)? <= MAX_READ;
        (fits && count > 0).then_some(Self {
            pivots,
            slots,
            count,
        })
    }
}

impl AreaLayout {
    fn find(btf: &Btf<'_>) -> Option<Self> {
        let area = btf.structures("vm_area_struct");
        let index = |member| usize::try_from(area.offset_of(member)?).ok();
        let (start, end, flags) = (index("vm_start")?, index("vm_end")?, index("vm_flags")?);
        let (page_offset, file) = (index("vm_pgoff")?, index("vm_file")?);
        let last = [start, end, flags, page_offset, file].into_iter().max()?;
        let length = last.checked_add(8).filter(|length| *length <= MAX_READ)?;
        Some(Self {
            start,
            end,
            flags,
            page_offset,
            file,
            length,
        })
    }
}

impl FileLayout {
    fn find(btf: &Btf<'_>) -> Option<Self> {
        let file = btf.structures("file");
        let dentry = btf.structures("dentry");
        let inode = btf.structures("inode");
        Some(Self {
            inode: file.offset_of("f_inode")?,
            dentry: file.offset_within("f_path", "dentry")?,
            mount: file.offset_within("f_path", "mnt")?,
            name: dentry.offset_within("d_name", "name")?,
            name_length: dentry.offset_within("d_name", "len")?,
            parent: dentry.offset_of("d_parent")?,
            number: inode.offset_of("i_ino")?,
            superblock: inode.offset_of("i_sb")?,
            device: btf.offset_of("super_block", "s_dev")?,
            length: inode.offset_of("i_size")?,
            // Since 6.11, since 6.6, and before.
            modified: (inode.offset_of("i_mtime_sec"))
                .or_else(|| inode.offset_of("__i_mtime"))
                .or_else(|| inode.offset_of("i_mtime")),
        })
    }
}

impl MountLayout {
    fn find(btf: &Btf<'_>) -> Option<Self> {
        // There are other structures of this name.
        let mount = btf.structures("mount");
        Some(Self {
            root: btf.offset_of("vfsmount", "mnt_root")?,
            within: mount.offset_of("mnt")?,
            parent: mount.offset_of("mnt_parent")?,
            mountpoint: mount.offset_of("mnt_mountpoint")?,
        })
    }
}

impl PageCacheLayout {
    fn find(btf: &Btf<'_>) -> Option<Self> {
        let node = btf.structures("xa_node");
        Some(Self {
            mapping: btf.offset_of("inode", "i_mapping")?,
            head: btf
                .structures("address_space")
                .offset_within("i_pages", "xa_head")?,
            shift: node.offset_of("shift")?,
            slots: node.offset_of("slots")?,
            page: btf.structures("page").size().filter(|size| *size >= 32)?,
            flags: btf.structures("page").offset_of("flags")?,
            uptodate: btf
                .enumerator("pageflags", "PG_uptodate")
                .filter(|bit| *bit < 64)?,
        })
    }
}
