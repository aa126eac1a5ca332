//! Builds address spaces, mappings and files of a guest.

use super::btf::Builder;
use super::kernel::{Areas, offsets, task};
use super::linux_guest::{DIRECT_MAP, LinuxGuest, TABLES, TASKS};
use super::page_tables::Tables;
use crate::image::btf::KIND_TYPEDEF;

/// The address of the guest's `struct page`s.
pub const PAGES: u64 = 0xffff_ea12_0000_0000;
/// Bytes of a `struct page`.
const PAGE_STRUCTURE: u64 = 64;
/// Their physical address, and that of the page tables for them.
const PHYSICAL_PAGES: u64 = 0x1a0_0000;
const PAGE_TABLES: u64 = 0x7_0000;
/// `PG_uptodate`.
const UPTODATE: u32 = 3;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The physical address of the structures.
const ROOM: u64 = 0x43_0000;
const MAPLE_NODE: u64 = 256;
/// Types of nodes (`enum maple_type`).
const LEAF: u64 = 1;
const ALLOCATION_RANGE: u64 = 3;

/// Offsets of the structures' members, in bytes.
mod at {
    pub const MM_ROOT: u64 = 0x48;
    pub const MM_LIST: u64 = 0x50;
    pub const PGD: u64 = 0x58;
    pub const MAP_COUNT: u64 = 0x60;
    pub const TOTAL_VM: u64 = 0x68;
    pub const EXEC_VM: u64 = 0x70;
    pub const START_CODE: u64 = 0x78;
    pub const ARG_START: u64 = 0x80;
    pub const VDSO: u64 = 0x98;
    pub const AUXV: u64 = 0x100;
    pub const START: u64 = 0;
    pub const END: u64 = 8;
    pub const NEXT: u64 = 0x10;
    pub const FLAGS: u64 = 0x20;
    pub const PAGE_OFFSET: u64 = 0x78;
    pub const FILE: u64 = 0x80;
    pub const INODE: u64 = 0x28;
    pub const MOUNT: u64 = 0x40;
    pub const DENTRY: u64 = 0x48;
    pub const PARENT: u64 = 0x18;
    pub const NAME_LENGTH: u64 = 0x24;
    pub const NAME: u64 = 0x28;
    pub const SUPERBLOCK: u64 = 0x20;
    pub const MAPPING: u64 = 0x30;
    pub const NUMBER: u64 = 0x40;
    pub const LENGTH: u64 = 0x50;
    pub const MODIFIED: u64 = 0x58;
    pub const DEVICE: u64 = 0x10;
    pub const MOUNT_PARENT: u64 = 0x10;
    pub const MOUNTPOINT: u64 = 0x18;
    pub const WITHIN: u64 = 0x20;
    pub const HEAD: u64 = 0x10;
    pub const SLOTS: u64 = 0x28;
}

