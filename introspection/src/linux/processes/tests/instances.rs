//! Labels of the one process, and of its program.

use super::*;
use crate::GuestKnowledge;
use kvmprof_introspection_fixtures::linux_guest::USER_TABLES;
use kvmprof_introspection_fixtures::page_tables::Tables;

const TASK: u64 = DIRECT_MAP + TASKS + 0x1000;
/// Where arguments are in the process, in two pages of which the second isn't in memory at first.
const STACK: u64 = 0x7fff_0000_2000;
const PAGE_OF_STACK: u64 = 0x50_0000;

fn labels_of(guest: &LinuxGuest, time: u64) -> BTreeMap<String, String> {
    let map = look(&mut guest.introspector(0), guest, time);
    let mut labels = map.unwrap().labels.clone();
    labels.remove("user");
    labels
}

/// A guest with process 41, which process 42 has started at 5.25 s, with arguments at [`STACK`].
fn guest(kernel: Kernel) -> LinuxGuest {
    let guest = LinuxGuest::new(kernel);
    let write =
        |member: u64, value: u64| guest.write(TASKS + 0x1000 + member, &value.to_le_bytes());
    write(task::START_TIME, 5_250_000_000);
    write(task::PARENT, TASK + 0x1000);
    let mut user = Tables::new(guest.memory.clone(), USER_TABLES, 4);
    user.skip_to(0x58_0000);
    user.map(STACK, PAGE_OF_STACK, 1);
    guest
}

#[test]
fn a_process_is_labelled_by_its_program_and_origin() {
    for (kernel, areas) in [(OLD, Areas::List), (NEW, Areas::Tree)] {
        let guest = guest(kernel);
        let mut room = FixtureMemory::new(&guest, areas);
        let (program, _) = file(&mut room, "program", 77, &[1]);
        let mm = room.process(1, &[area(0x40_0000, 1, true, 0, program)]);
        let words = b"program\0--token\0a \xff\n\0";
        guest.write(PAGE_OF_STACK + 0x10, words);
        let end = STACK + 0x10 + words.len() as u64;
        room.program(mm, program, [STACK + 0x10, end]);
        let alone = [
            ("started", "5.250000000"),
            ("parent", "42"),
            ("executable", "/usr/bin/program"),
            ("arguments", "program --token a \u{fffd}\n"),
        ];
        let alone = alone.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(labels_of(&guest, 0), alone.clone().into(), "{kernel:?}");
        // In the first pid namespace, and in one within another one.
        room.namespaces(1, &[41], 0, 0);
        assert_eq!(labels_of(&guest, 0), alone.into());
        room.namespaces(1, &[41, 9, 1], 0, 0);
        assert_eq!(labels_of(&guest, 0)["inner_pid"], "1");
    }
}

/// A thread has another id in its innermost pid namespace than its process.
#[test]
fn threads_have_their_own_inner_ids() {
    for kernel in [OLD, HOT, NEW] {
        let guest = LinuxGuest::new(kernel);
        let mut room = FixtureMemory::new(&guest, kernel.areas);
        room.process(1, &[area(0x40_0000, 1, true, 0, 0)]);
        guest.task(1, 41, 44, 41);
        let mut introspector = guest.introspector(0);
        let mut started = 0_u64;
        let mut inner = |room: &mut FixtureMemory<'_>, numbers: &[i32], tid| {
            room.namespaces(1, numbers, 0, 0);
            // Each is a thread of its own.
            started += 1;
            guest.write(TASKS + 0x1000 + task::START_TIME, &started.to_le_bytes());
            let (memory, registers) = (&guest.memory, guest.user());
            introspector.identify(memory, &registers, false, false);
            introspector.inner_tid(memory, &registers, tid)
        };
        assert_eq!(inner(&mut room, &[44, 12, 3], 44), Some(3), "{kernel:?}");
        assert_eq!(inner(&mut room, &[44], 44), None);
        // Of another thread, as of a task that has ended since; not an id; more namespaces than there can be.
        assert_eq!(inner(&mut room, &[44, 3], 45), None);
        assert_eq!(inner(&mut room, &[44, -3], 44), None);
        assert_eq!(inner(&mut room, &[44; 40], 44), None);
    }
}

