//! The call stacks of the workload, which `image/processes.c` and `image/workload/mixed.c` determine.

/// A call stack of the workload in one of the functions that use its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// The process on whose behalf the stack runs; 0 is idle.
    pub pid: i32,
    /// The kernel's functions, innermost first; none in user mode.
    pub kernel: &'static [&'static str],
    /// The program's functions, innermost first; none if no program is waiting for the kernel.
    pub user: &'static [&'static str],
}

const fn user(pid: i32, user: &'static [&'static str]) -> Stack {
    let kernel = &[];
    Stack { pid, kernel, user }
}

const fn paid(kernel: &'static [&'static str]) -> Stack {
    let user = &["ask_for_pay", "sell_yarn", "spinner"];
    let pid = 102;
    Stack { pid, kernel, user }
}

static STACKS: &[Stack] = &[
    user(101, &["weave", "lay_warp", "weave_cloth", "weaver"]),
    user(
        101,
        &[
            "weave",
            "throw_shuttle",
            "weave_rows",
            "weave_cloth",
            "weaver",
        ],
    ),
    user(
        101,
        &["weave", "beat_weft", "weave_rows", "weave_cloth", "weaver"],
    ),
    user(102, &["turn_wheel", "draw_fibres", "spin_yarn", "spinner"]),
    user(102, &["turn_wheel", "twist_yarn", "spin_yarn", "spinner"]),
    user(103, &["card", "open_fleece", "card_fleece", "carder"]),
    user(103, &["card", "comb_wool", "card_fleece", "carder"]),
    user(201, &["dye", "soak_cloth", "dye_cloth", "dyer"]),
    paid(&[
        "compute",
        "add_up",
        "reckon_pay",
        "pay_spinner",
        "do_system_call",
        "serve_system_call",
        "system_call_entry",
    ]),
    paid(&[
        "compute",
        "enter_in_ledger",
        "reckon_pay",
        "pay_spinner",
        "do_system_call",
        "serve_system_call",
        "system_call_entry",
    ]),
    Stack {
        pid: 103,
        kernel: &[
            "stretch_with_interrupts_off",
            "move_bales",
            "fill_store",
            "do_system_call",
            "serve_system_call",
            "system_call_entry",
        ],
        user: &["store_wool", "carder"],
    },
    Stack {
        pid: 0,
        kernel: &[
            "halt_once",
            "idle",
            "perform",
            "run_workload",
            "kernel_main",
            "start",
        ],
        user: &[],
    },
];

/// The functions that a timer interrupt adds to the stack that it interrupts, innermost first.
pub const INTERRUPT: &[&str] = &["service_interrupt", "timer_interrupt", "timer_entry"];

/// The stacks of the workload in the functions that use its time, without [`INTERRUPT`]s.
pub fn stacks() -> &'static [Stack] {
    STACKS
}

/// The process whose program has the function; `None` for functions of the kernel.
pub fn process_of(function: &str) -> Option<i32> {
    let mut stacks = STACKS.iter();
    let stack = stacks.find(|stack| stack.user.contains(&function))?;
    Some(stack.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rows, symbol};

    #[test]
    fn every_function_is_in_the_image() {
        let functions = STACKS.iter().flat_map(|stack| [stack.kernel, stack.user]);
        for name in functions.chain([INTERRUPT]).flatten() {
            assert!(symbol(name).is_some(), "{name}");
        }
    }

    #[test]
    fn programs_have_the_names_of_their_processes() {
        for stack in STACKS.iter().filter(|stack| !stack.user.is_empty()) {
            let mut rows = rows().iter();
            let row = rows.find(|row| row.pid == Some(stack.pid)).unwrap();
            assert_eq!(stack.user.last(), Some(&row.name));
            assert_eq!(process_of(row.name), Some(stack.pid));
        }
        assert_eq!(process_of("compute"), None);
    }
}
