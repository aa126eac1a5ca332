//! A file's pages in memory: from its inode to the tree of its pages.

use super::super::flow::{Node, Use};
use super::super::{Code, Findings};

/// Finds `inode.i_mapping`, and the tree's root in a `struct address_space`.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    // `truncate_pagecache(inode, size)` (`mm/truncate.c`) passes the inode's pages on.
    if let Some(flow) = code.flow("truncate_pagecache") {
        for call in code.calls_to(&flow, "unmap_mapping_range") {
            if let Some((inode, mapping)) = flow.read_from(call.arguments[0], 8)
                && flow.is_argument(inode, 0)
            {
                findings.add_member("inode", "i_mapping", mapping);
            }
        }
    }
    let Some(root) = root_of_tree(code) else {
        return;
    };
    // Both begin a walk through `&mapping->i_pages` (`mm/filemap.c`), which the walk's state begins with.
    for flow in code.flows(["page_cache_next_miss", "page_cache_prev_miss"]) {
        for access in &flow.accesses {
            let value = access.value.map(|value| flow.node(value));
            if let Some(Node::Sum(mapping, tree)) = value
                && access.kind == Use::Write
                && flow.is_argument(mapping, 0)
                && let Ok(tree) = u64::try_from(tree)
            {
                let head = tree.saturating_add(root);
                findings.add_member("address_space", "i_pages.xa_head", head);
            }
        }
    }
}

/// The place of the root in a `struct xarray`: `xas_start(state)` (`lib/xarray.c`) reads it from the tree, whose address
/// the state begins with.
fn root_of_tree(code: &Code<'_>) -> Option<u64> {
    let flow = code.flow("xas_start")?;
    let tree = flow.find(Node::Read(flow.argument(0)?, 0, 8))?;
    flow.only_read_of(tree, 8)
}
