use kvmprof_attach::Slot;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, elf};
use vm_memory::GuestAddress;

use super::*;

fn slots(ranges: &[(u64, u64)]) -> Slots {
    let slots = ranges.iter().map(|(address, bytes)| Slot {
        address: GuestAddress(*address),
        bytes: *bytes,
        host_address: 0,
        is_read_only: false,
        logs_writes: false,
        backing: kvmprof_attach::Backing::default(),
    });
    Slots::new(&slots.collect::<Vec<_>>()).unwrap()
}

fn segment(selector: u16, base: u64) -> kvm_segment {
    kvm_segment {
        base,
        limit: 0xffff_ffff,
        selector,
        type_: 11,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..kvm_segment::default()
    }
}

/// A vCPU whose registers all differ, in kernel mode of 64-bit code.
fn registers(number: u64) -> (kvm_regs, kvm_sregs) {
    let it = |register: u64| number << 32 | register;
    let regs = kvm_regs {
        rax: it(0),
        rbx: it(1),
        rcx: it(2),
        rdx: it(3),
        rsi: it(4),
        rdi: it(5),
        rsp: it(6),
        rbp: it(7),
        r8: it(8),
        r9: it(9),
        r10: it(10),
        r11: it(11),
        r12: it(12),
        r13: it(13),
        r14: it(14),
        r15: it(15),
        rip: it(16),
        rflags: it(17),
    };
    let sregs = kvm_sregs {
        cs: segment(0x10, 0),
        ss: segment(0x18, 0),
        fs: segment(0, it(18)),
        gs: segment(0, it(19)),
        idt: kvm_dtable {
            base: it(20),
            limit: 0xfff,
            ..kvm_dtable::default()
        },
        cr0: it(21),
        cr2: it(22),
        cr3: it(23),
        cr4: it(24),
        ..kvm_sregs::default()
    };
    (regs, sregs)
}

/// The notes of a file, each with its owner, its type and its content.
fn notes(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).unwrap();
    let programs = header.program_headers(LittleEndian, bytes).unwrap();
    let notes = programs[0].notes(LittleEndian, bytes).unwrap().unwrap();
    notes
        .map(|note| {
            let note = note.unwrap();
            let owner = String::from_utf8(note.name().to_vec()).unwrap();
            (owner, note.n_type(LittleEndian).0, note.desc().to_vec())
        })
        .collect()
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn each_part_of_memory_has_its_place_behind_the_notes() {
    let slots = slots(&[
        (0, 0xa_0000),
        (0xc_0000, 0x1000),
        (0xc_1000, 0x3f_f000),
        (1 << 32, 1 << 30),
    ]);
    let core = CoreFile::new(&slots, 3).unwrap();
    let vcpus = [Some(registers(1)), None, Some(registers(3))];
    let longest = [b'x'; VMCOREINFO_BYTES];
    let bytes = core.begin(&vcpus, Some(&longest));
    let header = FileHeader64::<LittleEndian>::parse(bytes.as_slice()).unwrap();
    assert_eq!(header.e_type(LittleEndian), elf::ET_CORE);
    assert_eq!(header.e_machine(LittleEndian), elf::EM_X86_64);
    let programs = header.program_headers(LittleEndian, bytes.as_slice());
    let [notes, memory @ ..] = programs.unwrap() else {
        panic!("no headers");
    };
    assert_eq!(notes.p_type(LittleEndian), elf::PT_NOTE);
    let expected = [
        (0, 0xa_0000),
        // Slots without a gap.
        (0xc_0000, 0x40_0000),
        (1 << 32, 1 << 30),
    ];
    assert_eq!(memory.len(), expected.len());
    let mut end = bytes.len() as u64;
    for (program, (address, length)) in memory.iter().zip(expected) {
        assert_eq!(program.p_type(LittleEndian), elf::PT_LOAD);
        assert_eq!(program.p_paddr(LittleEndian), address);
        assert_eq!(program.p_filesz(LittleEndian), length);
        assert_eq!(program.p_memsz(LittleEndian), length);
        let offset = program.p_offset(LittleEndian);
        assert!(offset >= end && offset.is_multiple_of(PAGE), "{offset:#x}");
        assert!(offset - end < 3 * PAGE, "{offset:#x} {end:#x}");
        end = offset + length;
    }
    assert_eq!(core.bytes, end);
}

