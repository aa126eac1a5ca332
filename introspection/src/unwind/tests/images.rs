//! Stacks of guests that aren't Linux.

use kvmprof_recording::{StackParts, StackSummary};
use proptest::collection::vec;
use vm_memory::{Bytes, GuestAddress};

use super::super::StackCopy;
use super::super::image::{ImageTables, ImageUnwinder};
use super::*;
use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};

const KERNEL: u64 = 0xffff_ffff_8000_0000;
const KERNEL_STACK: u64 = 0xffff_ffff_8010_0000;
const PROGRAM: u64 = 0x40_0000;
const PROGRAM_STACK: u64 = 0x7fff_f000;
/// The places of code and stacks in memory, one page each, after the page tables.
const PLACES: [(u64, u64); 4] = [
    (KERNEL, 0x20_0000),
    (KERNEL_STACK, 0x20_1000),
    (PROGRAM, 0x20_2000),
    (PROGRAM_STACK, 0x20_3000),
];
const BOTH: StackParts = StackParts {
    kernel: true,
    user: true,
};
const KERNEL_CS: u64 = 0x8;
const USER_CS: u64 = 0x23;

struct Guest {
    memory: Memory,
    unwinder: ImageUnwinder,
}

impl Guest {
    /// A guest whose code has no unwind information.
    fn new() -> Self {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
        let mut tables = Tables::new(memory.clone(), 0x1000, 4);
        for (address, place) in PLACES {
            tables.map(address, place, 1);
        }
        Self {
            memory,
            unwinder: ImageUnwinder::default(),
        }
    }

    fn set(&self, address: u64, words: &[u64]) {
        let place = |(start, place): &(u64, u64)| {
            let within = address.checked_sub(*start)?;
            (within < 0x1000).then_some(place + within)
        };
        let place = PLACES.iter().find_map(place).unwrap();
        for (word, place) in words.iter().zip((place..).step_by(8)) {
            self.memory.write_obj(*word, GuestAddress(place)).unwrap();
        }
    }

    /// The return address of a call at `address`.
    fn behind_call(&self, address: u64) -> u64 {
        self.set(address, &[0xe8]);
        address + 5
    }

    fn stack(&self, registers: &Registers, parts: StackParts) -> (Vec<u64>, StackSummary) {
        let copies = None;
        self.stack_of(registers, StackSource { parts, copies })
    }

    fn stack_of(&self, registers: &Registers, source: StackSource<'_>) -> (Vec<u64>, StackSummary) {
        let mut stack = Stack::default();
        let mut cache = UnwindCache::default();
        self.unwinder
            .unwind(&self.memory, registers, source, &mut cache, &mut stack);
        (stack.frames().to_vec(), stack.summary())
    }
}

fn of_demo_guest() -> ImageUnwinder {
    ImageUnwinder::new(ImageTables::from_elf(kvmprof_demo_guest::ELF).as_ref(), 0)
}

fn registers(cpl: u8, ip: u64, sp: u64, bp: u64) -> Registers {
    Registers {
        rip: ip,
        rsp: sp,
        rbp: bp,
        cpl,
        is_64_bit_code: true,
        ..long_mode(0x1000, false)
    }
}

/// Sets up a function of the kernel that works for a program, and the kernel's entry; both have frames.
fn at_work(guest: &Guest, pushed: [u64; 4]) -> Registers {
    let [handler, main] = [KERNEL, PROGRAM].map(|code| guest.behind_call(code + 0x100));
    let entry = KERNEL_STACK + 0x140;
    guest.set(KERNEL_STACK + 0x100, &[entry, handler]);
    guest.set(entry, &[PROGRAM_STACK + 0x140, PROGRAM + 0x234]);
    guest.set(entry + 16, &pushed);
    guest.set(PROGRAM_STACK + 0x140, &[PROGRAM_STACK + 0x180, main]);
    guest.set(PROGRAM_STACK + 0x180, &[0, 0]);
    registers(0, KERNEL + 0x500, KERNEL_STACK + 0x80, KERNEL_STACK + 0x100)
}

const FROM_PROGRAM: [u64; 4] = [USER_CS, 0x246, PROGRAM_STACK + 0x120, 0x1b];

