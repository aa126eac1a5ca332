use crate::code::test_code::{FUNCTIONS, TestCode};
use kvmprof_introspection_fixtures::kernel::TEXT;

fn told(name: &str, code: &[u8]) -> Vec<(String, u64)> {
    let mut kernel = TestCode::default();
    kernel.add(name, code);
    kernel.findings()
}

/// Checks what a function tells whose code is `begin`, `middle` and `end`.
#[track_caller]
fn check(name: &str, [begin, middle, end]: [&[u8]; 3], expected: &[(&str, u64)]) {
    let told = told(name, &[begin, middle, end].concat());
    let told: Vec<(&str, u64)> = told.iter().map(|(name, at)| (name.as_str(), *at)).collect();
    assert_eq!(told, expected, "{middle:x?}");
}

#[test]
fn a_tasks_memory_is_the_reference_counted_one() {
    let (begin, end) = (
        b"\x48\x8b\x9f\xe0\x08\x00\x00",
        b"\xff\x43\x54\x48\x89\xd8\xc3",
    );
    let memory = &[("task_struct.mm", 0x8e0)][..];
    // Without the lock prefix it is another instruction. A running kernel with one CPU has the prefix of DS in its place.
    for (prefix, expected) in [(&b"\xf0"[..], memory), (b"", &[]), (b"\x3e", memory)] {
        check("get_task_mm", [begin, prefix, end], expected);
    }
}

#[test]
fn layouts_that_are_not_known_are_rejected() {
    let count = b"\x65\x81\x04\x25\x90\xfb\x01\x00";
    let known = ("__preempt_count", 0x1_fb90);
    check("irq_enter_rcu", [count, &[0, 0, 1, 0], b"\xc3"], &[known]);
    check("irq_enter_rcu", [count, &[0, 0, 0, 1], b"\xc3"], &[]);
    // A page is numbered by a shift, or by a multiplication by another number, of which it is a part.
    let (begin, end) = (
        b"\x48\xc1\xef\x0c\x48\xc1\xe7",
        b"\x48\x03\x3d\x00\x10\x00\x00\xc3",
    );
    let known = [("page.", 64), ("vmemmap_base", TEXT + 15 + 0x1000)];
    check("free_pages", [begin, &[6], end], &known);
    check("free_pages", [begin, &[3], end], &[]);
}

