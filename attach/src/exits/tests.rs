//! Tests of programs and maps, by the host's kernel.

use std::hint::black_box;

use kvmprof_introspection::{LinearMap, TaskPointer, ValueAt, ValueKind, ValuePlace};
use kvmprof_recording::exits::{Exits, InterruptKind};
use vm_memory::GuestAddress;

use super::*;
use crate::sampling::testing;
use crate::tracepoint::ExitMembers;
use crate::{Backing, Slot, Slots};

/// The host's kernel itself checks every instruction.
#[test]
fn the_kernel_accepts_the_programs() {
    let maps = Maps::new(3).unwrap();
    let reads = ProcessReads::new(&testing::slots(), &[(2, testing::places())]);
    let reads = reads.unwrap();
    let reads = reads.as_ref();
    let plan = |reads| maps.plan(1234, reads);
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

/// The direct map of a guest, and where the guest has its task.
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
const TASK: usize = 0x1_0000;

/// The memory of a guest, in which a process runs.
fn guest_memory() -> Vec<u8> {
    let mut memory = vec![0; 2 << 20];
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1000, &(DIRECT_MAP + TASK as u64).to_le_bytes());
    put(TASK + 0x500, &77_u32.to_le_bytes());
    put(TASK + 0x600, b"nginx");
    memory
}

/// Where the programs find the process in `memory`, for vCPU number 1.
fn process_reads(memory: &[u8]) -> ProcessReads {
    let slot = Slot {
        address: GuestAddress(0),
        bytes: memory.len() as u64,
        host_address: memory.as_ptr() as u64,
        is_read_only: false,
        logs_writes: false,
        backing: Backing::default(),
    };
    let value = |kind, at, width| ValuePlace {
        kind,
        at: ValueAt::Task(at),
        width,
    };
    let places = ProcessPlaces {
        task: Some(TaskPointer {
            memory: None,
            at: GuestAddress(0x1000),
            maps: vec![LinearMap {
                address: DIRECT_MAP,
                physical: GuestAddress(0),
                bytes: 2 << 20,
            }],
        }),
        values: vec![
            value(ValueKind::Pid, 0x500, 4),
            value(ValueKind::Comm, 0x600, 16),
        ],
        interrupt_stack: None,
        is_linux: true,
    };
    let reads = ProcessReads::new(&Slots::new(&[slot]).unwrap(), &[(1, places)]);
    reads.unwrap().unwrap()
}

/// The mean time of a program's run, in ns; 0 unless the host's kernel measures it (`kernel.bpf_stats_enabled`).
fn mean_time(program: &OwnedFd) -> u64 {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).unwrap();
    let number = |key| {
        let mut lines = info.lines();
        let line = lines.find_map(|line| line.strip_prefix(key));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    number("run_time_ns:")
        .checked_div(number("run_cnt:"))
        .unwrap_or_default()
}

/// The host's kernel runs the programs in this thread, as in that of a vCPU.
#[test]
fn an_exit_counts_for_its_reason_its_function_and_its_process() {
    const ROUNDS: u64 = 10_000;
    let kernel = HostKernel::open().unwrap();
    let own = kernel.process(std::process::id().cast_signed()).unwrap();
    let memory = black_box(guest_memory());
    let reads = process_reads(&memory);
    let maps = Maps::new(1).unwrap();
    let plan = maps.plan(own.id, Some(&reads));
    // The programs are given two numbers.
    let [first, second] = [0, 8].map(|offset| Member { offset, bytes: 8 });
    let members = ExitMembers {
        reason: first,
        isa: second,
        rip: first,
        vcpu: second,
    };
    let exit = bpf::load(&program::at_exit(plan, members, Some(&reads))).unwrap();
    let entry = bpf::load(&program::at_entry(plan)).unwrap();
    for _ in 0..ROUNDS {
        bpf::run(&exit, [30, 1]).unwrap();
        bpf::run(&entry, [0; 2]).unwrap();
    }
    let (left, entered) = (mean_time(&exit), mean_time(&entry));
    println!("an exit {left} ns, an entry {entered} ns");
    let places = |map, bytes, most| bpf::entries(map, record::PLACE_KEY, bytes, most).unwrap();
    let by_reason = |map, bytes, most| bpf::entries(map, record::REASON_KEY, bytes, most).unwrap();
    let reasons = by_reason(&maps.reasons, record::REASON_BYTES, maps.max_reasons);
    let [reason] = &reasons[..] else {
        panic!("{}", reasons.len())
    };
    let reason = record::reason(reason).unwrap();
    let total = reason.exits;
    assert_eq!((reason.reason, reason.vcpu, total.count), (30, 1, ROUNDS));
    let functions = places(&maps.functions, record::PLACE_BYTES, MAX_FUNCTIONS);
    let functions: Vec<(u64, Option<i32>, Exits)> = functions
        .iter()
        .filter_map(record::function)
        .map(|one| (one.address, one.process, one.exits))
        .collect();
    assert_eq!(functions, [(30, Some(77), total)]);
    let processes = by_reason(&maps.processes, record::NAMED_BYTES, MAX_PROCESSES);
    let processes: Vec<([u8; 16], Option<i32>, Exits)> = processes
        .iter()
        .filter_map(record::process)
        .map(|one| (one.name, one.process, one.exits))
        .collect();
    assert_eq!(
        processes,
        [(*b"nginx\0\0\0\0\0\0\0\0\0\0\0", Some(77), total)]
    );
}
