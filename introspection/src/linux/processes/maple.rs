//! The maple tree of an address space's areas (`lib/maple_tree.c`).

use crate::PhysicalMemory;

use super::areas::Visit;
use super::process_layout::{MAX_READ, MapleLayout};
use crate::bytes::u64_at;
use crate::linux::view::KernelView;

/// Maximum depth: each level has at least 4 times as many entries as the one above.
const MAX_DEPTH: usize = 16;
/// Maximum number of nodes that are read.
const MAX_NODES: usize = 8192;
/// Alignment of nodes; the lower bits of a pointer are the node's type.
const ALIGNMENT: u64 = 256;
/// `maple_leaf_64`, `maple_range_64`, `maple_arange_64` (`enum maple_type`, `include/linux/maple_tree.h`).
const LEAF: u64 = 1;
const RANGE: u64 = 2;
const ALLOCATION_RANGE: u64 = 3;

/// Passes the entries of the tree at `root` to `visit`, in the order of their addresses, until `visit` stops the walk.
pub fn walk<M: PhysicalMemory>(
    view: &KernelView<'_, M>,
    layout: &MapleLayout,
    root: u64,
    mut visit: impl FnMut(u64) -> Visit,
) -> Option<()> {
    if !is_node(root) {
        // The tree is a single entry, or empty.
        if root != 0 {
            visit(root);
        }
        return Some(());
    }
    let mut walk = Walk {
        view,
        layout,
        nodes: MAX_NODES,
    };
    walk.node(root, u64::MAX, MAX_DEPTH, &mut visit)?;
    Some(())
}

/// True for an entry that points to a node (`xa_is_node`, `include/linux/xarray.h`).
pub fn is_node(entry: u64) -> bool {
    entry & 3 == 2 && entry > 4096
}

struct Walk<'w, 'a, M> {
    view: &'w KernelView<'a, M>,
    layout: &'w MapleLayout,
    /// The number of nodes that may still be read.
    nodes: usize,
}

impl<M: PhysicalMemory> Walk<'_, '_, M> {
    /// Visits the subtree of the node that `entry` points to. `last` is its last index.
    fn node(
        &mut self,
        entry: u64,
        last: u64,
        depth: usize,
        visit: &mut impl FnMut(u64) -> Visit,
    ) -> Option<Visit> {
        let depth = depth.checked_sub(1)?;
        self.nodes = self.nodes.checked_sub(1)?;
        let kind = entry >> 3 & 0xf;
        let layout = match kind {
            LEAF | RANGE => self.layout.range,
            ALLOCATION_RANGE => self.layout.allocation,
            _ => return None,
        };
        let mut node = [0; MAX_READ];
        let node = node.get_mut(..layout.slots + (layout.count + 1) * 8)?;
        self.view.read(entry & !(ALIGNMENT - 1), node)?;
        for index in 0..=layout.count {
            let pivot = (index < layout.count)
                .then(|| u64_at(node, layout.pivots + index * 8))
                .flatten();
            // The last slot in use needs no pivot.
            let pivot = pivot.filter(|pivot| index == 0 || *pivot != 0);
            let pivot = pivot.unwrap_or(last);
            let slot = u64_at(node, layout.slots + index * 8)?;
            let next = match (slot, kind) {
                (0, _) => Visit::Next,
                (_, LEAF) => visit(slot),
                _ => self.node(slot, pivot.min(last), depth, visit)?,
            };
            if next == Visit::Enough {
                return Some(next);
            }
            if pivot >= last {
                break;
            }
        }
        Some(Visit::Next)
    }
}
