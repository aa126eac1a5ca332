//! Return addresses that the kernel has replaced. Return probes (`kernel/trace/rethook.c`) and the function graph tracer
//! (`kernel/trace/fgraph.c`) let functions return to a trampoline, and keep the true address in a list of the task. So do
//! return probes of programs (`kernel/events/uprobes.c`), whose trampoline is at the start of a page of the process.
//!
//! The trampoline wasn't called, so the instruction before it belongs to another function.

use super::stack_memory::StackMemory;
use crate::Symbols;
use crate::image::types::Types;
use kvmprof_paging::PAGE;

/// Maximum number of functions of one task that wait for a return probe.
const MAX_NODES: usize = 64;
/// Words of a task's list that are searched for a traced function: a page (`SHADOW_STACK_SIZE`), or 50 entries of at
/// most 10 words.
const MAX_WORDS: u64 = 512;

/// Where a kernel keeps true return addresses.
#[derive(Debug, Default)]
pub struct ReturnHooks {
    /// The link-time addresses of the trampolines: those of return probes, then that of the function graph tracer.
    pub(super) trampolines: [Option<u64>; 4],
    pub(super) probes: Option<Probes>,
    pub(super) graph: Option<Graph>,
    pub(super) programs: Option<ProgramProbes>,
}

/// Offsets of the list of return probes, in bytes.
#[derive(Debug)]
pub(super) struct Probes {
    /// `task_struct.rethooks`.
    pub first: u64,
    /// The members of `struct rethook_node`.
    pub next: u64,
    pub address: u64,
    pub place: u64,
}

/// Offsets of the function graph tracer's list, in bytes.
#[derive(Debug)]
pub(super) struct Graph {
    /// `task_struct.ret_stack`.
    pub list: u64,
    /// The distance from `ftrace_ret_stack.retp`, the place of the return address, back to `ret`, the address.
    pub distance: u64,
}

/// Offsets that lead to the return probes of a program, in bytes.
#[derive(Debug)]
pub(super) struct ProgramProbes {
    /// From a task to the address of its process's trampoline: `task_struct.mm`, `mm_struct.uprobes_state.xol_area`, `xol_area.vaddr`.
    pub trampoline: [u64; 3],
    /// From a task to its list: `task_struct.utask`, `uprobe_task.return_instances`.
    pub first: [u64; 2],
    /// The members of `struct return_instance`: `next`, `orig_ret_vaddr`, `stack`.
    pub next: u64,
    pub address: u64,
    pub place: u64,
}

impl ReturnHooks {
    /// Finds the trampolines and offsets.
    pub fn find(symbols: &Symbols, types: &Types<'_>) -> Self {
        let offset = |structure, member| types.offset_of(structure, member);
        let probes = || {
            Some(Probes {
                first: offset("task_struct", "rethooks")?,
                next: offset("rethook_node", "llist")?,
                address: offset("rethook_node", "ret_addr")?,
                place: offset("rethook_node", "frame")?,
            })
        };
        let graph = || {
            let (address, place) = (
                offset("ftrace_ret_stack", "ret")?,
                offset("ftrace_ret_stack", "retp")?,
            );
            Some(Graph {
                list: offset("task_struct", "ret_stack")?,
                distance: place.checked_sub(address)?,
            })
        };
        let programs = || {
            let state = offset("mm_struct", "uprobes_state")?;
            let page = state.checked_add(offset("uprobes_state", "xol_area")?)?;
            Some(ProgramProbes {
                trampoline: [
                    offset("task_struct", "mm")?,
                    page,
                    offset("xol_area", "vaddr")?,
                ],
                first: [
                    offset("task_struct", "utask")?,
                    offset("uprobe_task", "return_instances")?,
                ],
                next: offset("return_instance", "next")?,
                address: offset("return_instance", "orig_ret_vaddr")?,
                place: offset("return_instance", "stack")?,
            })
        };
        Self {
            // The second and third are the names in kernels before 5.18.
            trampolines: symbols.addresses_of([
                "arch_rethook_trampoline",
                "__kretprobe_trampoline",
                "kretprobe_trampoline",
                "return_to_handler",
            ]),
            probes: probes(),
            graph: graph(),
            programs: programs(),
        }
    }

    /// The address that a function of the program of `task` returns to, if `back` at `place` on its stack is the trampoline. `word` reads the kernel's
    /// memory. `None` if `back` is another address, or the true one isn't known.
    pub fn true_address_in_program(
        &self,
        (back, place): (u64, u64),
        task: u64,
        word: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        // Hardly any other return address is at the start of a page.
        let is_likely = back.is_multiple_of(PAGE);
        let probes = self.programs.as_ref().filter(|_| is_likely)?;
        probes.find(task, back, place, word)
    }

    /// The address that a function of `task` returns to, if `back` is at `place` on its stack. `slide` is the kernel's.
    /// `None` if the address isn't known.
    pub fn true_address(
        &self,
        (mut back, place): (u64, u64),
        slide: u64,
        task: Option<u64>,
        memory: &mut impl StackMemory,
    ) -> Option<u64> {
        // A function may have both kinds.
        for _ in 0..=2 {
            let linked = back.wrapping_sub(slide);
            let Some(kind) = (self.trampolines.iter()).position(|known| *known == Some(linked))
            else {
                return Some(back);
            };
            let is_graph = kind + 1 == self.trampolines.len();
            back = match is_graph {
                true => self.graph.as_ref()?.find(task?, place, memory)?,
                false => self.probes.as_ref()?.find(task?, place, back, memory)?,
            };
        }
        None
    }
}

impl Probes {
    fn find(
        &self,
        task: u64,
        place: u64,
        trampoline: u64,
        memory: &mut impl StackMemory,
    ) -> Option<u64> {
        let mut next = memory.word(task.wrapping_add(self.first))?;
        for _ in 0..MAX_NODES {
            if next == 0 {
                return None;
            }
            let node = next.wrapping_sub(self.next);
            let mut word = |offset| memory.word(node.wrapping_add(offset));
            if word(self.place)? == place {
                let back = word(self.address)?;
                // Of several probes of one function, only the first one has seen the true address.
                if back != trampoline {
                    return Some(back);
                }
            }
            next = memory.word(next)?;
        }
        None
    }
}

impl ProgramProbes {
    fn find(
        &self,
        task: u64,
        trampoline: u64,
        place: u64,
        word: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let member = |at: u64, offset: u64| word(at.wrapping_add(offset)).filter(|it| *it != 0);
        let known = (self.trampoline.iter()).try_fold(task, |at, offset| member(at, *offset))?;
        (known == trampoline).then_some(())?;
        let mut node = (self.first.iter()).try_fold(task, |at, offset| member(at, *offset))?;
        // Of several probes of one function, each has the true address.
        for _ in 0..MAX_NODES {
            if member(node, self.place)? == place {
                return member(node, self.address);
            }
            node = member(node, self.next)?;
        }
        None
    }
}

impl Graph {
    /// Old entries may have any values, and the list's form depends on the kernel. So all entries for `place` must have
    /// the same address.
    fn find(&self, task: u64, place: u64, memory: &mut impl StackMemory) -> Option<u64> {
        let list = memory.word(task.wrapping_add(self.list))?;
        let mut found = None;
        for word in (0..MAX_WORDS).map(|index| list.wrapping_add(8 * index)) {
            if list == 0 || memory.word(word)? != place {
                continue;
            }
            let back = memory.word(word.wrapping_sub(self.distance))?;
            if found.is_some_and(|found| found != back) {
                return None;
            }
            found = Some(back);
        }
        found
    }
}
