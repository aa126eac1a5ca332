//! Stacks of functions whose return address the kernel has replaced.

use super::super::return_hooks::{Graph, Probes, ProgramProbes, ReturnHooks};
use super::*;

const TASK: u64 = 0xffff_8880_0001_0000;
const NODES: u64 = 0xffff_8880_0002_0000;
const LIST: u64 = 0xffff_8880_0003_0000;
/// The trampolines, which are functions of the kernel that nothing calls.
const PROBE: u64 = 0x1_0000;
const GRAPH: u64 = 0x1_1000;

fn hooks() -> ReturnHooks {
    ReturnHooks {
        trampolines: [Some(TEXT + PROBE), None, None, Some(TEXT + GRAPH)],
        probes: Some(Probes {
            first: 0x40,
            next: 16,
            address: 32,
            place: 40,
        }),
        graph: Some(Graph {
            list: 0x80,
            distance: 16,
        }),
        programs: Some(ProgramProbes {
            trampoline: [0xc0, 0x10, 0x18],
            first: [0xc8, 0x20],
            next: 0x28,
            address: 8,
            place: 0,
        }),
    }
}

/// A system call whose function [`LEAF`] returns to `trampoline`.
fn hooked(trampoline: u64) -> Words {
    let mut memory = system_call();
    memory.set(STACK, &[at(trampoline)]);
    memory.set(TASK + 0x40, &[NODES + 16]);
    memory.set(TASK + 0x80, &[LIST]);
    memory.set(LIST, &[0; 512]);
    memory
}

/// Adds a waiting return probe: the list's `index`-th.
fn probe(memory: &mut Words, index: u64, back: u64, place: u64, is_last: bool) {
    let next = match is_last {
        true => 0,
        false => NODES + 16 + 0x100 * (index + 1),
    };
    memory.set(NODES + 16 + 0x100 * index, &[next, 0, back, place]);
}

fn frames(memory: &mut Words, task: Option<u64>) -> (Vec<u64>, StackEnd) {
    let orc = table(&ROWS, "6.12.9").unwrap();
    let registers = in_kernel(at(LEAF) + 3, STACK, STACK + 0x80);
    let hooks = hooks();
    let (stack, _) = walk_hooked(Some(&orc), Some((&hooks, task)), &registers, memory);
    (stack.frames().to_vec(), stack.summary().kernel_end)
}

fn whole() -> (Vec<u64>, StackEnd) {
    let frames = [at(LEAF) + 3, at(CALLER) + 8, at(FRAMED) + 4, at(ENTRY) + 6];
    (frames.to_vec(), StackEnd::Complete)
}

fn cut() -> (Vec<u64>, StackEnd) {
    (vec![at(LEAF) + 3], StackEnd::Broken)
}

#[test]
fn a_return_probes_function_leads_to_its_caller() {
    let back = at(CALLER) + 9;
    let mut memory = hooked(PROBE);
    // One for another place, and a second probe of the same function.
    probe(&mut memory, 0, at(FRAMED) + 5, STACK + 8, false);
    probe(&mut memory, 1, at(PROBE), STACK, false);
    probe(&mut memory, 2, back, STACK, true);
    assert_eq!(frames(&mut memory, Some(TASK)), whole());
    // The task is unknown.
    assert_eq!(frames(&mut memory, None), cut());
    // There is no probe for this place, and a list without an end.
    for is_last in [true, false] {
        let mut memory = hooked(PROBE);
        probe(&mut memory, 0, back, STACK + 8, is_last);
        if !is_last {
            memory.set(NODES + 16, &[NODES + 16]);
        }
        assert_eq!(frames(&mut memory, Some(TASK)), cut());
    }
}

#[test]
fn a_traced_function_leads_to_its_caller() {
    let back = at(CALLER) + 9;
    let mut memory = hooked(GRAPH);
    memory.set(LIST + 0x100, &[back, at(LEAF), STACK]);
    assert_eq!(frames(&mut memory, Some(TASK)), whole());
    // An old entry with the same address, and one with another address.
    memory.set(LIST + 0x200, &[back, at(LEAF), STACK]);
    assert_eq!(frames(&mut memory, Some(TASK)), whole());
    memory.set(LIST + 0x300, &[at(FRAMED) + 5, at(LEAF), STACK]);
    assert_eq!(frames(&mut memory, Some(TASK)), cut());
    // A task without a list.
    let mut memory = hooked(GRAPH);
    memory.set(TASK + 0x80, &[0]);
    assert_eq!(frames(&mut memory, Some(TASK)), cut());
}

#[test]
fn a_function_may_be_probed_and_traced() {
    let mut memory = hooked(PROBE);
    probe(&mut memory, 0, at(GRAPH), STACK, true);
    memory.set(LIST + 0x100, &[at(CALLER) + 9, at(LEAF), STACK]);
    assert_eq!(frames(&mut memory, Some(TASK)), whole());
    // Both lists refer to a trampoline.
    memory.set(LIST + 0x100, &[at(PROBE), at(LEAF), STACK]);
    assert_eq!(frames(&mut memory, Some(TASK)), cut());
}

#[test]
fn a_programs_function_leads_to_its_caller() {
    const PAGE: u64 = 0x7fff_0000_3000;
    const PLACE: u64 = 0x7fff_0000_0ff8;
    const BACK: u64 = 0x40_1234;
    let [structures, state, task_state] = [NODES, NODES + 0x100, NODES + 0x200];
    let mut known = std::collections::BTreeMap::from([
        (TASK + 0xc0, structures),
        (structures + 0x10, state),
        (state + 0x18, PAGE),
        (TASK + 0xc8, task_state),
        (task_state + 0x20, LIST),
        // Another function's, and this one's.
        (LIST, PLACE - 0x40),
        (LIST + 8, BACK + 1),
        (LIST + 0x28, LIST + 0x100),
        (LIST + 0x100, PLACE),
        (LIST + 0x108, BACK),
        (LIST + 0x128, 0),
    ]);
    let hooks = hooks();
    let found = |known: &std::collections::BTreeMap<u64, u64>, back, place| {
        hooks.true_address_in_program((back, place), TASK, |address| known.get(&address).copied())
    };
    assert_eq!(found(&known, PAGE, PLACE), Some(BACK));
    assert_eq!(found(&known, PAGE, PLACE + 8), None, "no probe is there");
    assert_eq!(found(&known, PAGE + 0x1000, PLACE), None, "another page");
    assert_eq!(
        found(&known, PAGE + 8, PLACE),
        None,
        "behind the trampoline"
    );
    // A list without an end, a task without probes.
    known.insert(LIST + 0x128, LIST);
    assert_eq!(found(&known, PAGE, PLACE + 8), None);
    known.insert(TASK + 0xc8, 0);
    assert_eq!(found(&known, PAGE, PLACE), None);
}