#[test]
fn each_vcpu_has_its_registers_as_a_threads_and_as_qemus() {
    let core = CoreFile::new(&slots(&[(0, PAGE)]), 2).unwrap();
    let text = b"OSRELEASE=6.1\n";
    let vcpus = [Some(registers(1)), Some(registers(2))];
    let notes = notes(&core.begin(&vcpus, Some(text)));
    let owners: Vec<_> = notes
        .iter()
        .map(|(owner, kind, bytes)| (owner.as_str(), *kind, bytes.len()))
        .collect();
    let expected = [
        ("CORE", 1, 336),
        ("CORE", 1, 336),
        ("QEMU", 0, 432),
        ("QEMU", 0, 432),
        ("VMCOREINFO", 0, text.len()),
    ];
    assert_eq!(owners, expected);
    assert_eq!(notes[4].2, text);
    for (vcpu, expected) in [(0, 1), (1, 2)] {
        let it = |register: u64| expected << 32 | register;
        let thread = &notes[vcpu].2;
        assert_eq!(number(thread, 32) & 0xffff_ffff, expected);
        let general = (0..27).map(|index| number(thread, 112 + 8 * index));
        let order = [15, 14, 13, 12, 7, 1, 11, 10, 9, 8, 0, 2, 3, 4, 5];
        let order = order.map(it).into_iter();
        let rest = [
            u64::MAX,
            it(16),
            0x10,
            it(17),
            it(6),
            0x18,
            it(18),
            it(19),
            0,
            0,
            0,
            0,
        ];
        assert!(general.eq(order.chain(rest)), "{thread:x?}");
        let state = &notes[2 + vcpu].2;
        assert_eq!(number(state, 0), 432 << 32 | 1);
        let general = (0..18).map(|index| number(state, 8 + 8 * index));
        assert!(general.eq((0..18).map(it)), "{state:x?}");
        // CS: the attributes of present 64-bit code.
        let code = &state[152..176];
        assert_eq!(number(code, 0), 0xffff_ffff << 32 | 0x10);
        assert_eq!(number(code, 8), 0x00a0_9b00);
        assert_eq!(
            (
                number(state, 152 + 9 * 24),
                number(state, 152 + 9 * 24 + 16)
            ),
            (0xfff << 32, it(20))
        );
        let control = (0..5).map(|index| number(state, 392 + 8 * index));
        assert!(
            control.eq([it(21), 0, it(22), it(23), it(24)]),
            "{state:x?}"
        );
    }
}

#[test]
fn unknown_registers_are_zeros_and_only_of_a_thread() {
    let core = CoreFile::new(&slots(&[(0, PAGE)]), 2).unwrap();
    let notes = notes(&core.begin(&[None, Some(registers(2))], None));
    let owners: Vec<_> = notes.iter().map(|(owner, ..)| owner.as_str()).collect();
    assert_eq!(owners, ["CORE", "CORE", "QEMU"]);
    assert!(notes[0].2[112..].iter().all(|byte| *byte == 0));
    assert_eq!(number(&notes[0].2, 32), 1);
}

#[test]
fn memory_that_no_file_can_have_is_refused() {
    assert!(CoreFile::new(&slots(&[(0, 1 << 63)]), 1).is_none());
    assert!(CoreFile::new(&slots(&[(0, PAGE)]), usize::MAX).is_none());
    assert!(CoreFile::new(&slots(&[(0, 1 << 62)]), 1).is_some());
}
