//! Tests of the stack copies that the host's kernel makes: the memory of the guest is this process's, and the test runs the
//! program.

use std::os::fd::AsRawFd;

use kvmprof_introspection::{AddressSpace, Registers};
use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::assembly::{CONTEXT, FLAG_SET, Program, RECORD, Range, offset16};
use super::program::{Pointer, ReadMemory};
use super::record::{
    AVAILABLE, COPIES, CR3, FLAGS, GENERAL, INTERRUPT, KERNEL, OWN, RBP, RECORD_BYTES, RSP,
    STACK_BYTES, STACKS, TIME, USER,
};
use super::{LinuxStacks, Record, Stacks};
use crate::kernel_memory::bpf;
use crate::kernel_memory::program::{EXIT, LOAD_64, MOVE_IMMEDIATE, MOVE_REGISTER, STORE_64};

const HIGH: u64 = 1 << 32;
const SIZE: u64 = 4 << 20;
const TABLES: u64 = 0x1_0000;
/// The end of a kernel stack, whose pages are at these addresses, from the last one down.
const KERNEL_END: u64 = 0xffff_c900_0001_4000;
const KERNEL_PAGES: [u64; 3] = [HIGH + 0x7000, 0x9000, HIGH + 0x3000];
/// The last 2 MiB of a program's addresses.
const USER_STACK: u64 = 0x7fff_ffe0_0000;
const USER_PAGE: u64 = HIGH + (2 << 20);

fn memory() -> Memory {
    let ranges = [(GuestAddress(0), SIZE), (GuestAddress(HIGH), SIZE)];
    let ranges = ranges.map(|(address, bytes)| (address, usize::try_from(bytes).unwrap()));
    let memory = Memory::from_ranges(&ranges).unwrap();
    for (address, bytes) in ranges {
        for offset in (0..bytes as u64).step_by(8) {
            let word = offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !1;
            memory
                .write_obj(word, GuestAddress(address.0 + offset))
                .unwrap();
        }
    }
    memory
}

fn stacks(memory: &Memory, levels: i32) -> Stacks {
    let ranges = [0, HIGH].map(|guest| Range {
        guest,
        bytes: SIZE,
        host: memory.get_host_address(GuestAddress(guest)).unwrap() as u64,
    });
    Stacks {
        bytes: 4096,
        linux: Some(LinuxStacks {
            user: true,
            interrupt_stack: None,
        }),
        hides_pointer: false,
        levels,
        memory: ranges.to_vec(),
    }
}

/// The addresses and bytes that are copied of the stacks at `rsp`, with page tables at `cr3`.
fn copy(stacks: &Stacks, rsp: u64, cr3: u64) -> Copies {
    copies(&record(stacks, None, RSP, [rsp, cr3]))
}

/// The address and the bytes of each copy.
type Copies = [(u64, Vec<u8>); 3];

fn copies(record: &[u8]) -> Copies {
    let copies = Record::parse(record).unwrap().copies();
    copies.map(|copy| (copy.address, copy.bytes.to_vec()))
}

/// A record with copies of stacks, made with this `number` in the general register `register` and this `cr3`, and the task at `pointer`.
fn record(
    stacks: &Stacks,
    pointer: Option<&Pointer>,
    register: usize,
    [number, cr3]: [u64; 2],
) -> Vec<u8> {
    let map = bpf::create_map(stacks.room()).unwrap();
    let mut program = Program::default();
    program.registers(MOVE_REGISTER, CONTEXT, 1);
    program.load_record(map.as_raw_fd());
    program.zero((0..RECORD_BYTES).chain(COPIES..STACK_BYTES).step_by(8));
    program.begin_stacks();
    program.immediate(MOVE_IMMEDIATE, FLAG_SET, OWN | STACKS);
    program.immediate(MOVE_IMMEDIATE, 1, 1 << RSP);
    program.add(STORE_64, RECORD, 1, offset16(AVAILABLE), 0);
    for (place, argument) in [(GENERAL + 8 * register, 0), (CR3, 8)] {
        program.add(LOAD_64, 1, CONTEXT, argument, 0);
        program.add(STORE_64, RECORD, 1, offset16(place), 0);
    }
    if let Some(pointer) = pointer {
        program.follow(pointer, &[]);
    }
    program.add(STORE_64, RECORD, FLAG_SET, offset16(FLAGS), 0);
    program.copy_stacks(stacks);
    program.record_length(5, stacks);
    program.add(STORE_64, RECORD, 5, offset16(TIME), 0);
    program.immediate(MOVE_IMMEDIATE, 0, 0);
    program.add(EXIT, 0, 0, 0, 0);
    let loaded = bpf::load(&program.0).unwrap();
    bpf::run(&loaded, [number, cr3]).unwrap();
    let mut value = bpf::value(&map, stacks.room()).unwrap();
    let length = usize::try_from(Record::parse(&value).unwrap().time()).unwrap();
    value.truncate(length);
    value
}

