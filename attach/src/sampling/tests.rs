use kvmprof_introspection::{Btf, LinearMap, Registers, TaskPointer, ValueKind, ValuePlace};
use vm_memory::GuestAddress;

use super::*;
use crate::Slot;
use crate::host_kernel::types;
use record::{
    AVAILABLE, CODE, COPIES, COPY, CPL, FLAGS, GENERAL, KERNEL, OWN, PRIVILEGE, RSP, STACK_BYTES,
    STACKS, TASK, USER, VALUES,
};

const HIGH: u64 = 1 << 32;

fn slots() -> Slots {
    let slot = |address, bytes, host_address| Slot {
        address: GuestAddress(address),
        bytes,
        host_address,
        is_read_only: false,
    };
    Slots::new(&[
        slot(0, 64 << 20, 0x7000_0000_0000),
        slot(HIGH, 32 << 20, 0x7100_0000_0000),
        slot(0xfffc_0000, 256 << 10, 0x7200_0000_0000),
    ])
    .unwrap()
}

fn places() -> ProcessPlaces {
    let value = |kind, at, width| ValuePlace { kind, at, width };
    ProcessPlaces {
        task: Some(TaskPointer {
            at: GuestAddress(0x1000),
            maps: vec![
                LinearMap {
                    address: 0xffff_8880_0000_0000,
                    physical: GuestAddress(0),
                    bytes: 1 << 46,
                },
                LinearMap {
                    address: 0xffff_ffff_8100_0000,
                    physical: GuestAddress(16 << 20),
                    bytes: 8 << 20,
                },
            ],
        }),
        values: vec![
            value(ValueKind::Pid, ValueAt::Task(0x500), 4),
            value(
                ValueKind::Interrupts(1),
                ValueAt::Physical(GuestAddress(HIGH + 8)),
                4,
            ),
            // Half of it is behind the end.
            value(
                ValueKind::Comm,
                ValueAt::Physical(GuestAddress((64 << 20) - 8)),
                16,
            ),
        ],
        interrupt_stack: None,
        is_linux: true,
    }
}

#[test]
fn guest_addresses_become_the_vmms() {
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
    put(GENERAL + 8 * RSP, 0x44);
    put(GENERAL + 8 * 13, 0xdd);
    put(COPIES + COPY * KERNEL, 0x1000);
    put(COPIES + COPY * KERNEL + 8, 16);
    put(STACK_BYTES + 8, 0x55);
    // More than there is.
    put(COPIES + COPY * USER + 8, 9);
    let record = Record::parse(&bytes).unwrap();
    assert_eq!((record.cpl(), record.task()), (Some(3), Some(0x77)));
    assert!(record.is_64_bit_code(2) && !record.is_64_bit_code(1));
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
    let types = types().unwrap();
    let mut layout = VcpuLayout::find(&Btf::parse(&types).unwrap()).unwrap();
    let outputs = bpf::create_event_array().unwrap();
    let (places, slots) = (places(), slots());
    let copied = |bytes, user, levels, ranges: u64| {
        Some(Stacks {
            bytes,
            user,
            levels,
            interrupt_stack: Some(0x1000),
            memory: (0..ranges)
                .map(|index| Range {
                    guest: index << 30,
                    bytes: 1 << 20,
                    host: (1 << 40) + (index << 30),
                })
                .collect(),
        })
    };
    let svm = State::Svm { vmcb: 0x1000 };
    let software = State::Software { cpl: 4, code: 8 };
    let programs = [
        (State::Unknown, false, None),
        (software, true, None),
        (svm, true, copied(4096, false, 4, 1)),
        (software, true, copied(4096, true, 4, 3)),
        (svm, true, copied(8192, true, 5, MAX_RANGES as u64)),
    ];
    let host_record = bpf::create_map(host::MAX_HOST_RECORD_BYTES).unwrap();
    let host_record = host_record.as_raw_fd();
    let programs = programs.iter().flat_map(|(state, with_places, stacks)| {
        [None, Some(host_record)].map(|host| (*state, *with_places, stacks.clone(), host))
    });
    for (state, with_places, stacks, host_record) in programs {
        layout.state = state;
        let mut plan = Plan {
            vcpu: 0xffff_8880_0000_1000,
            kvm: 0xffff_8880_0000_2000,
            outputs: outputs.as_raw_fd(),
            has_nested_paging: true,
            record: -1,
            pointer: pointer(&places, &slots).filter(|_| with_places),
            reads: reads(&places, &slots)
                .into_iter()
                .filter(|_| with_places)
                .collect(),
            stacks,
            host_record,
            time_offset: 0,
        };
        let record = bpf::create_map(plan.room()).unwrap();
        plan.record = record.as_raw_fd();
        let instructions = program::instructions(&layout, &plan);
        bpf::load_for_event(&instructions).unwrap();
    }
}

#[test]
fn the_verifiers_last_line_is_reported() {
    let [instruction] = [bpf::Instruction {
        code: 0xff,
        registers: 0,
        offset: 0,
        immediate: 0,
    }];
    let refused = bpf::load_for_event(&[instruction]).unwrap_err();
    let message = SamplingError::from(refused).to_string();
    assert!(message.contains("(last insn is not an exit"), "{message}");
}
