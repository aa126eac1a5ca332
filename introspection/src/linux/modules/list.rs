//! A list of structures of the kernel (`struct list_head`, `include/linux/types.h`).

use std::iter::successors;

use kvmprof_paging::read_u64;

use crate::PhysicalMemory;

use super::super::placement::Placement;
use super::super::view::KernelView;

/// Where a list is.
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// The link-time address of its head.
    pub head: u64,
    /// The link-time address of a number that changes with the list, if there is one.
    pub changes: Option<u64>,
    /// The offset of the `struct list_head` in each structure.
    pub entry: usize,
}

/// Distinguishes a list from its former states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListState {
    /// The first and the last entry.
    ends: [u64; 2],
    changes: u32,
}

impl List {
    /// The addresses of the structures, at most so many, for any contents of memory.
    pub fn structures<M: PhysicalMemory>(
        self,
        view: &KernelView<'_, M>,
        most: usize,
    ) -> impl Iterator<Item = u64> {
        let head = view.linked(self.head);
        let follow = move |link: u64| view.u64(link).filter(|next| *next != head);
        let entries = successors(follow(head), move |entry| follow(*entry));
        entries
            .take(most)
            .map(move |entry| entry.wrapping_sub(self.entry as u64))
    }

    /// The present state. `None` if it is unreadable.
    pub fn state<M: PhysicalMemory>(self, memory: &M, placement: Placement) -> Option<ListState> {
        let head = placement.physical(self.head);
        let previous = placement.physical(self.head.wrapping_add(8));
        let changes = match self.changes {
            Some(address) => memory.read_array(placement.physical(address))?,
            None => [0; 4],
        };
        Some(ListState {
            ends: [read_u64(memory, head)?, read_u64(memory, previous)?],
            changes: u32::from_le_bytes(changes),
        })
    }
}