/// The memory from `address` on, up to the first unmapped page.
fn read(space: &AddressSpace<'_, Memory>, address: u64, most: u64) -> Vec<u8> {
    let words = (0..most).step_by(8).map_while(|offset| {
        let mut word = [0; 8];
        space.read(address.checked_add(offset)?, &mut word)?;
        Some(word)
    });
    words.collect::<Vec<_>>().concat()
}

fn tables(levels: u32) -> Tables {
    let mut tables = Tables::new(memory(), TABLES, levels);
    for (end, page) in (0..)
        .map(|index| KERNEL_END - index * 4096)
        .zip(KERNEL_PAGES)
    {
        tables.map(end - 4096, page, 1);
    }
    tables.map(USER_STACK, USER_PAGE, 2);
    tables
}

/// Puts the registers that a kernel entry has saved at the end of the kernel's stack.
fn enter(memory: &Memory, cs: u64, rsp: u64) {
    let saved = [cs, 0x202, rsp, 0x2b].map(u64::to_le_bytes);
    let place = GuestAddress(KERNEL_PAGES[0] + 4096 - 32);
    memory.write_slice(saved.as_flattened(), place).unwrap();
}

#[test]
fn both_stacks_are_copied_by_the_page_tables() {
    for levels in [4, 5] {
        let tables = tables(levels);
        let stacks = stacks(&tables.memory, levels.cast_signed());
        let registers = long_mode(TABLES, levels == 5);
        let space = AddressSpace::new(&tables.memory, &registers);
        let user = USER_STACK + 0x1_2ff8;
        enter(&tables.memory, 0x33, user);
        // The low bits of CR3 are flags.
        for (rsp, length) in [
            (KERNEL_END - 0x738, 0x738),
            (KERNEL_END - 4096, 4096),
            (KERNEL_END - 0x1238, 4096),
            (KERNEL_END - 168, 168),
        ] {
            let [_, kernel, users] = copy(&stacks, rsp, TABLES | 0x8000_0000_0000_0003);
            assert_eq!(kernel, (rsp, read(&space, rsp, length)));
            assert_eq!(kernel.1.len() as u64, length);
            assert_eq!(users, (user, read(&space, user, 4096)));
            assert_eq!(users.1.len(), 4096);
        }
        // The last page below the hole, and none.
        let rsp = KERNEL_END - 0x3000;
        assert_eq!(copy(&stacks, rsp - 16, TABLES)[KERNEL], (rsp - 16, vec![]));
        let end = USER_STACK + (2 << 20) - 0x120;
        let [_, kernel, users] = copy(&stacks, end + 3, TABLES);
        assert_eq!(users, (end, read(&space, end, 0x120)));
        assert_eq!(kernel, (0, vec![]));
    }
}

