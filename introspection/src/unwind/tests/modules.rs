//! Stacks through code outside the kernel's image.

use std::sync::Arc;

use super::*;

#[test]
fn module_code_has_tables_of_its_own() {
    const MODULE: u64 = 0xffff_ffff_c012_3000;
    let orc = table(&ROWS, "6.12.9").unwrap();
    let place = MODULE + 0x4000;
    let mut addresses = Vec::new();
    let mut entries = Vec::new();
    for (offset, size, kind) in [(0_u64, 24_i16, CALL), (0x100, 0, 0), (0x4100, 8, CALL)] {
        let index = addresses.len() as u64;
        let distance = (MODULE + offset).wrapping_sub(place + index).cast_signed();
        addresses.extend(i32::try_from(distance).unwrap().to_le_bytes());
        entries.extend(size.to_le_bytes());
        entries.extend([0, 0, 5, kind]);
    }
    let region = |start: u64, end: u64| {
        let range = MODULE + start..MODULE + end;
        let orc = OrcTable::parse_within(place, &addresses, &entries, orc.format(), &range);
        CodeRegion {
            range,
            callers: orc.map(|orc| Callers::Table(Arc::new(orc))),
        }
    };
    // The third region ends too early, and the fourth overlaps the first.
    let modules = ModuleCode::new(vec![
        region(0, 0x200),
        region(0x2000, 0x3000),
        region(0x180, 0x400),
    ]);
    let found = |offset| {
        modules
            .find(MODULE + offset, true)
            .map(|(entry, _)| entry.kind)
    };
    assert_eq!(found(0xff), Some(Kind::Call));
    assert_eq!(found(0x1ff), Some(Kind::Undefined));
    for outside in [0x200, 0x2000, 0x4100] {
        assert_eq!(found(outside), None, "{outside:#x}");
    }
    assert_eq!(modules.find(MODULE - 1, true).map(|(entry, _)| entry), None);
    let unwinder = KernelUnwinder {
        modules: Some(&modules),
        ..unwinder(Some(&orc))
    };
    let mut memory = Words::default();
    memory.set(STACK, &[MODULE + 0x21, 0, 0, at(THREAD_END) + 1]);
    let registers = in_kernel(at(LEAF), STACK, 0);
    let mut stack = Stack::default();
    assert_eq!(unwinder.walk(&registers, &mut memory, &mut stack), None);
    assert_eq!(stack.frames(), [at(LEAF), MODULE + 0x20, at(THREAD_END)]);
    assert_eq!(stack.summary().kernel_end, StackEnd::Complete);
}

#[test]
fn copies_of_the_kernels_code_have_its_entries() {
    const COPY: u64 = 0xffff_ffff_c012_3450;
    let orc = table(&ROWS, "6.12.9").unwrap();
    let plain = unwinder(Some(&orc));
    let linked = at(LEAF) - plain.slide;
    let modules = ModuleCode::new(vec![CodeRegion {
        range: COPY..COPY + 8,
        callers: Some(Callers::Copy(linked)),
    }]);
    assert_eq!(modules.original(COPY + 7), Some(linked + 7));
    assert_eq!(
        [modules.original(COPY - 1), modules.original(COPY + 8)],
        [None; 2]
    );
    let unwinder = KernelUnwinder {
        modules: Some(&modules),
        ..plain
    };
    let mut memory = Words::default();
    memory.set(STACK, &[at(THREAD_END) + 1]);
    let registers = in_kernel(COPY, STACK, 0);
    let mut stack = Stack::default();
    assert_eq!(unwinder.walk(&registers, &mut memory, &mut stack), None);
    assert_eq!(stack.frames(), [COPY, at(THREAD_END)]);
    assert_eq!(stack.summary().kernel_end, StackEnd::Complete);
}