/// Adds the structures of a kernel with such `areas` to the BTF.
pub(super) fn describe(builder: &mut Builder, areas: Areas) {
    let bits = |bytes: u64| u32::try_from(bytes * 8).unwrap();
    let tree = builder.structure("maple_tree", &[("ma_flags", 0, 0), ("ma_root", 0, 64)]);
    let context = builder.structure("", &[("ctx_id", 0, 0), ("vdso", 0, bits(8))]);
    let context = builder.refers(KIND_TYPEDEF, "mm_context_t", context);
    let mut members = vec![
        ("pgd", 0, bits(at::PGD)),
        ("map_count", 0, bits(at::MAP_COUNT)),
        ("total_vm", 0, bits(at::TOTAL_VM)),
        ("exec_vm", 0, bits(at::EXEC_VM)),
        ("start_code", 0, bits(at::START_CODE)),
        ("arg_start", 0, bits(at::ARG_START)),
        ("context", context, bits(at::VDSO - 8)),
        ("saved_auxv", 0, bits(at::AUXV)),
    ];
    let mut area = vec![
        ("vm_start", 0, bits(at::START)),
        ("vm_end", 0, bits(at::END)),
        ("vm_flags", 0, bits(at::FLAGS)),
        ("vm_pgoff", 0, bits(at::PAGE_OFFSET)),
        ("vm_file", 0, bits(at::FILE)),
    ];
    match areas {
        Areas::Tree => members.push(("mm_mt", tree, bits(at::MM_ROOT - 8))),
        Areas::List => {
            members.push(("mmap", 0, bits(at::MM_LIST)));
            area.push(("vm_next", 0, bits(at::NEXT)));
        }
    }
    builder.structure("mm_struct", &members);
    builder.structure("vm_area_struct", &area);
    for (name, slots) in [("maple_range_64", 128), ("maple_arange_64", 80)] {
        builder.structure(name, &[("pivot", 0, 64), ("slot", 0, bits(slots))]);
    }
    let path = builder.structure("path", &[("mnt", 0, 0), ("dentry", 0, 64)]);
    builder.structure("fs_struct", &[("root", path, bits(task::ROOT))]);
    let file = [
        ("f_inode", 0, bits(at::INODE)),
        ("f_path", path, bits(at::MOUNT)),
    ];
    builder.structure("file", &file);
    let name = builder.structure("qstr", &[("len", 0, 32), ("name", 0, 64)]);
    let dentry = [
        ("d_parent", 0, bits(at::PARENT)),
        ("d_name", name, bits(at::NAME - 8)),
    ];
    builder.structure("dentry", &dentry);
    let inode = [
        ("i_sb", 0, bits(at::SUPERBLOCK)),
        ("i_mapping", 0, bits(at::MAPPING)),
        ("i_ino", 0, bits(at::NUMBER)),
        ("i_size", 0, bits(at::LENGTH)),
        ("i_mtime_sec", 0, bits(at::MODIFIED)),
    ];
    builder.structure("inode", &inode);
    builder.structure("super_block", &[("s_dev", 0, bits(at::DEVICE))]);
    builder.structure("vfsmount", &[("mnt_root", 0, 0)]);
    let mount = [
        ("mnt_parent", 0, bits(at::MOUNT_PARENT)),
        ("mnt_mountpoint", 0, bits(at::MOUNTPOINT)),
        ("mnt", 0, bits(at::WITHIN)),
    ];
    builder.structure("mount", &mount);
    let array = builder.structure("xarray", &[("xa_head", 0, 64)]);
    builder.structure("address_space", &[("i_pages", array, bits(at::HEAD - 8))]);
    let node = [("shift", 0, 0), ("slots", 0, bits(at::SLOTS))];
    builder.structure("xa_node", &node);
    let page = builder.structure("page", &[("flags", 0, 0)]);
    builder.resize(page, 1, u32::try_from(PAGE_STRUCTURE).unwrap());
    builder.enumeration("pageflags", &[("PG_locked", 0), ("PG_uptodate", UPTODATE)]);
}

/// A mapping to build.
#[derive(Clone, Copy, Debug)]
pub struct AreaPlan {
    /// Its first address.
    pub begin: u64,
    /// The first address after it.
    pub end: u64,
    /// Whether it is executable.
    pub executable: bool,
    /// The file's offset, in pages.
    pub offset: u64,
    /// Its file from [`FixtureMemory::file`], or 0.
    pub file: u64,
}

/// Builds structures in a guest's memory. Pointers are guest virtual addresses.
#[derive(Debug)]
pub struct FixtureMemory<'g> {
    guest: &'g LinuxGuest,
    areas: Areas,
    next: u64,
}

impl<'g> FixtureMemory<'g> {
    /// Builds structures in `guest`, with areas as its kernel stores them.
    pub fn new(guest: &'g LinuxGuest, areas: Areas) -> Self {
        guest.set(offsets::VMEMMAP_BASE, PAGES);
        let mut tables = Tables::new(guest.memory.clone(), TABLES, guest.levels());
        tables.skip_to(PAGE_TABLES);
        tables.map(PAGES, PHYSICAL_PAGES, 2);
        guest.share_page_tables();
        Self {
            guest,
            areas,
            next: ROOM,
        }
    }

