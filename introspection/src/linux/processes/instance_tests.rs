//! Tests that distinguish processes, in guests built by hand.

use vm_memory::{Bytes, GuestAddress};

use crate::ProcessFate::{Ended, Executed, Lives};
use crate::test_guest::LinuxGuest;
use crate::{GuestProcesses, ProcessInstance, VcpuIntrospector};
use kvmprof_introspection_fixtures::kernel::{Areas, HOT, NEW, OLD, TEXT, offsets, task};
use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, IMAGE, SLIDE, TASKS, USER_TABLES};
use kvmprof_introspection_fixtures::page_tables::{Memory, Tables};
use kvmprof_introspection_fixtures::processes::{AreaPlan, FixtureMemory, PAGE};

/// The place of the random bytes, in the process and in physical memory.
const RANDOM: u64 = 0x7fff_0000_2010;
const RANDOM_PAGE: u64 = 0x50_0000;
const AT_RANDOM: u64 = 25;

/// The guest virtual address of task `index`.
fn address_of(index: u64) -> u64 {
    DIRECT_MAP + TASKS + index * 0x1000
}

fn put(guest: &LinuxGuest, index: u64, member: u64, value: u64) {
    guest.write(TASKS + index * 0x1000 + member, &value.to_le_bytes());
}

/// An introspector that has found the process on vCPU 0.
fn looked(guest: &LinuxGuest) -> VcpuIntrospector {
    let mut introspector = guest.introspector(0);
    // The kernel has to be identified first, because its own registers locate it.
    introspector.identify(&guest.memory, &guest.kernel(0), false, false);
    introspector.identify(&guest.memory, &guest.user(), false, false);
    introspector
}

/// The processes as vCPU 0 reads them, once the kernel was found.
fn processes(guest: &LinuxGuest) -> Option<GuestProcesses<'_, Memory>> {
    looked(guest);
    guest.linux().processes(&guest.memory, &guest.user(), None)
}

fn instance(guest: &LinuxGuest) -> Option<ProcessInstance> {
    looked(guest).instance(&guest.memory, &guest.user(), 41)
}

/// Task 1, process 41, was started at 5 s, by task 2, process 42.
fn guest(kernel: kvmprof_introspection_fixtures::kernel::Kernel) -> LinuxGuest {
    let guest = LinuxGuest::new(kernel);
    put(&guest, 1, task::START_TIME, 5_000_000_000);
    put(&guest, 1, task::EXEC_ID, 7);
    put(&guest, 1, task::PARENT, address_of(2));
    guest
}

#[test]
fn an_instance_is_identified_by_pid_start_and_program() {
    for kernel in [OLD, HOT, NEW] {
        let guest = guest(kernel);
        let first = instance(&guest).unwrap();
        assert_eq!(
            (first.pid, first.started, first.programs),
            (41, 5_000_000_000, 7)
        );
        assert_eq!(instance(&guest), Some(first));
        put(&guest, 1, task::EXEC_ID, 8);
        let second = instance(&guest).unwrap();
        assert!(second != first && second.is_same(&first));
        put(&guest, 1, task::START_TIME, 6_000_000_000);
        assert!(!instance(&guest).unwrap().is_same(&first));
        // A sample of any thread has the start of its process.
        let started = || guest.identify(0, &guest.kernel(0)).started;
        assert_eq!(started(), 6_000_000_000);
        guest.task(2, 41, 44, 41);
        guest.leader(2, 1);
        put(&guest, 2, task::START_TIME, 9_000_000_000);
        guest.run(0, 2);
        assert_eq!(started(), 6_000_000_000);
    }
}

#[test]
fn an_origin_is_the_kernels_exec_id() {
    for (kernel, areas) in [(OLD, Areas::List), (NEW, Areas::Tree)] {
        let guest = guest(kernel);
        let mut user = Tables::new(guest.memory.clone(), USER_TABLES, 4);
        user.skip_to(0x58_0000);
        user.map(RANDOM & !0xfff, RANDOM_PAGE, 1);
        let program = *b"sixteen letters!";
        guest.write(RANDOM_PAGE + 0x10, &program);
        let mut room = FixtureMemory::new(&guest, areas);
        let mm = room.process(1, &[]);
        let origin = |guest: &LinuxGuest| {
            looked(guest)
                .processes(&guest.memory, &guest.user())?
                .origin()
        };
        assert_eq!(origin(&guest), None);
        room.auxiliary_vector(mm, &[(33, 1), (AT_RANDOM, RANDOM), (0, 0)]);
        put(&guest, 2, task::START_TIME, 3_000_000_000);
        let found = origin(&guest).unwrap();
        assert_eq!(found.program, program);
        assert_eq!(
            (found.parent.pid, found.parent.started),
            (42, 3_000_000_000)
        );
        // After the end, in the kernel, or at an invalid address.
        for vector in [
            [(0, 0), (AT_RANDOM, RANDOM)],
            [(AT_RANDOM, TEXT + SLIDE), (0, 0)],
            [(AT_RANDOM, 0x1000), (0, 0)],
        ] {
            room.auxiliary_vector(mm, &vector);
            assert_eq!(origin(&guest), None, "{vector:x?}");
        }
    }
}

