use kvmprof_introspection::Registers;

use super::assembly::Range;
use super::program::Source;
use super::testing::{load_programs, places, slots};
use super::*;
use record::{
    AVAILABLE, CODE, CODE_BASE, COPIES, COPY, CPL, EXIT, FLAGS, GENERAL, KERNEL, OWN, PRIVILEGE,
    RSP, STACK_BYTES, STACKS, TASK, USER, VALUES,
};

#[test]
fn guest_addresses_become_addresses_of_the_vmm() {
    let pointer = pointer(&places(), &slots()).unwrap();
    assert_eq!(pointer.at, 0x7000_0000_1000);
    let range = |guest, bytes, host| Range { guest, bytes, host };
    assert_eq!(
        pointer.ranges,
        [
            range(0xffff_8880_0000_0000, 64 << 20, 0x7000_0000_0000),
            range(0xffff_8881_0000_0000, 32 << 20, 0x7100_0000_0000),
            range(0xffff_ffff_8100_0000, 8 << 20, 0x7000_0100_0000),
        ]
    );
    let sources: Vec<(usize, Source)> = reads(&places(), &slots())
        .iter()
        .map(|read| (read.index, read.source))
        .collect();
    let host = Source::Host(0x7100_0000_0008);
    assert_eq!(sources, [(0, Source::Pointer(0x500)), (1, host)]);
}

#[test]
fn a_record_has_what_was_read() {
    let mut bytes = [0; RECORD_BYTES + 4];
    bytes[..8].copy_from_slice(&77_u64.to_le_bytes());
    bytes[8..16].copy_from_slice(&0x1234_u64.to_le_bytes());
    bytes[VALUES + 16] = 9;
    bytes[FLAGS] = u8::try_from(OWN).unwrap();
    bytes[FLAGS + 1] = 2;
    let record = Record::parse(&bytes).unwrap();
    assert_eq!((record.cpl(), record.task()), (None, None));
    assert_eq!(record.copies().map(|copy| copy.bytes.len()), [0, 0, 0]);
    assert_eq!(record.time(), 77);
    assert!(record.is_own());
    assert_eq!(record.rip(), None);
    assert_eq!(record.value(0), None);
    assert_eq!(record.value(1).unwrap()[0], 9);
    assert_eq!(record.value(ProcessPlaces::MAX), None);
    assert_eq!(record.value(usize::MAX), None);
    assert_eq!(record.exit(), None);
    bytes[EXIT..EXIT + 8].copy_from_slice(&(2_u64 << 32 | 0x7b).to_le_bytes());
    assert_eq!(Record::parse(&bytes).unwrap().exit(), Some((0x7b, 2)));
    assert_eq!(Record::parse(&bytes[..RECORD_BYTES - 1]), None);
}

#[test]
fn a_record_with_stacks_has_registers_and_copies() {
    let mut bytes = vec![0; STACK_BYTES + 24];
    let mut put = |offset: usize, number: u64| {
        bytes[offset..offset + 8].copy_from_slice(&number.to_le_bytes());
    };
    put(FLAGS, u64::from((OWN | STACKS | PRIVILEGE).cast_unsigned()));
    put(CPL, 0xff00 | 3);
    put(TASK, 0x77);
    put(CODE, 2);
    put(CODE_BASE, 0xf_0000);
    put(GENERAL + 8 * RSP, 0x44);
    put(GENERAL + 8 * 13, 0xdd);
    put(COPIES + COPY * KERNEL, 0x1000);
    put(COPIES + COPY * KERNEL + 8, 16);
    put(STACK_BYTES + 8, 0x55);
    // Beyond its end.
    put(COPIES + COPY * USER + 8, 9);
    let record = Record::parse(&bytes).unwrap();
    assert_eq!((record.cpl(), record.task()), (Some(3), Some(0x77)));
    assert!(record.is_64_bit_code(2) && !record.is_64_bit_code(1));
    assert_eq!((record.code_base(2), record.code_base(1)), (0, 0xf_0000));
    let [interrupt, kernel, user] = record.copies();
    assert_eq!((interrupt.bytes, user.bytes), (&[][..], &[][..]));
    assert_eq!(
        (kernel.address, kernel.bytes[8], kernel.bytes.len()),
        (0x1000, 0x55, 16)
    );
    // KVM doesn't have the stack pointer.
    let mut registers = Registers::default();
    assert_eq!(record.fill_general(&mut registers), None);
    bytes[AVAILABLE] = 1 << RSP;
    let record = Record::parse(&bytes).unwrap();
    record.fill_general(&mut registers).unwrap();
    assert_eq!((registers.rsp, registers.r13), (0x44, 0xdd));
    // Without the flag there are none.
    bytes[FLAGS] = u8::try_from(OWN).unwrap();
    let record = Record::parse(&bytes).unwrap();
    assert_eq!(record.fill_general(&mut registers), None);
    assert_eq!(record.copies()[KERNEL].bytes.len(), 0);
}

/// The host's kernel itself checks every instruction.
#[test]
fn the_kernel_accepts_the_program() {
    assert_eq!(load_programs().unwrap(), 48);
}

#[test]
fn the_verifiers_last_line_is_reported() {
    let [instruction] = [bpf::Instruction {
        code: 0xff,
        registers: 0,
        offset: 0,
        immediate: 0,
    }];
    let refused = bpf::load_for(bpf::Trigger::PerfEvent, &[instruction]).unwrap_err();
    let message = SamplingError::from(refused).to_string();
    assert!(message.contains("(last insn is not an exit"), "{message}");
}
