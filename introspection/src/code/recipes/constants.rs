//! Members that have been at the same distance from others in all versions, from 5.10 to 7.2.

use super::super::{Code, Findings};

/// A structure, a member that is known, another one, and how far that is behind it, in bytes.
const NEIGHBOURS: [(&str, &str, &str, i64); 7] = [
    // `mm_struct`: start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end,
    // env_start, env_end, saved_auxv (`include/linux/mm_types.h`).
    ("mm_struct", "arg_start", "start_code", -7 * 8),
    ("mm_struct", "arg_start", "saved_auxv", 4 * 8),
    // `task_struct`: nvcsw, nivcsw, start_time; real_parent, parent, children, sibling, group_leader
    // (`include/linux/sched.h`).
    ("task_struct", "start_time", "nvcsw", -2 * 8),
    ("task_struct", "start_time", "nivcsw", -8),
    ("task_struct", "real_parent", "group_leader", 6 * 8),
    // `dentry`: d_parent, d_name; `qstr`: hash, len, name (`include/linux/dcache.h`).
    ("dentry", "d_parent", "d_name.len", 8 + 4),
    ("dentry", "d_parent", "d_name.name", 8 + 8),
];

/// Nodes of a maple tree: their parent is first, then pivots, then slots, of which there is one more
/// (`include/linux/maple_tree.h`).
const NODES: [(&str, u64); 2] = [("maple_range_64", 16), ("maple_arange_64", 10)];

/// Adds these members.
pub fn find(_code: &Code<'_>, findings: &mut Findings) {
    for (structure, known, other, distance) in NEIGHBOURS {
        let offset = findings.member(structure, known);
        if let Some(offset) = offset.and_then(|offset| offset.checked_add_signed(distance)) {
            findings.add_member(structure, other, offset);
        }
    }
    if findings.member("mm_struct", "mm_mt.ma_root").is_some() {
        for (structure, slots) in NODES {
            findings.add_member(structure, "pivot", 8);
            findings.add_member(structure, "slot", 8 * slots);
        }
    }
}
