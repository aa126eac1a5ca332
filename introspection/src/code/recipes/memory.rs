//! A task's memory: `struct mm_struct`.

use super::super::flow::{Flow, Use, Value};
use super::super::{Code, Findings};

const MEMORY: &str = "mm_struct";

/// Finds `task_struct.mm`, and members of `struct mm_struct`.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    if let Some(flow) = code.flow("get_task_mm") {
        of_task(&flow, findings);
    }
    if let Some(flow) = code.flow("__mmdrop") {
        page_tables(code, &flow, findings);
    }
    let of_task = findings.member("task_struct", "mm");
    for flow in code.flows(["split_vma", "do_mmap"]) {
        if let Some(count) = count_of_areas(&flow, of_task) {
            findings.add_member(MEMORY, "map_count", count);
        }
    }
    if let Some(flow) = code.flow("get_cmdline") {
        arguments(&flow, findings);
    }
}

/// `get_task_mm(task)` (`kernel/fork.c`) counts a further user of the task's memory.
fn of_task(flow: &Flow, findings: &mut Findings) {
    for access in &flow.accesses {
        let is_count = access.kind == Use::Update && access.width == 4 && access.is_atomic();
        if let Some((task, mm)) = flow.read_from(access.place.base, 8).filter(|_| is_count)
            && flow.is_argument(task, 0)
        {
            findings.add_member("task_struct", "mm", mm);
        }
    }
}

/// `__mmdrop(mm)` (`kernel/fork.c`) calls `pgd_free(mm, mm->pgd)`.
fn page_tables(code: &Code<'_>, flow: &Flow, findings: &mut Findings) {
    for call in code.calls_to(flow, "pgd_free") {
        let [mm, pgd, ..] = call.arguments;
        if let Some((_, offset)) = flow.read_from(pgd, 8).filter(|(base, _)| *base == mm) {
            findings.add_member(MEMORY, "pgd", offset);
        }
    }
}

/// `split_vma` and `do_mmap` (`mm/mmap.c`, later `mm/vma.c`) compare the number of areas with its limit, a variable of 4
/// bytes. They have the memory as their first argument, or in the area, their second argument, or in the running task, at
/// `of_task`.
fn count_of_areas(flow: &Flow, of_task: Option<u64>) -> Option<u64> {
    let is_memory = |value: Value| {
        flow.is_argument(value, 0)
            || flow.read_from(value, 8).is_some_and(|(base, offset)| {
                let is_task = Some(offset) == of_task && flow.per_cpu(base).is_some();
                flow.is_argument(base, 1) || is_task
            })
    };
    let numbers = || flow.accesses.iter().filter(|access| access.width == 4);
    let limit = numbers().find(|access| flow.variable(access.place).is_some());
    limit?;
    let mut counts = numbers().filter(|access| is_memory(access.place.base));
    u64::try_from(counts.next()?.place.offset).ok()
}

/// `get_cmdline(task, ...)` (`mm/util.c`) reads arg_start, arg_end, env_start and env_end, which follow each other.
fn arguments(flow: &Flow, findings: &mut Findings) {
    for (value, _) in flow.values() {
        let mut words: Vec<u64> = flow.reads_of(value, 8).collect();
        words.sort_unstable();
        words.dedup();
        if let [first, .., last] = words.as_slice()
            && words.len() == 4
            && last - first == 24
        {
            findings.add_member(MEMORY, "arg_start", *first);
        }
    }
}
