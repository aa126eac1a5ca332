//! Functions of a kernel without names of functions, by the system calls that lead to them.
//!
//! The code that the SYSCALL instruction enters swaps GS and saves the stack pointer. It calls C code, which finds the
//! system call's function in a table, or since 6.1 by comparisons. System calls have the same numbers in all versions
//! (`arch/x86/entry/syscalls/syscall_64.tbl`).

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, Register};
use memchr::memmem;

use super::Code;
use super::flow::{Flow, Node, Use};
use crate::bytes::u64_at;

/// `swapgs`, and the first bytes of `mov %rsp, %gs:...`, with an absolute and with a relative address.
const ENTRIES: [&[u8]; 2] = [
    b"\x0f\x01\xf8\x65\x48\x89\x24\x25",
    b"\x0f\x01\xf8\x65\x48\x89\x25",
];
/// Maximum number of places that are looked at.
const MAX_ENTRIES: usize = 8;
/// Maximum number of instructions from there to the call of C code.
const MAX_BEFORE_CALL: usize = 128;
/// Maximum number of bytes of a function that finds a system call's function.
const MAX_DISPATCHER: u64 = 1024;
/// Maximum number of instructions from a comparison to the function.
const MAX_COMPARISONS: usize = 256;
/// Minimum number of comparisons: those for one of 256 numbers.
const MIN_COMPARISONS: usize = 4;
/// The number of `getpid`, by which the others are checked.
const GETPID: u32 = 39;
/// What each system call's function is called.
const CALLS: [(u32, &str); 4] = [
    (102, "__x64_sys_getuid"),
    (110, "__x64_sys_getppid"),
    (140, "__x64_sys_getpriority"),
    (141, "__x64_sys_setpriority"),
];
/// The type of id that `getpid` asks for (`PIDTYPE_TGID`, `include/linux/pid_types.h`).
const PROCESS: u64 = 1;

/// How the kernel finds a system call's function.
#[derive(Clone, Copy, Debug)]
enum Dispatch {
    /// In the table at this address.
    Table(u64),
    /// By the comparisons at this address.
    Comparisons(u64),
}

/// Functions by their names, if the kernel enters system calls as expected.
pub fn functions(code: &Code<'_>) -> BTreeMap<&'static str, u64> {
    let found = entries(code)
        .into_iter()
        .find_map(|entry| from_entry(code, entry));
    found.unwrap_or_default()
}

/// The addresses of code that SYSCALL may enter.
fn entries(code: &Code<'_>) -> Vec<u64> {
    let Some((start, text)) = code.text() else {
        return Vec::new();
    };
    let places = ENTRIES
        .iter()
        .flat_map(|entry| memmem::find_iter(text, entry).take(MAX_ENTRIES));
    places
        .map(|place| start.wrapping_add(place as u64))
        .collect()
}

fn from_entry(code: &Code<'_>, entry: u64) -> Option<BTreeMap<&'static str, u64>> {
    let instructions = code.instructions(entry..u64::MAX).take(MAX_BEFORE_CALL);
    let calls = instructions.filter(|found| found.flow_control() == FlowControl::Call);
    for call in calls {
        let Some(dispatch) = dispatch(code, call.near_branch_target()) else {
            continue;
        };
        let number_of = getpid(code, dispatch.function(code, GETPID)?)?;
        let named = CALLS
            .iter()
            .filter_map(|(number, name)| Some((*name, dispatch.function(code, *number)?)));
        return Some(named.chain([("__task_pid_nr_ns", number_of)]).collect());
    }
    None
}

/// The function that `getpid`, at `start`, calls for the running task's id.
fn getpid(code: &Code<'_>, start: u64) -> Option<u64> {
    let flow = Flow::of(code, bounded(start));
    flow.calls.iter().find_map(|call| {
        let [task, kind, ..] = call.arguments;
        let is_it = flow.per_cpu(task).is_some() && flow.node(kind) == Node::Constant(PROCESS);
        call.target.filter(|_| is_it)
    })
}

/// How the function at `start` finds a system call's function.
fn dispatch(code: &Code<'_>, start: u64) -> Option<Dispatch> {
    let flow = Flow::of(code, bounded(start));
    let mut tables = flow.accesses.iter().filter_map(|access| {
        let is_it = access.kind == Use::Read && access.width == 8 && access.place.scale == 8;
        let is_array = flow.node(access.place.base) == Node::Constant(0);
        (is_it && is_array).then(|| access.place.offset.cast_unsigned())
    });
    if let Some(table) = tables.next() {
        return Some(Dispatch::Table(table));
    }
    let mut targets = flow.calls.iter().filter_map(|call| call.target);
    let compares = |target: &u64| {
        let instructions = code.instructions(bounded(*target)).take(MAX_COMPARISONS);
        instructions.filter(is_comparison).count() >= MIN_COMPARISONS
    };
    targets.find(compares).map(Dispatch::Comparisons)
}

/// The code of a function whose end isn't known.
fn bounded(start: u64) -> Range<u64> {
    start..start.saturating_add(MAX_DISPATCHER)
}

/// Whether `instruction` compares the second argument, the system call's number.
fn is_comparison(instruction: &Instruction) -> bool {
    let is_number = instruction.op0_register().full_register() == Register::RSI;
    match instruction.mnemonic() {
        Mnemonic::Cmp => is_number && instruction.try_immediate(1).is_ok(),
        Mnemonic::Test => is_number && instruction.op1_register().full_register() == Register::RSI,
        _ => false,
    }
}

impl Dispatch {
    /// The function of the system call with this number.
    fn function(self, code: &Code<'_>, number: u32) -> Option<u64> {
        match self {
            Self::Table(table) => {
                let place = table.checked_add(u64::from(number) * 8)?;
                let function = u64_at(code.bytes_from(place)?, 0)?;
                Some(code.linked(function))
            }
            Self::Comparisons(start) => compared(code, start, number.into()),
        }
    }
}

/// Where the comparisons at `address` lead for `number`: to a call or a jump of other code.
fn compared(code: &Code<'_>, mut address: u64, number: u64) -> Option<u64> {
    let mut bound = None;
    for _ in 0..MAX_COMPARISONS {
        let instruction = code.instruction(address)?;
        address = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Next if is_comparison(&instruction) => {
                bound = Some(instruction.try_immediate(1).unwrap_or(0));
            }
            FlowControl::Next => {}
            FlowControl::ConditionalBranch => {
                if is_taken(instruction.condition_code(), number, bound?)? {
                    address = instruction.near_branch_target();
                }
            }
            FlowControl::UnconditionalBranch => {
                let target = instruction.near_branch_target();
                let next = code.instruction(target)?;
                let goes_on =
                    is_comparison(&next) || next.flow_control() == FlowControl::UnconditionalBranch;
                if !goes_on {
                    return bound.map(|_| target);
                }
                address = target;
            }
            // Before the first comparison, it is the tracer's.
            FlowControl::Call => {
                if bound.is_some() {
                    return Some(instruction.near_branch_target());
                }
            }
            _ => return None,
        }
    }
    None
}

/// Whether a branch is taken after `number` was compared with `bound`.
fn is_taken(condition: ConditionCode, number: u64, bound: u64) -> Option<bool> {
    Some(match condition {
        ConditionCode::e => number == bound,
        ConditionCode::ne => number != bound,
        ConditionCode::a | ConditionCode::g => number > bound,
        ConditionCode::ae | ConditionCode::ge => number >= bound,
        ConditionCode::b | ConditionCode::l => number < bound,
        ConditionCode::be | ConditionCode::le => number <= bound,
        _ => return None,
    })
}
