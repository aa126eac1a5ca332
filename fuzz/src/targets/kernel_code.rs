//! The code of a kernel that doesn't describe itself, through the recipes, and through the rules by which stacks without ORC are unwound.

#[path = "../../../introspection/src/code/test_code.rs"]
mod test_code;

use test_code::{FUNCTIONS, TestCode};

use crate::input::{Input, block};

/// Most functions of an input.
const MOST: usize = 64;
/// An offset in a structure is smaller.
const FURTHEST: u64 = 1 << 16;
/// How far above its link-time addresses a kernel runs.
const SLIDE: u64 = 0x1e00_0000;

/// Reads functions: a byte that says which one, and its code.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut kernel = TestCode::default();
    for _ in 0..MOST {
        if input.is_empty() {
            break;
        }
        let name = FUNCTIONS[usize::from(input.u8()) % FUNCTIONS.len()];
        kernel.add(name, input.block());
    }
    let named = kernel.findings().into_iter();
    let moved = kernel.clone().moved(SLIDE).findings();
    let unnamed = kernel.clone().unnamed().findings();
    for (name, place) in named.chain(moved).chain(unnamed) {
        // Variables have addresses.
        if name.contains('.') {
            assert!(place < FURTHEST, "{name}: {place:#x}");
        }
    }
    for distance in kernel.distances().into_iter().flatten().flatten() {
        assert!(distance >= 0 && distance % 8 == 0, "{distance}");
    }
}

/// Functions of Debian's kernels, and code without an end.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let seed = |name: &str, code: &[u8]| {
        let place = FUNCTIONS.iter().position(|it| *it == name).unwrap();
        [&[u8::try_from(place).unwrap()][..], &block(code)].concat()
    };
    let task = b"\x48\x8b\x9f\xe0\x08\x00\x00\xf0\xff\x43\x54\x48\x89\xd8\xc3";
    let count = b"\x65\x81\x04\x25\x90\xfb\x01\x00\x00\x00\x01\x00\xc3";
    let state = b"\x65\x48\x8b\x04\x25\x80\xfb\x01\x00\xc7\x40\x18\x01\x00\x00\x00\xc3";
    let frame = b"\x55\x53\x48\x83\xec\x10\xe8\x00\x00\x00\x00\x48\x83\xc4\x10\x5b\x5d\xc3";
    let slots = b"\x0f\xb6\x0e\x48\x8b\x57\x08\x48\xd3\xea\x83\xe2\x0f\x89\xd0\x48\x83\xc0\x04\x48\x8b\x44\xc6\x08\xc3";
    let entry = b"\x0f\x01\xf8\x65\x48\x89\x24\x25\x14\x60\x00\x00\xe8\xec\xff\xff\xff\xc3";
    let functions = [
        seed("xas_descend", slots),
        seed("panic", entry),
        seed("get_task_mm", task),
        seed("irq_enter_rcu", count),
        seed("schedule_timeout_interruptible", state),
        seed("do_exit", frame),
    ];
    vec![
        ("all", functions.concat()),
        ("task", seed("get_task_mm", task)),
        ("loop", seed("panic", b"\xeb\xfe")),
        (
            "branches",
            seed("find_vma", &[0x74, 0xfe, 0xeb, 0xfc].repeat(200)),
        ),
    ]
}