    /// Allocates `bytes` zero bytes.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let place = self.next.next_multiple_of(MAPLE_NODE);
        self.next = place + bytes;
        DIRECT_MAP + place
    }

    /// Writes a number.
    pub fn put(&self, address: u64, number: u64) {
        self.guest
            .write(address - DIRECT_MAP, &number.to_le_bytes());
    }

    fn put_all(&self, address: u64, numbers: &[(u64, u64)]) {
        for (offset, number) in numbers {
            self.put(address + offset, *number);
        }
    }

    /// Gives task `index` an address space with `areas`. Returns its `mm_struct`.
    pub fn process(&mut self, index: u64, areas: &[AreaPlan]) -> u64 {
        let mm = self.take(0x400);
        self.put(DIRECT_MAP + TASKS + index * 0x1000 + task::MM, mm);
        let numbers = [
            (at::PGD, DIRECT_MAP + TABLES),
            (at::START_CODE, 0x40_0000),
            (at::ARG_START, 0x7fff_0000_1234),
        ];
        self.put_all(mm, &numbers);
        self.map(mm, areas);
        mm
    }

    /// Gives the address space at `mm` the page tables at physical address `root`.
    pub fn page_tables(&self, mm: u64, root: u64) {
        self.put(mm + at::PGD, DIRECT_MAP + root);
    }

    /// Sets the auxiliary vector of the address space at `mm`: pairs of type and value.
    pub fn auxiliary_vector(&self, mm: u64, pairs: &[(u64, u64)]) {
        for (index, (kind, value)) in (0..).zip(pairs) {
            self.put_all(mm + at::AUXV + index * 16, &[(0, *kind), (8, *value)]);
        }
    }

    /// Sets the start of the program's code in the address space at `mm`; 0 while there is no program yet.
    pub fn start_code(&self, mm: u64, address: u64) {
        self.put(mm + at::START_CODE, address);
    }

    /// Replaces the mappings of the address space at `mm`.
    pub fn map(&mut self, mm: u64, areas: &[AreaPlan]) {
        let count = areas.len() as u64;
        let pages = |areas: &[AreaPlan], all: bool| {
            let counted = areas.iter().filter(|area| all || area.executable);
            counted.map(|area| (area.end - area.begin) / PAGE).sum()
        };
        let numbers = [
            (at::MAP_COUNT, count),
            (at::TOTAL_VM, pages(areas, true)),
            (at::EXEC_VM, pages(areas, false)),
        ];
        self.put_all(mm, &numbers);
        let places: Vec<u64> = areas.iter().map(|area| self.area(area)).collect();
        match self.areas {
            Areas::List => {
                self.put(mm + at::MM_LIST, places.first().copied().unwrap_or(0));
                for pair in places.windows(2) {
                    self.put(pair[0] + at::NEXT, pair[1]);
                }
            }
            Areas::Tree => {
                let root = self.tree(areas, &places);
                self.put(mm + at::MM_ROOT, root);
            }
        }
    }

    fn area(&mut self, plan: &AreaPlan) -> u64 {
        let area = self.take(0x100);
        let numbers = [
            (at::START, plan.begin),
            (at::END, plan.end),
            // Executable areas aren't writable.
            (at::FLAGS, if plan.executable { 0x75 } else { 0x73 }),
            (at::PAGE_OFFSET, plan.offset),
            (at::FILE, plan.file),
        ];
        self.put_all(area, &numbers);
        area
    }

    /// A tree of two levels: leaves of at most 7 areas, with the gaps between them.
    fn tree(&mut self, areas: &[AreaPlan], places: &[u64]) -> u64 {
        let root = self.take(MAPLE_NODE);
        let mut begin = 0;
        let leaves = areas.chunks(7).zip(places.chunks(7));
        for (index, (areas, places)) in (0..).zip(leaves) {
            let leaf = self.take(MAPLE_NODE);
            let mut slot = 0;
            let mut add = |room: &Self, last: u64, entry: u64| {
                room.put(leaf + 8 + slot * 8, last);
                room.put(leaf + 128 + slot * 8, entry);
                slot += 1;
            };
            for (area, place) in areas.iter().zip(places) {
                if area.begin > begin {
                    add(self, area.begin - 1, 0);
                }
                add(self, area.end - 1, *place);
                begin = area.end;
            }
            self.put(root + 8 + index * 8, begin - 1);
            self.put(root + 80 + index * 8, leaf | LEAF << 3 | 4);
        }
        root | ALLOCATION_RANGE << 3 | 2
    }

    /// Sets the address of the vdso in the address space at `mm`.
    pub fn vdso(&self, mm: u64, address: u64) {
        self.put(mm + at::VDSO, address);
    }

    /// The directory entry `name` of `parent`; a root if `parent` is 0.
    pub fn dentry(&mut self, parent: u64, name: &str) -> u64 {
        let (dentry, text) = (self.take(0x40), self.take(0x100));
        self.guest.write(text - DIRECT_MAP, name.as_bytes());
        let parent = if parent == 0 { dentry } else { parent };
        let length = name.len() as u64;
        let numbers = [(at::PARENT, parent), (at::NAME, text)];
        self.put_all(dentry, &numbers);
        self.guest.write(
            dentry + at::NAME_LENGTH - DIRECT_MAP,
            &length.to_le_bytes()[..4],
        );
        dentry
    }

    /// A `struct vfsmount` with its root at `root`, mounted on `point` of the mount `parent`; 0 for the topmost mount.
    pub fn mount(&mut self, root: u64, parent: u64, point: u64) -> u64 {
        let mount = self.take(0x40);
        let parent = if parent == 0 {
            mount
        } else {
            parent - at::WITHIN
        };
        let numbers = [
            (at::MOUNT_PARENT, parent),
            (at::MOUNTPOINT, point),
            (at::WITHIN, root),
        ];
        self.put_all(mount, &numbers);
        mount + at::WITHIN
    }

    /// The `struct file` of `inode` at `dentry` of `mount`.
    pub fn file(&mut self, mount: u64, dentry: u64, inode: u64) -> u64 {
        let file = self.take(0x80);
        let numbers = [(at::INODE, inode), (at::MOUNT, mount), (at::DENTRY, dentry)];
        self.put_all(file, &numbers);
        file
    }

    /// Inode `number` of a file of `length` bytes, with the tree of pages at `head`.
    pub fn inode(&mut self, number: u64, length: u64, head: u64) -> u64 {
        let (inode, superblock, mapping) = (self.take(0x100), self.take(0x40), self.take(0x40));
        self.put(superblock + at::DEVICE, 0x0010_0002);
        self.put(mapping + at::HEAD, head);
        let numbers = [
            (at::SUPERBLOCK, superblock),
            (at::MAPPING, mapping),
            (at::NUMBER, number),
            (at::LENGTH, length),
            (at::MODIFIED, 1_700_000_000),
        ];
        self.put_all(inode, &numbers);
        inode
    }

    /// Gives task `index` the ids `numbers` in its pid namespaces, the outermost first, and its root directory at `dentry` of `mount`.
    pub fn namespaces(&mut self, index: u64, numbers: &[i32], mount: u64, dentry: u64) {
        let (pid, filesystem) = (self.take(0x400), self.take(0x40));
        let level = u32::try_from(numbers.len() - 1).unwrap();
        let write = |at: u64, bytes: &[u8]| self.guest.write(at - DIRECT_MAP, bytes);
        write(pid + task::LEVEL, &level.to_le_bytes());
        for (level, number) in (0..).zip(numbers) {
            let at = pid + task::NUMBER + level * task::NUMBER_LENGTH;
            write(at, &number.to_le_bytes());
        }
        let root = [(task::ROOT, mount), (task::ROOT + 8, dentry)];
        self.put_all(filesystem, &root);
        let pointers = [(task::OWN_PID, pid), (task::FILESYSTEM, filesystem)];
        self.put_all(DIRECT_MAP + TASKS + index * 0x1000, &pointers);
    }

    /// Changes the modification time of the file of `inode`.
    pub fn touch(&self, inode: u64) {
        self.put(inode + at::MODIFIED, 1_700_000_001);
    }

    /// Consecutive pages, each filled with one byte. Returns the first page's `struct page`.
    pub fn pages(&mut self, bytes: &[u8]) -> u64 {
        let first = self.next.next_multiple_of(PAGE);
        self.next = first + bytes.len() as u64 * PAGE;
        for (byte, page) in bytes.iter().zip((first..).step_by(4096)) {
            self.guest.write(page, &[*byte; 4096]);
        }
        let page = PAGES + first / PAGE * PAGE_STRUCTURE;
        for index in 0..bytes.len() as u64 {
            self.set_uptodate(page + index * PAGE_STRUCTURE, true);
        }
        page
    }

    /// Sets whether the page with this `struct page` has the file's contents.
    pub fn set_uptodate(&self, page: u64, is_uptodate: bool) {
        let flags = u64::from(is_uptodate) << UPTODATE;
        self.guest
            .write(PHYSICAL_PAGES + page - PAGES, &flags.to_le_bytes());
    }

    /// A node of a page cache's tree, with entries by slot.
    pub fn node(&mut self, shift: u8, entries: &[(u64, u64)]) -> u64 {
        let node = self.take(0x240);
        self.guest.write(node - DIRECT_MAP, &[shift]);
        for (slot, entry) in entries {
            self.put(node + at::SLOTS + slot * 8, *entry);
        }
        node | 2
    }
}
