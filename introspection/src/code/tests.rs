use proptest::prelude::*;

use crate::code::test_code::{FUNCTIONS, TestCode};

fn told(name: &str, code: &[u8]) -> Vec<(String, u64)> {
    let mut kernel = TestCode::default();
    kernel.add(name, code);
    kernel.findings()
}

#[test]
fn a_tasks_memory_is_the_reference_counted_one() {
    let code = b"\x48\x8b\x9f\xe0\x08\x00\x00\xf0\xff\x43\x54\x48\x89\xd8\xc3";
    assert_eq!(
        told("get_task_mm", code),
        [("task_struct.mm".to_owned(), 0x8e0)]
    );
    // Without the lock prefix it is another instruction.
    let code = b"\x48\x8b\x9f\xe0\x08\x00\x00\xff\x43\x54\x48\x89\xd8\xc3";
    assert_eq!(told("get_task_mm", code), []);
}

#[test]
fn an_unknown_layout_of_the_preempt_count_is_rejected() {
    let add = |step: [u8; 4]| {
        let mut code = b"\x65\x81\x04\x25\x90\xfb\x01\x00".to_vec();
        code.extend_from_slice(&step);
        code.push(0xc3);
        told("irq_enter_rcu", &code)
    };
    assert_eq!(
        add([0, 0, 1, 0]),
        [("__preempt_count".to_owned(), 0x1_fb90)]
    );
    assert_eq!(add([0, 0, 0, 1]), []);
}

/// `schedule_timeout_interruptible` and `_uninterruptible` set the same member. If they don't, both are rejected.
#[test]
fn conflicting_recipes_make_a_value_unknown() {
    let with = |first: u8, second: u8| {
        let mut kernel = TestCode::default();
        let set = |offset, state| {
            let mut code = b"\x65\x48\x8b\x04\x25\x80\xfb\x01\x00\xc7\x40".to_vec();
            code.extend_from_slice(&[offset, state, 0, 0, 0, 0xc3]);
            code
        };
        kernel.add("schedule_timeout_interruptible", &set(first, 1));
        kernel.add("schedule_timeout_uninterruptible", &set(second, 2));
        kernel.findings()
    };
    assert_eq!(with(0x18, 0x18), [("task_struct.__state".to_owned(), 0x18)]);
    assert_eq!(with(0x18, 0x20), []);
}

#[test]
fn endless_and_broken_code_ends() {
    for code in [
        b"\xeb\xfe".as_slice(),
        b"\x74\xfe\xeb\xfc",
        b"\x0f\x0f\xff",
        b"",
        b"\xe9\xff\xff\xff\x7f",
    ] {
        for name in FUNCTIONS {
            assert_eq!(told(name, code), [], "{name}");
        }
    }
}

proptest! {
    #[test]
    fn any_code_gives_bounded_offsets_and_callers(
        functions in prop::collection::vec(
            (0..FUNCTIONS.len(), prop::collection::vec(any::<u8>(), 0..200)),
            0..6,
        ),
    ) {
        let mut kernel = TestCode::default();
        for (number, code) in functions {
            kernel.add(FUNCTIONS[number], &code);
        }
        for (name, value) in kernel.findings() {
            prop_assert!(!name.contains('.') || value < 1 << 16, "{name}: {value:#x}");
        }
        for distance in kernel.distances().into_iter().flatten().flatten() {
            prop_assert!(distance >= 0 && distance % 8 == 0, "{distance}");
        }
    }
}
