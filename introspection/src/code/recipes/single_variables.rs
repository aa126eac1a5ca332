//! Variables that a function uses as no other.

use iced_x86::Mnemonic;

use super::super::flow::{Access, Use};
use super::super::{Code, Findings};

/// A variable: functions that use it, of which a kernel has the first that exists, and how they do.
struct Variable {
    name: &'static str,
    functions: &'static [&'static str],
    uses: fn(&Access) -> bool,
}

const VARIABLES: [Variable; 4] = [
    // `jiffies_64 += ticks` (`kernel/time/timekeeping.c`).
    Variable {
        name: "jiffies_64",
        functions: &["do_timer"],
        uses: |access| access.kind == Use::Update && access.width == 8,
    },
    // The only variable that `core_kernel_text` compares (`kernel/extable.c`).
    Variable {
        name: "system_state",
        functions: &["core_kernel_text"],
        uses: |access| access.kind == Use::Read && access.width == 4,
    },
    // `__virt_addr_valid` subtracts it from an address (`arch/x86/mm/physaddr.c`). Kernels without KASLR of memory have a
    // constant.
    Variable {
        name: "page_offset_base",
        functions: &["__virt_addr_valid"],
        uses: |access| {
            access.kind == Use::Read
                && access.width == 8
                && access.instruction.mnemonic() == Mnemonic::Sub
        },
    },
    // The CPU that panics takes it (`kernel/panic.c`).
    Variable {
        name: "panic_cpu",
        functions: &["panic_try_start", "vpanic", "panic"],
        uses: |access| {
            access.is_atomic()
                && access.width == 4
                && access.instruction.mnemonic() == Mnemonic::Cmpxchg
        },
    },
];

/// Finds the variables.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    for variable in VARIABLES {
        for flow in variable.functions.iter().filter_map(|name| code.flow(name)) {
            let mut uses = flow
                .accesses
                .iter()
                .filter(|access| (variable.uses)(access));
            if let Some(address) = uses.find_map(|access| flow.variable(access.place)) {
                findings.add_variable(variable.name, address);
                break;
            }
        }
    }
}
