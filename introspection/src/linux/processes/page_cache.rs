//! Reads files from the guest's page cache (`struct address_space`): everything in an initramfs or a tmpfs, and
//! recently read parts of other files.
//!
//! The guest runs meanwhile, so inconsistent data is possible, and leads to no contents.

use vm_memory::GuestAddress;

use crate::PhysicalMemory;

use super::maple::is_node;
use super::process_layout::PageCacheLayout;
use super::{FileIdentity, ProcessView};
use crate::linux::LinuxKnowledge;
use crate::linux::view::KernelView;
use kvmprof_paging::PAGE;

/// Maximum length of a file, in bytes.
const MAX_FILE: u64 = 512 << 20;
/// Bytes of a page. Pages are read one at a time.
const PAGE_BYTES: usize = 4096;
/// Maximum depth: 16 levels of 4 bits cover all indices.
const MAX_LEVELS: usize = 16;
/// The start of the `struct page`s without CONFIG_DYNAMIC_MEMORY_LAYOUT, with 4 levels of page tables
/// (`Documentation/arch/x86/x86_64/mm.rst`).
const FIXED_PAGES: u64 = 0xffff_ea00_0000_0000;

impl LinuxKnowledge {
    /// The contents of `wanted`, at most `limit` bytes. `None` if they aren't all in guest memory, or the inode now
    /// belongs to another file.
    pub fn file_contents<M: PhysicalMemory>(
        &self,
        memory: &M,
        wanted: &FileIdentity,
        limit: u64,
    ) -> Option<Vec<u8>> {
        let length = wanted.length.min(limit);
        if length > MAX_FILE {
            return None;
        }
        self.read_pages(memory, wanted, |reader| {
            let mut contents = Vec::new();
            for index in 0..length.div_ceil(PAGE) {
                contents.extend(reader.contents(index)?);
            }
            contents.truncate(usize::try_from(length).ok()?);
            Some(contents)
        })
    }

    /// Compares `bytes`, which should be those of `wanted` from byte `begin` on, with the pages of it that are in guest memory. The
    /// number of these pages that aren't all zeros, which prove nothing; `None` if one of them differs, or the inode now belongs to another file.
    pub fn compare_file<M: PhysicalMemory>(
        &self,
        memory: &M,
        wanted: &FileIdentity,
        begin: u64,
        bytes: &[u8],
    ) -> Option<u64> {
        let mut left = bytes;
        let mut at = begin;
        self.read_pages(memory, wanted, |reader| {
            let mut equal = 0;
            while !left.is_empty() {
                let from = usize::try_from(at % PAGE).ok()?;
                let (part, rest) = left.split_at((PAGE_BYTES - from).min(left.len()));
                if let Some(page) = reader.contents(at / PAGE) {
                    if page.get(from..from + part.len())? != part {
                        return None;
                    }
                    equal += u64::from(part.iter().any(|byte| *byte != 0));
                }
                at = at.checked_add(part.len() as u64)?;
                left = rest;
            }
            Some(equal)
        })
    }

    /// At most `limit` bytes of a file that grows, from byte `begin` on, and its length now. `None` if they aren't all in guest memory, or the inode
    /// now belongs to another file.
    pub fn growing_file<M: PhysicalMemory>(
        &self,
        memory: &M,
        file: &FileIdentity,
        begin: u64,
        limit: u64,
    ) -> Option<(Vec<u8>, u64)> {
        let layout = self.processes.as_ref()?;
        let view = self.direct_view(memory)?;
        let now = ProcessView::new(&view, layout).identity(file.inode);
        let now = now.filter(|now| now.is_same_file(file))?;
        let end = now.length.min(begin.saturating_add(limit)).min(MAX_FILE);
        if end <= begin {
            return Some((Vec::new(), now.length));
        }
        // The file may change meanwhile, but what was written is there.
        let is_same = |now: &FileIdentity| now.is_same_file(file);
        let bytes = self.read_pages_if(memory, file.inode, is_same, |reader| {
            let mut bytes = Vec::new();
            for index in begin / PAGE..end.div_ceil(PAGE) {
                bytes.extend(reader.contents(index)?);
            }
            bytes.truncate(usize::try_from(end - begin / PAGE * PAGE).ok()?);
            bytes.drain(..usize::try_from(begin % PAGE).ok()?);
            Some(bytes)
        })?;
        Some((bytes, now.length))
    }

    /// What `read` makes of the pages of `wanted`. `None` if the inode now belongs to another file, or the file has changed.
    fn read_pages<M: PhysicalMemory, T>(
        &self,
        memory: &M,
        wanted: &FileIdentity,
        read: impl FnOnce(&Reader<'_, '_, M>) -> Option<T>,
    ) -> Option<T> {
        self.read_pages_if(memory, wanted.inode, |now| now == wanted, read)
    }