#[test]
fn registers_that_no_program_saved_give_no_stack() {
    let tables = tables(4);
    let mut stacks = stacks(&tables.memory, 4);
    let rsp = KERNEL_END - 0x200;
    let user = |stacks: &Stacks| copy(stacks, rsp, TABLES)[USER].1.len();
    for (cs, saved, length) in [
        (0x33, USER_STACK, 4096),
        (0x23, USER_STACK, 4096),
        (0x10, USER_STACK, 0),
        (0x33, KERNEL_END - 0x200, 0),
        (0x33, 0x0100_0000_0000_0000 | USER_STACK, 0),
    ] {
        enter(&tables.memory, cs, saved);
        assert_eq!(user(&stacks), length, "{cs:x} {saved:x}");
    }
    enter(&tables.memory, 0x33, USER_STACK);
    stacks.linux = Some(LinuxStacks {
        user: false,
        interrupt_stack: None,
    });
    assert_eq!(user(&stacks), 0);
    assert_eq!(copy(&stacks, USER_STACK, TABLES)[USER].1.len(), 0);
    assert_eq!(copy(&stacks, rsp, TABLES)[KERNEL].1.len(), 0x200);
    // The tables aren't in memory.
    assert_eq!(copy(&stacks, rsp, 2 * HIGH)[KERNEL], (rsp, vec![]));
}

/// As with VT-x.
#[test]
fn without_the_stack_pointer_the_task_leads_to_its_memory() {
    const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
    const TASK: u64 = HIGH + 0x2_0000;
    const MM: u64 = 0x3_0000;
    let tables = tables(4);
    let memory = &tables.memory;
    let stacks = Stacks {
        hides_pointer: true,
        ..stacks(memory, 4)
    };
    let put = |word: u64, at: u64| memory.write_obj(word, GuestAddress(at)).unwrap();
    let place = 0x4_0000;
    put(DIRECT_MAP + TASK, place);
    put(KERNEL_END - 0x4000, TASK + 0x20);
    put(DIRECT_MAP + MM, TASK + 0x900);
    put(DIRECT_MAP + TABLES, MM + 0x78);
    let saved = USER_STACK + 0x1_2ff8;
    enter(memory, 0x33, saved);
    let pointer = Pointer {
        at: memory.get_host_address(GuestAddress(place)).unwrap() as u64,
        ranges: (stacks.memory.iter())
            .map(|range| Range {
                guest: DIRECT_MAP + range.guest,
                ..*range
            })
            .collect(),
        memory: Some(ReadMemory {
            mm: 0x900,
            page_tables: 0x78,
            stack: Some(0x20),
            direct_map: DIRECT_MAP,
        }),
    };
    // KVM's copy of CR3 is an older one.
    let made = |rbp| record(&stacks, Some(&pointer), RBP, [rbp, 0x9000]);
    let registers = long_mode(TABLES, false);
    let space = AddressSpace::new(memory, &registers);
    let at_end = KERNEL_END - 168;
    let of_task = [
        (at_end, read(&space, at_end, 168)),
        (saved, read(&space, saved, 4096)),
    ];
    let bp = USER_STACK + 0x8008;
    for (rbp, frame) in [
        (bp + 3, (bp, read(&space, bp, 4096))),
        // The kernel has other values there.
        (KERNEL_END - 0x100, (0, vec![])),
        (0x10, (0x10, vec![])),
    ] {
        let record = made(rbp);
        assert_eq!(Record::parse(&record).unwrap().cr3(), Some(TABLES));
        let [at_frame, kernel, user] = copies(&record);
        assert_eq!((at_frame, [kernel, user]), (frame, of_task.clone()));
        let mut registers = Registers::default();
        Record::parse(&record)
            .unwrap()
            .fill_general(&mut registers)
            .unwrap();
        assert_eq!((registers.rbp, registers.rsp), (rbp, 0));
    }
    // A kernel thread, and pointers to nowhere.
    for (word, at) in [
        (0, TASK + 0x900),
        (DIRECT_MAP + SIZE, TASK + 0x900),
        (DIRECT_MAP + SIZE, place),
    ] {
        put(word, at);
        let record = made(bp);
        let parsed = Record::parse(&record).unwrap();
        assert_eq!(parsed.cr3(), None);
        assert_eq!(parsed.fill_general(&mut Registers::default()), None);
        assert_eq!(copies(&record).map(|(_, bytes)| bytes.len()), [0; 3]);
    }
}