#[test]
fn frame_pointers_cross_the_kernel_entry_into_the_program() {
    let guest = Guest::new();
    let registers = at_work(&guest, FROM_PROGRAM);
    let (frames, summary) = guest.stack(&registers, BOTH);
    let kernel = [KERNEL + 0x500, KERNEL + 0x104];
    let user = [PROGRAM + 0x234, PROGRAM + 0x104];
    assert_eq!(frames, [kernel, user].concat());
    assert_eq!((summary.kernel, summary.user), (2, 2));
    assert_eq!(summary.kernel_end, StackEnd::Complete);
    assert_eq!(summary.user_end, StackEnd::Complete);

    let alone = |kernel, user| guest.stack(&registers, StackParts { kernel, user });
    let (frames, summary) = alone(true, false);
    assert_eq!(frames, kernel);
    assert_eq!(summary.user_end, StackEnd::Absent);
    let (frames, summary) = alone(false, true);
    assert_eq!(frames, [&kernel[..1], &user].concat());
    assert_eq!(summary.user_end, StackEnd::Complete);
}

/// The vCPU runs again, and has changed its stack, of which a copy was made.
#[test]
fn copies_of_a_stack_are_unwound_in_its_place() {
    let guest = Guest::new();
    let registers = at_work(&guest, FROM_PROGRAM);
    let mut bytes = [0; 0x800];
    let place = GuestAddress(0x20_1080);
    guest.memory.read_slice(&mut bytes, place).unwrap();
    guest.set(KERNEL_STACK, &[0x1234; 512]);
    let of_copy = |length: usize| {
        let copy = StackCopy {
            address: KERNEL_STACK + 0x80,
            bytes: &bytes[..length],
        };
        let (parts, copies) = (BOTH, Some(&[copy][..]));
        guest.stack_of(&registers, StackSource { parts, copies })
    };
    let (frames, summary) = of_copy(0x800);
    let kernel = [KERNEL + 0x500, KERNEL + 0x104];
    // The program's stack wasn't copied.
    assert_eq!(frames, [&kernel[..], &[PROGRAM + 0x234]].concat());
    assert_eq!(summary.kernel_end, StackEnd::Complete);
    assert_eq!(summary.user_end, StackEnd::Truncated);
    // Neither were the registers that the processor has pushed.
    let (frames, summary) = of_copy(0xc8);
    assert_eq!(frames, kernel);
    assert_eq!(summary.kernel_end, StackEnd::Truncated);
}

#[test]
fn interrupted_kernel_code_is_unwound_from_its_registers() {
    let guest = Guest::new();
    // An interrupt with a stack of its own, below the interrupted stack.
    let caller = guest.behind_call(KERNEL + 0x300);
    let interrupted = KERNEL_STACK + 0x800;
    let registers = at_work(&guest, [KERNEL_CS, 0x2, interrupted, 0]);
    guest.set(KERNEL_STACK + 0x140, &[interrupted + 0x20, KERNEL + 0x234]);
    guest.set(interrupted + 0x20, &[interrupted + 0x40, caller]);
    guest.set(interrupted + 0x40, &[0, 0]);
    let (frames, summary) = guest.stack(&registers, BOTH);
    let callers = [KERNEL + 0x104, KERNEL + 0x234, KERNEL + 0x304];
    assert_eq!(frames, [&[KERNEL + 0x500][..], &callers].concat());
    assert_eq!(summary.kernel_end, StackEnd::Complete);
    assert_eq!(summary.user_end, StackEnd::Absent);
}

#[test]
fn impossible_interrupt_frames_are_rejected() {
    let guest = Guest::new();
    let [code, flags, sp, data] = FROM_PROGRAM;
    for pushed in [
        [code | 0x1_0000, flags, sp, data],
        [0, flags, sp, data],
        [code - 1, flags, sp, data],
        [code, flags & !2, sp, data],
        [code, flags | 1 << 15, sp, data],
        [code, flags | 1 << 40, sp, data],
        [code, flags, sp, 0x18],
        [code, flags, sp, data | 0x1_0000],
    ] {
        let registers = at_work(&guest, pushed);
        let (frames, summary) = guest.stack(&registers, BOTH);
        assert_eq!(frames, [KERNEL + 0x500, KERNEL + 0x104], "{pushed:x?}");
        assert_eq!(summary.kernel_end, StackEnd::Broken, "{pushed:x?}");
    }
}