#[test]
fn a_process_lives_until_its_last_thread_has_ended() {
    let guest = guest(NEW);
    list_of_two(&guest);
    let first = instance(&guest).unwrap();
    let fate = |guest: &LinuxGuest| processes(guest)?.fate(&first);
    assert_eq!(fate(&guest), Some(Lives));
    // The main thread is a zombie, and another one is alive.
    put(&guest, 1, task::EXIT_STATE, 0x20);
    guest.write(TASKS + 0x1000 + 0x400 + task::LIVE, &1_u32.to_le_bytes());
    assert_eq!(fate(&guest), Some(Lives));
    guest.write(TASKS + 0x1000 + 0x400 + task::LIVE, &0_u32.to_le_bytes());
    assert_eq!(fate(&guest), Some(Ended));
    // Another process uses the memory now.
    put(&guest, 1, task::EXIT_STATE, 0);
    put(&guest, 1, task::START_TIME, 9);
    assert_eq!(fate(&guest), Some(Ended));
    // A search that doesn't reach the list's end proves no end: the list has too many processes.
    put(&guest, 2, task::TASKS, address_of(2) + task::TASKS);
    assert_eq!(fate(&guest), None);
}

#[test]
fn any_thread_shows_that_its_process_called_execve() {
    let guest = guest(NEW);
    list_of_two(&guest);
    let first = instance(&guest).unwrap();
    let fate = |guest: &LinuxGuest| processes(guest)?.fate(&first);
    put(&guest, 1, task::EXEC_ID, 8);
    assert_eq!(fate(&guest), Some(Executed));
    // The thread of task 2 has executed a program, and takes the place of the main thread, whose structure was freed.
    put(&guest, 1, task::START_TIME, 9);
    put(&guest, 2, task::START_TIME, 5_000_000_000);
    put(&guest, 2, task::EXEC_ID, 8);
    guest.write(TASKS + 2 * 0x1000 + task::TGID, &41_u32.to_le_bytes());
    assert_eq!(fate(&guest), Some(Executed));
    put(&guest, 2, task::EXEC_ID, 7);
    assert_eq!(fate(&guest), Some(Lives));
}

/// The kernel's list of processes has tasks 2 and 1.
fn list_of_two(guest: &LinuxGuest) {
    let head = TEXT + SLIDE + offsets::INIT_TASK + task::TASKS;
    let link = |index: u64| address_of(index) + task::TASKS;
    let place = GuestAddress(IMAGE + offsets::INIT_TASK + task::TASKS);
    guest.memory.write_obj(link(2), place).unwrap();
    put(guest, 2, task::TASKS, link(1));
    put(guest, 1, task::TASKS, head);
}

#[test]
fn processes_are_found_in_the_kernels_list() {
    let guest = guest(HOT);
    list_of_two(&guest);
    let find = |pid| processes(&guest)?.find(pid);
    assert_eq!(find(41), Some(instance(&guest)));
    assert_eq!(find(43), Some(None));
    // An endless or broken list doesn't show which processes have ended.
    put(&guest, 1, task::TASKS, address_of(2) + task::TASKS);
    assert_eq!(
        (find(43), find(42).flatten().map(|found| found.pid)),
        (None, Some(42))
    );
    put(&guest, 1, task::TASKS, 0x1000);
    assert_eq!(find(43), None);
}

#[test]
fn all_processes_are_listed_with_their_parents() {
    for kernel in [OLD, HOT, NEW] {
        let guest = guest(kernel);
        list_of_two(&guest);
        let list = || guest.linux().list_processes(&guest.memory);
        assert_eq!(list(), None, "the kernel's place is unknown");
        let first = instance(&guest).unwrap();
        assert_eq!(list(), None, "a process has no parent");
        put(&guest, 2, task::PARENT, address_of(2));
        let all = list().unwrap();
        let pids: Vec<_> = all
            .iter()
            .map(|one| (one.process.pid, one.parent.pid))
            .collect();
        assert_eq!(pids, [(42, 42), (41, 42)]);
        assert_eq!(all[1].process, first);
        assert!(!all[1].may_be_adopted && !all[1].shares_memory);
        // Without memory, both are kernel threads.
        for (own, parents, shares) in [(0x8000, 0x8000, true), (0x8000, 0, false), (0, 0, false)] {
            put(&guest, 1, task::MM, own);
            put(&guest, 2, task::MM, parents);
            assert_eq!(list().unwrap()[1].shares_memory, shares);
        }
        // The first process of a pid namespace, and one that has asked for it, adopt processes.
        let signals = TASKS + 2 * 0x1000 + 0x400;
        for (member, value, adopts) in [
            (task::SIGNAL_FLAGS, 0x40_u32, true),
            (task::SIGNAL_FLAGS, 0x80, false),
            (task::REAPERS, 2, true),
            (task::REAPERS, 5, false),
        ] {
            guest.write(signals + member, &value.to_le_bytes());
            assert_eq!(
                list().unwrap()[1].may_be_adopted,
                adopts,
                "{member} {value}"
            );
        }
        put(&guest, 1, task::EXIT_STATE, 0x20);
        assert_eq!(list().unwrap().len(), 1, "one has ended");
        // An endless list, as of too many processes.
        put(&guest, 1, task::TASKS, address_of(2) + task::TASKS);
        assert_eq!(list(), None);
    }
}

#[test]
fn mappings_tell_writable_memory() {
    for (kernel, areas) in [(OLD, Areas::List), (NEW, Areas::Tree)] {
        let guest = guest(kernel);
        let mut room = FixtureMemory::new(&guest, areas);
        let area = |begin: u64, executable| AreaPlan {
            begin,
            end: begin + 2 * PAGE,
            executable,
            offset: 0,
            file: 0,
        };
        room.process(1, &[area(0x40_0000, true), area(0x60_0000, false)]);
        let introspector = looked(&guest);
        let can_write = |address| introspector.can_write(&guest.memory, &guest.user(), address);
        assert_eq!(can_write(0x40_0000), Some(false), "only executable");
        assert_eq!(can_write(0x60_0000), Some(true));
        assert_eq!(can_write(0x60_1fff), Some(true));
        for outside in [0, 0x5f_ffff, 0x60_2000, u64::MAX] {
            assert_eq!(can_write(outside), Some(false), "{outside:#x}");
        }
    }
}