    /// What `read` makes of the pages of the file with the inode at `inode`. `None` unless it `is_wanted`, before and after.
    fn read_pages_if<M: PhysicalMemory, T>(
        &self,
        memory: &M,
        inode: u64,
        is_wanted: impl Fn(&FileIdentity) -> bool,
        read: impl FnOnce(&Reader<'_, '_, M>) -> Option<T>,
    ) -> Option<T> {
        let layout = self.processes.as_ref()?;
        let cache = layout.page_cache.as_ref().ok()?;
        let view = self.direct_view(memory)?;
        let files = ProcessView::new(&view, layout);
        let is_same = || files.identity(inode).is_some_and(|now| is_wanted(&now));
        if !is_same() {
            return None;
        }
        let reader = Reader {
            flags: self.own_view(memory)?,
            pages: match self.addresses.vmemmap_base {
                Some(variable) => view.variable_u64(variable)?,
                None => FIXED_PAGES,
            },
            mapping: view.u64(inode.wrapping_add(cache.mapping))?,
            layout: cache,
            memory,
            view: &view,
        };
        let result = read(&reader);
        result.filter(|_| is_same())
    }
}

/// Finds the pages of one file.
struct Reader<'r, 'a, M> {
    layout: &'r PageCacheLayout,
    memory: &'a M,
    view: &'r KernelView<'a, M>,
    /// A view of the kernel's virtual memory, where `struct page`s are.
    flags: KernelView<'a, M>,
    /// The guest virtual address of the file's `struct address_space`.
    mapping: u64,
    /// The guest virtual address of page frame 0's `struct page`.
    pages: u64,
}

impl<M: PhysicalMemory> Reader<'_, '_, M> {
    /// The file's page `index`, if it is in guest memory.
    fn contents(&self, index: u64) -> Option<[u8; PAGE_BYTES]> {
        self.memory.read_array(self.page(index)?)
    }

    /// The physical address of the file's page `index`.
    fn page(&self, index: u64) -> Option<GuestAddress> {
        let bits = self.layout.slot_bits;
        let slots = 1 << bits;
        let mut entry = self.view.u64(self.mapping.wrapping_add(self.layout.head))?;
        // The first index that `entry` covers: 0 if there is no node.
        let mut first = 0;
        let mut below = u32::MAX;
        for _ in 0..MAX_LEVELS {
            if !is_node(entry) {
                // Without a node there is only page 0.
                let is_there = below != u32::MAX || index == 0;
                return self.frame(entry, index.checked_sub(first).filter(|_| is_there)?);
            }
            let node = entry - 2;
            let mut shift = [0];
            self.view
                .read(node.wrapping_add(self.layout.shift), &mut shift)?;
            let shift = u32::from(shift[0]);
            // Each level must be below the previous one.
            if shift >= below || shift > 60 || below == u32::MAX && index >> shift >= slots {
                return None;
            }
            below = shift;
            let mut slot = index >> shift & (slots - 1);
            entry = self.slot(node, slot)?;
            if let Some(canonical) = sibling_of(entry, slots) {
                slot = canonical;
                entry = self.slot(node, slot)?;
            }
            // All indices below a node have the same bits above this level.
            let above = index.checked_shr(shift + bits).unwrap_or(0);
            first = above.checked_shl(shift + bits).unwrap_or(0) + (slot << shift);
        }
        None
    }

    fn slot(&self, node: u64, slot: u64) -> Option<u64> {
        self.view
            .u64(node.wrapping_add(self.layout.slots + slot * 8))
    }

    /// The physical address of the page `distance` pages after the one with its `struct page` at `entry`. One entry may
    /// stand for several pages (a folio), whose flags are those of the first one. `None` if they don't have the file's contents yet.
    fn frame(&self, entry: u64, distance: u64) -> Option<GuestAddress> {
        // Values stand for absent pages (`xa_is_value`).
        if entry & 3 != 0 || entry >> 63 == 0 {
            return None;
        }
        let offset = entry.checked_sub(self.pages)?;
        if !offset.is_multiple_of(self.layout.page) {
            return None;
        }
        let flags = self.flags.u64(entry.wrapping_add(self.layout.flags))?;
        if flags >> self.layout.uptodate & 1 == 0 {
            return None;
        }
        let number = (offset / self.layout.page).checked_add(distance)?;
        let address = GuestAddress(number.checked_mul(PAGE)?);
        self.memory.contains(address).then_some(address)
    }
}

/// The slot in the same node of `slots` slots whose entry this slot shares (`xa_is_sibling`).
fn sibling_of(entry: u64, slots: u64) -> Option<u64> {
    (entry & 3 == 2 && entry < slots << 2).then_some(entry >> 2)
}
