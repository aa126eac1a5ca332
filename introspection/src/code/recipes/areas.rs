//! The areas of a process's memory, and their files.

use super::super::flow::{Flow, Node, Use, Value};
use super::super::{Code, Findings};

/// Finds the areas, and how much memory they are.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    if let Some(flow) = code.flow("show_map_vma") {
        shown(code, &flow, findings);
    }
    if let Some(flow) = code.flow("vm_stat_account") {
        accounted(&flow, findings);
    }
    if let Some(flow) = code.flow("find_vma") {
        tree(code, &flow, findings);
    }
    if let Some(flow) = code.flow("__vma_link_list") {
        list(&flow, findings);
    }
}

/// Before 6.1, `__vma_link_list(mm, area, previous)` (`mm/util.c`) makes the area the first one of the memory, or the
/// next one of the previous area.
fn list(flow: &Flow, findings: &mut Findings) {
    let written = |base: usize| {
        let area = flow.argument(1)?;
        let mut words = flow.words_of(flow.argument(base)?, 8);
        let link =
            words.find(|(_, access)| access.kind == Use::Write && access.value == Some(area))?;
        Some(link.0)
    };
    if let (Some(first), Some(next)) = (written(0), written(2)) {
        findings.add_member("mm_struct", "mmap", first);
        findings.add_member("vm_area_struct", "vm_next", next);
    }
}

/// A line of `/proc/PID/maps`: `show_map_vma(file, area)` passes start, end, flags, place in the file, device and inode
/// on to `show_vma_header_prefix` (`fs/proc/task_mmu.c`).
fn shown(code: &Code<'_>, flow: &Flow, findings: &mut Findings) {
    const AREA: &str = "vm_area_struct";
    let of_area = |value: Value, width| {
        let (base, offset) = flow.read_from(value, width)?;
        flow.is_argument(base, 1).then_some(offset)
    };
    for call in &flow.calls {
        let name = call.target.and_then(|target| code.name(target));
        if !name.is_some_and(|name| name.starts_with("show_vma_header_prefix")) {
            continue;
        }
        let [_, start, end, flags, _, device] = call.arguments;
        for (member, value) in [("vm_start", start), ("vm_end", end), ("vm_flags", flags)] {
            if let Some(offset) = of_area(value, 8) {
                findings.add_member(AREA, member, offset);
            }
        }
        // The device is `file_inode(file)->i_sb->s_dev`.
        let of_file = || {
            let (superblock, device) = flow.read_from(device, 4)?;
            let (inode, superblock) = flow.read_from(superblock, 8)?;
            let (file, of_inode) = flow.read_from(inode, 8)?;
            Some((inode, [of_area(file, 8)?, of_inode, superblock, device]))
        };
        let Some((inode, [file, of_inode, superblock, device])) = of_file() else {
            continue;
        };
        findings.add_member(AREA, "vm_file", file);
        findings.add_member("file", "f_inode", of_inode);
        findings.add_member("inode", "i_sb", superblock);
        findings.add_member("super_block", "s_dev", device);
        let number = call
            .pushed
            .first()
            .and_then(|pushed| flow.read_from(*pushed, 8));
        if let Some((_, number)) = number.filter(|(base, _)| *base == inode) {
            findings.add_member("inode", "i_ino", number);
        }
        // What remains of the area is the place in the file, in pages, which is shifted to bytes.
        let known = ["vm_start", "vm_end", "vm_flags", "vm_file"];
        let known = known.map(|member| findings.member(AREA, member));
        let words = flow.accesses.iter().filter_map(|access| {
            let is_word = access.width == 8 && access.kind == Use::Read;
            let is_it = is_word && flow.is_argument(access.place.base, 1);
            is_it.then(|| u64::try_from(access.place.offset).ok())?
        });
        let shifted = words.filter(|offset| !known.contains(&Some(*offset)));
        if let Some(offset) = shifted.max() {
            findings.add_member(AREA, "vm_pgoff", offset);
        }
    }
}

/// `vm_stat_account(mm, flags, pages)` (`mm/mmap.c`, later `mm/vma.c`): counts all memory, and that of one kind. The
/// counts of data, of programs and of stacks follow each other.
fn accounted(flow: &Flow, findings: &mut Findings) {
    let counts = flow.accesses.iter().filter_map(|access| {
        let is_count = access.width == 8
            && matches!(access.kind, Use::Update | Use::Write)
            && flow.is_argument(access.place.base, 0);
        is_count.then(|| u64::try_from(access.place.offset).ok())?
    });
    let mut counts: Vec<u64> = counts.collect();
    counts.dedup();
    let Some(total) = counts.first().copied() else {
        return;
    };
    counts.sort_unstable();
    counts.dedup();
    let is_row = |row: &[u64]| row[1] == row[0] + 8 && row[2] == row[1] + 8;
    if let [first, row @ ..] = counts.as_slice()
        && *first == total
        && row.len() == 3
        && is_row(row)
    {
        findings.add_member("mm_struct", "total_vm", total);
        findings.add_member("mm_struct", "exec_vm", row[1]);
    }
}

/// `find_vma(mm, address)` (`mm/mmap.c`) passes `&mm->mm_mt` on to `mt_find`; before 6.1 it walks a tree.
fn tree(code: &Code<'_>, flow: &Flow, findings: &mut Findings) {
    for call in code.calls_to(flow, "mt_find") {
        let tree = match flow.node(call.arguments[0]) {
            Node::Argument(0) => 0,
            Node::Sum(base, offset) if flow.is_argument(base, 0) && offset > 0 => {
                offset.cast_unsigned()
            }
            _ => continue,
        };
        if let Some(root) = root_of_tree(code) {
            findings.add_member("mm_struct", "mm_mt.ma_root", tree.saturating_add(root));
        }
    }
}

/// The place of the root in a maple tree, which begins with a lock: `mtree_load(tree, index)` (`lib/maple_tree.c`) reads
/// it, and nothing else of 8 bytes.
fn root_of_tree(code: &Code<'_>) -> Option<u64> {
    let flow = code.flow("mtree_load")?;
    flow.only_read_of(flow.argument(0)?, 8)
}
