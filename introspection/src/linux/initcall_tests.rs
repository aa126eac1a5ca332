//! Tests of stacks that lead through an initcall.

use kvmprof_recording::StackParts;

use super::*;
use crate::Stack;
use crate::image::{KernelImage, Segment};
use crate::test_guest::LinuxGuest;
use kvmprof_introspection_fixtures::kernel::{HOT, NEW, OLD, TEXT, offsets};
use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, SLIDE};

/// The stack of the kernel, by physical address.
const STACK: u64 = 0x50_0000;

/// The frames, as offsets in the image, of a vCPU at the offset `function`, which `do_one_initcall` has called with a
/// pointer to `entry` in its frame.
fn frames(guest: &LinuxGuest, function: u64, entry: u64) -> Vec<u64> {
    let image = TEXT + SLIDE;
    let pointer = image + offsets::INITCALL_TABLE + entry * 4;
    let back = image + offsets::DO_ONE_INITCALL + 8;
    let end = image + offsets::STACK_END + 1;
    guest.words(STACK, &[1, 2, back, pointer, 3, end]);
    let registers = Registers {
        rip: image + function,
        rsp: DIRECT_MAP + STACK,
        ..guest.kernel(0)
    };
    let parts = StackParts {
        kernel: true,
        user: false,
    };
    let mut introspector = guest.introspector(0);
    introspector.identify(&guest.memory, &registers, false, false);
    let mut stack = Stack::default();
    introspector.unwind(&guest.memory, &registers, parts, None, &mut stack);
    let frames = stack.frames().iter();
    frames.map(|frame| frame.wrapping_sub(image)).collect()
}

#[test]
fn stacks_have_the_initcall_that_ended_by_a_jump() {
    let [first, second, other] = offsets::INITCALLS;
    let callers = [offsets::DO_ONE_INITCALL + 7, offsets::STACK_END];
    for kernel in [OLD, HOT, NEW] {
        let guest = LinuxGuest::new(kernel);
        let with = |inner: &[u64]| [inner, &callers].concat();
        assert_eq!(frames(&guest, other, 2), with(&[other]));
        assert_eq!(frames(&guest, first, 1), with(&[first]));
        assert_eq!(frames(&guest, other, 2), with(&[other, second]));
        // The next kernel may keep its pointer differently.
        guest.linux().forget_running();
        assert_eq!(frames(&guest, other, 2), with(&[other]));
        assert_eq!(frames(&guest, second, 1), with(&[second]));
        assert_eq!(frames(&guest, other, 0), with(&[other, first]));
    }
}

#[test]
fn a_kernel_without_the_table_has_no_initcalls() {
    let bytes = HOT.image();
    let segment = Segment {
        address: TEXT,
        data: &bytes,
        memory_length: bytes.len() as u64,
    };
    let [first, second, other] = offsets::INITCALLS;
    let names = [
        (offsets::DO_ONE_INITCALL, "do_one_initcall"),
        (first, "first_initcall"),
        (second, "second_initcall"),
        (other, "after_initcalls"),
        (offsets::INITCALL_TABLE, "__initcall_start"),
        (offsets::INITCALL_TABLE + 8, "__initcall_end"),
    ];
    let find = |missing: &str, segments: Vec<Segment<'_>>| {
        let left = names.iter().filter(|(_, name)| *name != missing);
        let is_function = |name: &str| !name.starts_with("__");
        let left = left.map(|(offset, name)| (TEXT + offset, *name, is_function(name)));
        let image = KernelImage::from_memory(segments);
        stacks::find_initcalls(&image, &Symbols::from_elf(left)).is_some()
    };
    assert!(find("", vec![segment]));
    for missing in ["do_one_initcall", "__initcall_start", "__initcall_end"] {
        assert!(!find(missing, vec![segment]), "{missing}");
    }
    // An entry that isn't a function's, and memory that was reused or is absent.
    assert!(!find("second_initcall", vec![segment]));
    let empty = vec![0; bytes.len()];
    let data = &empty[..];
    assert!(!find("", vec![Segment { data, ..segment }]));
    assert!(!find("", vec![]));
}