#[test]
fn user_memory_is_not_taken_for_an_interrupt_frame() {
    let guest = Guest::new();
    at_work(&guest, FROM_PROGRAM);
    // A program whose frame pointer leads into the kernel's stack, where an interrupt's words are.
    let (sp, bp) = (KERNEL_STACK + 0x100, KERNEL_STACK + 0x140);
    let mut entry = registers(3, PROGRAM + 0x500, sp, bp);
    let (frames, summary) = guest.stack(&entry, BOTH);
    assert_eq!(frames, [PROGRAM + 0x500]);
    assert_eq!(summary.user_end, StackEnd::Broken);
    entry.is_64_bit_code = false;
    let (_, summary) = guest.stack(&entry, BOTH);
    assert_eq!(summary.user_end, StackEnd::Unsupported);
}

/// Tests each instruction of a function of the demo guest that only calls another one: the stack grows there, and
/// shrinks again.
#[test]
fn the_images_unwind_information_holds_at_each_instruction() {
    let symbol = |name| kvmprof_demo_guest::symbol(name).unwrap();
    let (callee, caller) = (symbol("compute"), symbol("add_up"));
    let guest = Guest {
        unwinder: of_demo_guest(),
        memory: Memory::from_ranges(&[(GuestAddress(0), 8 << 20)]).unwrap(),
    };
    let image = object::File::parse(kvmprof_demo_guest::ELF).unwrap();
    for segment in object::Object::segments(&image) {
        let data = object::ObjectSegment::data(&segment).unwrap();
        let address = GuestAddress(object::ObjectSegment::address(&segment));
        guest.memory.write_slice(data, address).unwrap();
    }
    // The return address of the call in `add_up`, which is E8 and a distance.
    let mut code = vec![0; usize::try_from(caller.size).unwrap()];
    let place = GuestAddress(caller.address);
    guest.memory.read_slice(&mut code, place).unwrap();
    let call = code.iter().position(|byte| *byte == 0xe8).unwrap() as u64;
    let back = caller.address + call + 5;
    let stack = 0x70_0000_u64;
    // Higher addresses hold no return addresses.
    let words = [[0x1234_u64; 8], [back; 8]].concat();
    for (place, word) in (stack..).step_by(8).zip(words.iter().rev().skip(7)) {
        guest.memory.write_obj(*word, GuestAddress(place)).unwrap();
    }
    let in_callee = Registers {
        rip: callee.address,
        rsp: stack,
        // An invalid frame pointer.
        rbp: 0xdead_beef,
        is_64_bit_code: true,
        ..Registers::default()
    };
    let (frames, summary) = guest.stack(&in_callee, BOTH);
    assert_eq!(frames[..2], [callee.address, back - 1]);
    assert_eq!(summary.kernel_end, StackEnd::Broken);
    // The outermost function ends the stack, which needs no address.
    let start = Registers {
        rip: symbol("start").address,
        ..in_callee
    };
    let (frames, summary) = guest.stack(&start, BOTH);
    assert_eq!((frames.len(), summary.kernel_end), (1, StackEnd::Complete));
}

proptest! {
    /// For any registers and stacks, a walk ends within its bounds.
    #[test]
    fn hostile_stacks_end(
        words in vec(prop_oneof![
            any::<u64>(),
            (0..0x200_u64).prop_map(|word| KERNEL_STACK + word * 8),
            Just(KERNEL + 0x105),
            Just(USER_CS),
            Just(KERNEL_CS),
            Just(0x246),
            Just(0),
        ], 512),
        sp in prop_oneof![any::<u64>(), (0..0x200_u64).prop_map(|word| KERNEL_STACK + word * 8)],
        bp in prop_oneof![any::<u64>(), (0..0x200_u64).prop_map(|word| KERNEL_STACK + word * 8), Just(u64::MAX - 7)],
        cpl in prop_oneof![Just(0), Just(3)],
    ) {
        let mut guest = Guest::new();
        guest.set(KERNEL_STACK, &words);
        guest.behind_call(KERNEL + 0x100);
        let registers = registers(cpl, KERNEL + 0x500, sp, bp);
        let (frames, summary) = guest.stack(&registers, BOTH);
        prop_assert!(!frames.is_empty() && frames.len() <= DEFAULT_STACK_FRAMES);
        prop_assert_eq!(frames.len(), summary.frames());
        guest.unwinder = of_demo_guest();
        let inside = kvmprof_demo_guest::symbol("timer_entry").unwrap();
        let registers = Registers { rip: inside.address + 8, ..registers };
        let (frames, _) = guest.stack(&registers, BOTH);
        prop_assert!(!frames.is_empty() && frames.len() <= DEFAULT_STACK_FRAMES);
    }
}
