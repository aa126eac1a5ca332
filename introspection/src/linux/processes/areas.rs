//! The areas of an address space (`struct vm_area_struct`).

use crate::PhysicalMemory;

use super::maple;
use super::process_layout::{Areas, MAX_READ, ProcessLayout};
use crate::bytes::u64_at;
use crate::linux::view::KernelView;
use crate::memory::PAGE;

/// Maximum number of areas that are visited.
const MAX_VISITED: usize = 16_384;
/// Maximum number of executable areas that are returned.
const MAX_TAKEN: usize = 2048;
/// `VM_EXEC` (`include/linux/mm.h`).
const EXECUTABLE: u64 = 4;

/// Whether a walk goes on.
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
    /// In bytes; 0 without a file.
    pub offset: u64,
    /// The guest virtual address of its `struct file`; 0 if it has none.
    pub file: u64,
}

/// Fills `areas` with the executable areas of the address space at `mm`. `None` if it is unreadable.
pub fn read<M: PhysicalMemory>(
    view: &KernelView<'_, M>,
    layout: &ProcessLayout,
    mm: u64,
    areas: &mut Vec<RawArea>,
) -> Option<()> {
    areas.clear();
    let mut taken = Taken {
        view,
        layout,
        areas,
        visited: 0,
        last: 0,
    };
    match &layout.address_space.areas {
        Areas::Tree { root, nodes } => {
            let root = view.u64(mm.wrapping_add(*root))?;
            maple::walk(view, nodes, root, |area| taken.visit(area))
        }
        Areas::List { head, next } => {
            let mut area = view.u64(mm.wrapping_add(*head))?;
            while area != 0 && taken.visit(area) == Visit::Next {
                area = view.u64(area.wrapping_add(*next))?;
            }
            Some(())
        }
    }
}

struct Taken<'t, 'a, M> {
    view: &'t KernelView<'a, M>,
    layout: &'t ProcessLayout,
    areas: &'t mut Vec<RawArea>,
    visited: usize,
    /// The end of the last area.
    last: u64,
}

impl<M: PhysicalMemory> Taken<'_, '_, M> {
    fn visit(&mut self, address: u64) -> Visit {
        self.visited += 1;
        // Areas are sorted. If not, the list is circular or is just being changed.
        let next = match self.area(address) {
            Some((begin, end)) if begin >= self.last && begin < end && end >> 63 == 0 => end,
            _ => return Visit::Enough,
        };
        self.last = next;
        if self.visited >= MAX_VISITED || self.areas.len() >= MAX_TAKEN {
            return Visit::Enough;
        }
        Visit::Next
    }

    /// Adds the area at `address` if it is executable. Returns the area's range.
    fn area(&mut self, address: u64) -> Option<(u64, u64)> {
        let layout = &self.layout.area;
        let mut bytes = [0; MAX_READ];
        let bytes = bytes.get_mut(..layout.length)?;
        self.view.read(address, bytes)?;
        let field = |offset| u64_at(bytes, offset);
        let (begin, end) = (field(layout.start)?, field(layout.end)?);
        let is_sane = begin >= self.last && begin < end;
        if is_sane && field(layout.flags)? & EXECUTABLE != 0 {
            let file = field(layout.file)?;
            // The offset of anonymous memory is its address.
            let pages = if file == 0 {
                0
            } else {
                field(layout.page_offset)?
            };
            self.areas.push(RawArea {
                begin,
                end,
                offset: pages.checked_mul(PAGE)?,
                file,
            });
        }
        Some((begin, end))
    }
}
