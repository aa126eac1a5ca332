//! Tests of programs and maps, by the host's kernel.

use kvmprof_recording::exits::InterruptKind;

use super::*;
use crate::sampling::testing;
use crate::tracepoint::ExitMembers;

/// The host's kernel itself checks every instruction.
#[test]
fn the_kernel_accepts_the_programs() {
    let maps = Maps::new(3).unwrap();
    let reads = ProcessReads::new(&testing::slots(), &[(2, testing::places())]);
    let reads = reads.unwrap();
    let reads = reads.as_ref();
    let plan = |reads| maps.plan(0x100, 0xffff_8880_0000_1000, reads);
    let (without, plan) = (plan(None), plan(reads));
    assert!(without.processes.is_none() && plan.processes.is_some());
    let member = |offset, bytes| Member { offset, bytes };
    let members = ExitMembers {
        reason: member(8, 4),
        isa: member(24, 4),
        rip: member(16, 8),
        vcpu: member(56, 4),
    };
    let access = AccessMembers {
        place: member(12, 2),
        write: Some((member(8, 1), 2)),
        read_kind: AccessKind::MmioRead,
    };
    let of_one_kind = AccessMembers {
        write: None,
        ..access
    };
    let switch = SwitchMembers {
        state: member(32, 8),
        next: member(56, 4),
    };
    let moved = MoveMembers {
        thread: member(24, 4),
        processor: member(32, 4),
    };
    for (what, program) in [
        ("exit", program::at_exit(plan, members, reads)),
        (
            "exit of any process",
            program::at_exit(without, members, None),
        ),
        ("entry", program::at_entry(plan)),
        ("entry of any process", program::at_entry(without)),
        ("userspace exit", program::at_userspace_exit(plan)),
        ("access", program::at_access(plan, access)),
        ("access of one kind", program::at_access(plan, of_one_kind)),
        ("switch", waits::at_switch(plan, switch)),
        ("wake-up", waits::at_wakeup(plan, moved)),
        ("migration", waits::at_migration(plan, moved)),
        (
            "interrupt",
            interrupts::at_begin(plan, InterruptKind::Timer),
        ),
        (
            "its end",
            interrupts::at_end(plan, InterruptKind::Timer, None),
        ),
        (
            "softirq",
            interrupts::at_begin(plan, InterruptKind::Softirq),
        ),
        (
            "its end",
            interrupts::at_end(plan, InterruptKind::Softirq, Some(member(8, 4))),
        ),
    ] {
        let loaded = bpf::load_for(Trigger::Tracepoint, &program);
        assert!(loaded.is_ok(), "{what}: {loaded:?}");
    }
}

#[test]
fn entries_of_a_map_are_read() {
    let maps = Maps::new(1).unwrap();
    let entries = bpf::entries(
        &maps.threads,
        record::THREAD_KEY,
        record::THREAD_BYTES,
        MAX_THREADS,
    );
    assert_eq!(entries.unwrap(), []);
}
