//! `.eh_frame`, and user stacks that are followed by it. The input has the section as blocks do, then the stack.

use std::sync::Arc;

use kvmprof_introspection::{
    GuestKnowledge, Registers, Stack, UnwindTable, UserUnwinder, VcpuIntrospector,
};
use kvmprof_introspection_fixtures::eh_frame::eh_frame;
use kvmprof_introspection_fixtures::kernel::{Areas, HOT};
use kvmprof_introspection_fixtures::linux_guest::{LinuxGuest, TABLES};
use kvmprof_introspection_fixtures::page_tables::Tables;
use kvmprof_introspection_fixtures::processes::{AreaPlan, FixtureMemory, PAGE};
use kvmprof_recording::{DEFAULT_STACK_FRAMES, StackParts};

use crate::input::{Input, block};

const CODE: u64 = 0x40_0000;
const CODE_PAGES: u64 = 0x52_0000;
const LENGTH: u64 = 4 * PAGE;
/// Where the section would be.
const SECTION: u64 = CODE + 0x10_0000;
const STACK: u64 = 0x7fff_0000_0000;
const STACK_PAGE: u64 = 0x53_0000;

/// Unwinds from each function.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let section = input.block();
    let Some(table) = UnwindTable::new(section, SECTION, 0, vec![(0, CODE, LENGTH)]) else {
        return;
    };
    let guest = guest();
    let stack = input.rest();
    guest.write(STACK_PAGE, &stack[..stack.len().min(4096)]);
    let unwinder = UserUnwinder::new([(CODE, CODE + LENGTH, 0, Arc::new(table))]);
    let mut registers = Registers {
        rsp: STACK,
        rbp: STACK + 0x40,
        cr3: TABLES | 1,
        is_64_bit_code: true,
        ..guest.user()
    };
    registers.rip = CODE;
    let knowledge = GuestKnowledge::from_kernel_image(&HOT.file()).unwrap();
    let mut vcpu = VcpuIntrospector::new(Arc::new(knowledge), 0);
    vcpu.identify(&guest.memory, &registers, false, false);
    let Some(map) = vcpu.follow_process(&guest.memory, &registers, 0) else {
        panic!("the process has no mappings");
    };
    map.unwinder.put(unwinder);
    let parts = StackParts {
        kernel: false,
        user: true,
    };
    for function in (CODE..CODE + LENGTH).step_by(0x100) {
        registers.rip = function + 8;
        let mut stack = Stack::default();
        vcpu.unwind(&guest.memory, &registers, parts, None, &mut stack);
        assert!(stack.frames().len() <= DEFAULT_STACK_FRAMES);
    }
}

/// A guest with a process that has code and a stack.
fn guest() -> LinuxGuest {
    let guest = LinuxGuest::new(HOT);
    let mut tables = Tables::new(guest.memory.clone(), TABLES, 4);
    tables.skip_to(CODE_PAGES + 0x8000);
    for page in (0..LENGTH).step_by(4096) {
        tables.map(CODE + page, CODE_PAGES + page, 1);
        // Every eight bytes of code end with a call.
        guest.write(CODE_PAGES + page, &[0xe8; 4096]);
    }
    tables.map(STACK, STACK_PAGE, 1);
    let plan = AreaPlan {
        begin: CODE,
        end: CODE + LENGTH,
        executable: true,
        offset: 0,
        file: 0,
    };
    FixtureMemory::new(&guest, Areas::Tree).process(1, &[plan]);
    guest
}

/// Functions with and without frame pointers, signal frames, the linkage table's rules, and the outermost function's.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    // Call frame instructions and operations (DWARF 5, sections 7.24 and 7.7.1).
    let functions: [(u64, &[u8]); 6] = [
        (CODE, &[]),
        (CODE + 0x100, &[0x0e, 48]),
        (CODE + 0x200, &[0x0c, 6, 16, 0x86, 2]),
        (CODE + 0x300, &[0x07, 16]),
        (
            CODE + 0x400,
            &[
                0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
            ],
        ),
        (
            CODE + 0x500,
            &[
                0x0f, 4, 0x77, 0xa0, 0x01, 0x06, 0x10, 16, 3, 0x77, 0xa8, 0x01,
            ],
        ),
    ];
    let section = block(&eh_frame(SECTION, &functions));
    let mut words = [0_u64; 64];
    for (index, word) in (0..).zip(&mut words) {
        *word = if index % 3 == 0 {
            CODE + 0x108 + 0x100 * (index % 5)
        } else {
            STACK + 8 * index + 0x40
        };
    }
    let stack = words.map(u64::to_le_bytes).concat();
    vec![("functions", [section, stack].concat())]
}