/// A thread's id is read once. A later thread that has its structure, its id, or both was started later, and has its own.
#[test]
fn an_inner_id_is_not_that_of_an_earlier_thread() {
    let guest = LinuxGuest::new(HOT);
    let mut room = FixtureMemory::new(&guest, HOT.areas);
    room.process(1, &[area(0x40_0000, 1, true, 0, 0)]);
    let mut introspector = guest.introspector(0);
    let mut inner = |tid, started: u64, numbers: &[i32]| {
        guest.task(1, 41, tid, 41);
        guest.write(TASKS + 0x1000 + task::START_TIME, &started.to_le_bytes());
        room.namespaces(1, numbers, 0, 0);
        let (memory, registers) = (&guest.memory, guest.user());
        introspector.identify(memory, &registers, false, false);
        introspector.inner_tid(memory, &registers, tid)
    };
    assert_eq!(inner(44, 5, &[44, 3]), Some(3));
    assert_eq!(inner(44, 5, &[44, 9]), Some(3));
    assert_eq!(inner(44, 6, &[44, 9]), Some(9));
    // As of a thread that has executed a program in place of its main thread.
    assert_eq!(inner(41, 6, &[41, 1]), Some(1));
    assert_eq!(inner(41, 7, &[41]), None);
    assert_eq!(inner(41, 7, &[41, 2]), None);
    assert_eq!(inner(41, 8, &[41, 2]), Some(2));
    // What can't be right isn't kept.
    assert_eq!(inner(41, 9, &[42, 2]), None);
    assert_eq!(inner(41, 9, &[41, 2]), Some(2));
}

/// Another process of the same id in the same memory, the same process with another program, and one with another parent: all have labels of their own at once.
#[test]
fn labels_belong_to_an_instance_of_a_process() {
    let guest = guest(HOT);
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let mm = room.process(1, &[area(0x40_0000, 1, true, 0, 0)]);
    room.program(mm, 0, [STACK, STACK + 2]);
    guest.write(PAGE_OF_STACK, b"a\0");
    let mut introspector = guest.introspector(0);
    let mut labels = |time| Some(look(&mut introspector, &guest, time)?.labels.clone());
    let number =
        |member: u64, value: u64| guest.write(TASKS + 0x1000 + member, &value.to_le_bytes());
    let first = labels(0).unwrap();
    assert_eq!(
        (&*first["started"], &*first["arguments"]),
        ("5.250000000", "a")
    );
    assert_eq!(labels(1), None);
    number(task::START_TIME, 7_000_000_001);
    assert_eq!(labels(2).unwrap()["started"], "7.000000001");
    guest.write(PAGE_OF_STACK, b"b\0");
    number(task::EXEC_ID, 8);
    assert_eq!(labels(3).unwrap()["arguments"], "b");
    number(task::PARENT, DIRECT_MAP + TASKS);
    assert_eq!(labels(4).unwrap()["parent"], "0");
    assert_eq!(labels(5), None);
}

#[test]
fn arguments_are_bounded_and_need_memory() {
    let guest = guest(HOT);
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let mm = room.process(1, &[area(0x40_0000, 1, true, 0, 0)]);
    guest.write(PAGE_OF_STACK, &[b'x'; 4096]);
    let arguments = |begin, end| {
        room.program(mm, 0, [begin, end]);
        labels_of(&guest, 0).remove("arguments")
    };
    let of = |length| Some("x".repeat(length) + "...");
    assert_eq!(arguments(STACK, STACK + 2048), Some("x".repeat(2048)));
    assert_eq!(arguments(STACK, STACK + 2049), of(2048));
    assert_eq!(arguments(STACK, u64::MAX >> 1), of(2048));
    // The next page isn't in memory.
    assert_eq!(arguments(STACK + 4090, STACK + 5000), of(6));
    for (begin, end) in [
        (STACK + 4096, STACK + 5000),
        (STACK, STACK),
        (STACK + 1, STACK),
        (STACK, u64::MAX),
        (TASK, TASK + 8),
        (0, 0),
    ] {
        assert_eq!(arguments(begin, end), None, "{begin:#x} {end:#x}");
    }
}

/// As `--no-arguments` does, also of a kernel that is found later.
#[test]
fn arguments_are_left_out() {
    let guest = guest(HOT);
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let mm = room.process(1, &[area(0x40_0000, 1, true, 0, 0)]);
    room.program(mm, 0, [STACK, STACK + 2]);
    guest.write(PAGE_OF_STACK, b"a\0");
    let keys = |change: fn(GuestKnowledge) -> GuestKnowledge| {
        let knowledge = GuestKnowledge::from_kernel_image(&HOT.file()).unwrap();
        let mut introspector = VcpuIntrospector::new(Arc::new(change(knowledge)), 0);
        introspector.identify(&guest.memory, &guest.kernel(0), false, false);
        let map = look(&mut introspector, &guest, 0).unwrap();
        map.labels.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(keys(|all| all), ["arguments", "parent", "started"]);
    let without = keys(GuestKnowledge::without_arguments);
    assert_eq!(without, ["parent", "started"]);
    let later = keys(|found| {
        let pending = GuestKnowledge::pending().without_arguments();
        pending.complete(found);
        pending
    });
    assert_eq!(later, without);
}