/// Without symbols, all code is searched. A kernel in which something adds another bit has the other layout.
#[test]
fn the_preempt_count_needs_no_symbol_if_its_layout_is_known() {
    let with = |steps: &[(u8, u8)]| {
        let mut kernel = TestCode::default();
        for (low, high) in steps {
            let code = [
                0x65, 0x81, 0x04, 0x25, 0x90, 0xfb, 1, 0, 0, 0, *low, *high, 0xc3,
            ];
            kernel.add("function", &code);
        }
        kernel.unnamed().findings()
    };
    let found = [("__preempt_count".to_owned(), 0x1_fb90)];
    assert_eq!(with(&[(1, 0), (1, 0), (2, 0)]), found);
    assert_eq!(with(&[(1, 0), (0, 1)]), []);
    assert_eq!(with(&[(2, 0)]), []);
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

/// A tree's slots are an array, and the bits that are kept of an index say how many there are: 16 with
/// CONFIG_BASE_SMALL.
#[test]
fn the_slots_of_a_tree_are_counted_by_the_bits_of_an_index() {
    let begin = b"\x0f\xb6\x0e\x48\x8b\x57\x08\x48\xd3\xea\x83\xe2";
    let end = b"\x89\xd0\x48\x83\xc0\x04\x48\x8b\x44\xc6\x08\xc3";
    for (mask, size) in [
        (0x0f, 40 + (16 + 3) * 8),
        (0x3f, 40 + (64 + 3) * 8),
        (0x3d, 0),
    ] {
        let all = [
            ("xa_node.", size),
            ("xa_node.shift", 0),
            ("xa_node.slots", 40),
        ];
        let expected = if size == 0 { &all[1..] } else { &all };
        check("xas_descend", [begin, &[mask], end], expected);
    }
}

/// `simple_read_folio` and `simple_write_end` set the same bit. If they don't, it isn't known.
#[test]
fn a_page_with_its_contents_has_one_bit() {
    let with = |bits: u8| {
        let mut kernel = TestCode::default();
        kernel.add(
            "simple_read_folio",
            b"\x48\x8b\x06\xf0\x80\x0e\x08\x31\xc0\xc3",
        );
        kernel.add("simple_write_end", &[0xf0, 0x41, 0x80, 0x09, bits, 0xc3]);
        kernel.findings()
    };
    let flags = ("page.flags".to_owned(), 0);
    let bit = ("pageflags.PG_uptodate".to_owned(), 3);
    assert_eq!(with(8), [flags.clone(), bit]);
    assert_eq!(with(4), [flags]);
}

/// A running kernel with KASLR has relocated its pointers, its absolute addresses, and its distances to per-CPU variables.
#[test]
fn a_moved_kernel_gives_link_time_addresses() {
    const SLIDE: u64 = 0x1e00_0000;
    const COUNT: u64 = 0x1_fb90;
    for slide in [0, SLIDE] {
        let mut kernel = TestCode::default();
        let pointer = kernel.add("pointer", &(TEXT + slide).to_le_bytes());
        // `mov pointer, %rcx`.
        let absolute = (pointer + slide).to_le_bytes();
        let read = [b"\x48\x8b\x0c\x25", &absolute[..4], b"\xc3"].concat();
        kernel.add("vmalloc_to_page", &read);
        let read = b"\x48\x8b\x0d\xd9\xff\xff\xff\xc3";
        assert_eq!(kernel.add("lookup_address", read), pointer + 0x20);
        // `addl $0x10000, %gs:COUNT(%rip)`.
        let next = TEXT + 0x30 + 11 + slide;
        let distance = COUNT.wrapping_sub(next).to_le_bytes();
        let add = [b"\x65\x81\x05", &distance[..4], b"\x00\x00\x01\x00\xc3"].concat();
        assert_eq!(kernel.add("irq_enter_rcu", &add), TEXT + 0x30);
        let expected = [("__preempt_count", COUNT), ("init_top_pgt", TEXT)];
        let expected = expected.map(|(name, address)| (name.to_owned(), address));
        assert_eq!(kernel.moved(slide).findings(), expected, "{slide:#x}");
    }
}

/// `call` to `target`, at the end of `code`, which begins at `start`.
fn call(code: &mut Vec<u8>, start: u64, target: u64) {
    let next = start + code.len() as u64 + 5;
    code.push(0xe8);
    code.extend_from_slice(&target.wrapping_sub(next).to_le_bytes()[..4]);
}

/// The code that SYSCALL enters leads to `getpid` and `getuid`, by comparisons or by a table.
#[test]
fn system_calls_need_no_symbols() {
    const GETPID: &[u8] = b"\x65\x48\x8b\x3c\x25\x80\xfb\x01\x00\xbe\x01\x00\x00\x00\x31\xd2";
    const GETUID: &[u8] =
        b"\x65\x48\x8b\x04\x25\x80\xfb\x01\x00\x48\x8b\x80\xf8\x08\x00\x00\x8b\x70\x08";
    const ENTRY: &[u8] = b"\x0f\x01\xf8\x65\x48\x89\x24\x25\x14\x60\x00\x00";
    let kernel = |by_table: bool, is_getpid: bool| {
        let mut kernel = TestCode::default();
        let number = kernel.add("number", b"\xc3");
        let mut functions = [(39_usize, GETPID), (102, GETUID)].map(|(system_call, code)| {
            let start = TEXT + if system_call == 39 { 0x10 } else { 0x30 };
            let mut code = code.to_vec();
            call(&mut code, start, number);
            code.push(0xc3);
            assert_eq!(kernel.add("function", &code), start);
            (system_call, start)
        });
        if !is_getpid {
            functions[0].1 = functions[1].1;
        }
        let mut dispatcher = if by_table {
            let mut table = vec![0; 128 * 8];
            for (number, start) in functions {
                table[number * 8..number * 8 + 8].copy_from_slice(&start.to_le_bytes());
            }
            let table = kernel.add("table", &table).to_le_bytes();
            [b"\x48\x8b\x04\xc5", &table[..4], b"\xff\xd0\xc3"].concat()
        } else {
            let mut code = Vec::new();
            let start = TEXT + 0x50;
            // `cmp $NUMBER, %esi; jne` over a jump.
            for (number, target) in [(7, 0), (8, 0)].into_iter().chain(functions) {
                code.extend_from_slice(&[0x83, 0xfe, u8::try_from(number).unwrap(), 0x75, 5, 0xe9]);
                let next = start + code.len() as u64 + 4;
                let distance = target.wrapping_sub(next).to_le_bytes();
                code.extend_from_slice(&distance[..4]);
            }
            code.push(0xc3);
            assert_eq!(kernel.add("comparisons", &code), start);
            Vec::new()
        };
        if !by_table {
            // A function's first instruction would be the tracer's call.
            dispatcher.extend_from_slice(b"\x53\x48\x89\xf7\x48\x89\xc6");
            call(&mut dispatcher, TEXT + 0x80, TEXT + 0x50);
            dispatcher.push(0xc3);
        }
        let dispatcher = kernel.add("dispatcher", &dispatcher);
        let mut entry = ENTRY.to_vec();
        call(&mut entry, dispatcher + 0x10, dispatcher);
        assert_eq!(kernel.add("entry", &entry), dispatcher + 0x10);
        kernel.unnamed().findings()
    };
    let found = [("cred.uid", 8), ("task_struct.cred", 0x8f8)];
    let found = found.map(|(name, offset)| (name.to_owned(), offset));
    assert_eq!(kernel(true, true), found);
    assert_eq!(kernel(false, true), found);
    // What should be getpid doesn't ask for the running task's id.
    assert_eq!(kernel(true, false), []);
    assert_eq!(kernel(false, false), []);
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
