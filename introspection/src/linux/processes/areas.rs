//! The areas of an address space (`struct vm_area_struct`).

use crate::PhysicalMemory;

use super::process_layout::{Areas, MAX_READ};
use super::{ProcessView, maple};
use crate::bytes::u64_at;
use kvmprof_paging::PAGE;

/// Maximum number of areas that are visited.
const MAX_VISITED: usize = 16_384;
/// Maximum number of executable areas that are returned.
const MAX_TAKEN: usize = 2048;
/// `VM_WRITE` and `VM_EXEC` (`include/linux/mm.h`).
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;

/// Whether a walk continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    Next,
    Enough,
}

/// An executable area as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawArea {
    pub begin: u64,
    pub end: u64,
    /// The file's offset, in bytes; 0 without a file.
    pub offset: u64,
    /// The guest virtual address of its `struct file`; 0 without a file.
    pub file: u64,
    /// Without a file, the guest virtual address of its `struct vm_special_mapping` if the kernel has made the area for itself.
    pub special: u64,
}

/// The members of an area that were read.
struct Visited {
    begin: u64,
    end: u64,
    flags: u64,
    pages: u64,
    file: u64,
    private: u64,
}

impl Visited {
    fn raw(&self) -> Option<RawArea> {
        // The offset of anonymous memory is its address.
        let (pages, special) = match self.file {
            0 => (0, self.private),
            _ => (self.pages, 0),
        };
        Some(RawArea {
            begin: self.begin,
            end: self.end,
            offset: pages.checked_mul(PAGE)?,
            file: self.file,
            special,
        })
    }
}

impl<M: PhysicalMemory> ProcessView<'_, M> {
    /// Fills `areas` with the executable areas of the address space at `mm`. `None` if it is unreadable.
    pub fn executable_areas(&self, mm: u64, areas: &mut Vec<RawArea>) -> Option<()> {
        areas.clear();
        self.walk(mm, |area| {
            if area.flags & EXECUTABLE != 0 {
                let raw = area.raw();
                areas.extend(raw);
                if raw.is_none() || areas.len() >= MAX_TAKEN {
                    return Visit::Enough;
                }
            }
            Visit::Next
        })
    }

    /// Whether the process with the address space at `mm` may write at `address`, even if no page is there yet. `None` if
    /// the address space is unreadable.
    pub fn can_write(&self, mm: u64, address: u64) -> Option<bool> {
        let mut found = false;
        self.walk(mm, |area| {
            if area.end <= address {
                return Visit::Next;
            }
            found = area.begin <= address && area.flags & WRITABLE != 0;
            Visit::Enough
        })?;
        Some(found)
    }

    /// Passes the areas of the address space at `mm` to `visit`, in the order of their addresses.
    fn walk(&self, mm: u64, mut visit: impl FnMut(&Visited) -> Visit) -> Option<()> {
        let view = self.view;
        let (mut visited, mut last) = (0, 0);
        let mut visit = |address| {
            visited += 1;
            // Areas are sorted. Unsorted areas mean that the list is circular or is being changed.
            let area = self.area(address);
            let area = area
                .filter(|area| area.begin >= last && area.begin < area.end && area.end >> 63 == 0);
            let Some(area) = area else {
                return Visit::Enough;
            };
            last = area.end;
            if visit(&area) == Visit::Enough || visited >= MAX_VISITED {
                return Visit::Enough;
            }
            Visit::Next
        };
        match &self.layout.address_space.areas {
            Areas::Tree { root, nodes } => {
                let root = view.u64(mm.wrapping_add(*root))?;
                maple::walk(view, nodes, root, visit)
            }
            Areas::List { head, next } => {
                let mut area = view.u64(mm.wrapping_add(*head))?;
                while area != 0 && visit(area) == Visit::Next {
                    area = view.u64(area.wrapping_add(*next))?;
                }
                Some(())
            }
        }
    }

    /// The area at `address`.
    fn area(&self, address: u64) -> Option<Visited> {
        let layout = &self.layout.area;
        let mut bytes = [0; MAX_READ];
        let bytes = bytes.get_mut(..layout.length)?;
        self.view.read(address, bytes)?;
        Some(Visited {
            begin: u64_at(bytes, layout.start)?,
            end: u64_at(bytes, layout.end)?,
            flags: u64_at(bytes, layout.flags)?,
            pages: u64_at(bytes, layout.page_offset)?,
            file: u64_at(bytes, layout.file)?,
            private: u64_at(bytes, layout.private)?,
        })
    }
}