/// Nothing is known of the stacks of other kernels.
#[test]
fn of_a_guest_other_than_linux_only_the_stack_in_use_is_copied() {
    let tables = tables(4);
    let stacks = Stacks {
        linux: None,
        ..stacks(&tables.memory, 4)
    };
    enter(&tables.memory, 0x33, USER_STACK);
    let registers = long_mode(TABLES, false);
    let space = AddressSpace::new(&tables.memory, &registers);
    // A program's, and a kernel's that ends at a page that isn't mapped.
    for (rsp, length) in [(USER_STACK + 0x128, 4096), (KERNEL_END - 0x200, 0x200)] {
        let [interrupt, kernel, user] = copy(&stacks, rsp + 3, TABLES);
        assert_eq!(kernel, (rsp, read(&space, rsp, length)));
        assert_eq!([interrupt, user], [(0, vec![]), (0, vec![])]);
    }
}

#[test]
fn an_interrupt_stack_is_followed_by_the_tasks_stack() {
    let mut tables = tables(4);
    // It ends at the end of a page, not at a multiple of a stack's size.
    let end = 0xffff_c900_0030_6000;
    let place = |offset: u64| GuestAddress(HIGH + 0xb000 + offset);
    tables.map(end - 4096, place(0).0, 1);
    let mut stacks = stacks(&tables.memory, 4);
    let host = tables.memory.get_host_address(place(0)).unwrap() as u64;
    stacks.linux = Some(LinuxStacks {
        user: true,
        interrupt_stack: Some(host),
    });
    enter(&tables.memory, 0x33, USER_STACK);
    let registers = long_mode(TABLES, false);
    let space = AddressSpace::new(&tables.memory, &registers);
    let task = KERNEL_END - 0x438;
    tables.memory.write_obj(task, place(4088)).unwrap();
    // The pointer of kernels from 5.12 on, and of older ones.
    for pointer in [end - 8, end] {
        tables.memory.write_obj(pointer, place(0)).unwrap();
        let rsp = end - 0x208;
        let copies = copy(&stacks, rsp, TABLES);
        assert_eq!(copies[INTERRUPT], (rsp, read(&space, rsp, 0x208)));
        assert_eq!(copies[KERNEL], (task, read(&space, task, 0x438)));
        assert_eq!(copies[USER].1.len(), 4096);
        // The task's own stack.
        let copies = copy(&stacks, task + 8, TABLES);
        assert_eq!(copies[INTERRUPT], (0, vec![]));
        assert_eq!(copies[KERNEL].0, task + 8);
    }
    // It leads to user mode.
    tables.memory.write_obj(USER_STACK, place(4088)).unwrap();
    let lengths = copy(&stacks, end - 16, TABLES).map(|(_, bytes)| bytes.len());
    assert_eq!(lengths, [16, 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For any tables, the host's kernel finds what the processor would.
    #[test]
    fn page_table_walks_agree_with_those_of_introspection(
        entries in prop::collection::vec(any::<u64>(), 512),
        address in any::<u64>(),
        five_levels in any::<bool>(),
    ) {
        let memory = memory();
        for (index, entry) in (0..).zip(&entries) {
            // Most lead to tables, and those to this one.
            let entry = if entry & 2 == 0 { entry & 0xff | 0x1000 } else { entry & 0x3f_f0ff };
            memory.write_obj(entry | 1, GuestAddress(0x1000 + index * 8)).unwrap();
        }
        let levels = if five_levels { 5 } else { 4 };
        let unused = 64 - (12 + 9 * levels);
        let address = ((address << unused).cast_signed() >> unused).cast_unsigned() & !7;
        let stacks = stacks(&memory, levels);
        let registers = long_mode(0x1000, five_levels);
        let space = AddressSpace::new(&memory, &registers);
        let copies = copy(&stacks, address, 0x1000);
        let is_kernels = address >> 63 == 1;
        let length = if is_kernels { (0x4000 - address % 0x4000).min(4096) } else { 4096 };
        let own = &copies[if is_kernels { KERNEL } else { USER }];
        prop_assert_eq!(own, &(address, read(&space, address, length)));
    }
}
