mod contents;
mod instances;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::test_guest::LinuxGuest;
use crate::{Registers, VcpuIntrospector};
use kvmprof_introspection_fixtures::kernel::{Areas, HOT, Kernel, NEW, OLD, task};
use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, TASKS};
use kvmprof_introspection_fixtures::processes::{AreaPlan, FixtureMemory, PAGE};

const VDSO: u64 = 0x7fff_f7fc_0000;
const SECOND: u64 = 1_000_000_000;

fn area(begin: u64, pages: u64, executable: bool, offset: u64, file: u64) -> AreaPlan {
    AreaPlan {
        begin,
        end: begin + pages * PAGE,
        executable,
        offset,
        file,
    }
}

/// A guest whose task 1 is of a process with executable memory.
fn guest_with_process() -> LinuxGuest {
    let guest = LinuxGuest::new(HOT);
    FixtureMemory::new(&guest, Areas::Tree).process(1, &[area(0x40_0000, 4, true, 0, 0)]);
    guest
}

/// The result of `introspector` on vCPU 0 in user mode at `time`.
fn look(
    introspector: &mut VcpuIntrospector,
    guest: &LinuxGuest,
    time: u64,
) -> Option<Arc<ProcessMap>> {
    look_with(introspector, guest, &guest.user(), time)
}

fn look_with(
    introspector: &mut VcpuIntrospector,
    guest: &LinuxGuest,
    registers: &Registers,
    time: u64,
) -> Option<Arc<ProcessMap>> {
    introspector.identify(&guest.memory, registers, false, false);
    introspector.follow_process(&guest.memory, registers, time)
}

/// The mappings of `map`: begin, end, offset, name.
fn shown(map: &ProcessMap) -> Vec<(u64, u64, u64, &str)> {
    map.areas
        .iter()
        .map(|area| (area.begin, area.end, area.offset, area.name()))
        .collect()
}

/// A file at `/usr/bin/NAME` with `pages` of one byte each.
fn file(room: &mut FixtureMemory<'_>, name: &str, number: u64, pages: &[u8]) -> (u64, u64) {
    let root = room.dentry(0, "/");
    let usr = room.dentry(root, "usr");
    let bin = room.dentry(usr, "bin");
    let dentry = room.dentry(bin, name);
    let mount = room.mount(root, 0, 0);
    let first = room.pages(pages);
    let entries: Vec<_> = (0..pages.len() as u64)
        .map(|index| (index, first + index * 64))
        .collect();
    let head = room.node(0, &entries);
    let inode = room.inode(number, pages.len() as u64 * PAGE - 100, head);
    (room.file(mount, dentry, inode), inode)
}

fn identity(guest: &LinuxGuest, inode: u64) -> FileIdentity {
    let linux = guest.linux();
    let view = linux.view(&guest.memory, &guest.kernel(0)).unwrap();
    let processes = linux.processes.as_ref().unwrap();
    ProcessView::new(&view, processes).identity(inode).unwrap()
}

#[test]
fn finds_executable_mappings_in_trees_and_lists() {
    for (kernel, areas) in [(OLD, Areas::List), (HOT, Areas::Tree), (NEW, Areas::Tree)] {
        let guest = LinuxGuest::new(kernel);
        let mut room = FixtureMemory::new(&guest, areas);
        let (program, inode) = file(&mut room, "program", 77, &[1, 2]);
        let mut plans = vec![
            area(0x40_0000, 1, false, 0, program),
            area(0x40_1000, 2, true, 1, program),
            area(0x50_0000, 1, false, 3, program),
            area(0x7f00_0000_0000, 3, true, 0x7f0_0000_0000, 0),
        ];
        // More areas than one leaf can hold.
        plans.extend(
            (0..20).map(|index| area(0x7f10_0000_0000 + index * 0x10_0000, 4, index == 19, 0, 0)),
        );
        plans.push(area(VDSO, 2, true, 0, 0));
        room.process(1, &plans);
        room.special(0x7f00_0000_0000, "[uprobes]");
        room.special(VDSO, "[vdso]");
        for registers in [guest.user(), guest.kernel(0)] {
            let mut introspector = guest.introspector(0);
            let map = look_with(&mut introspector, &guest, &registers, 5).unwrap();
            assert_eq!((map.root, map.pid, map.time), (0x1_0000, 41, 5));
            let expected = [
                (0x40_1000, 0x40_3000, 0x1000, "/usr/bin/program"),
                (0x7f00_0000_0000, 0x7f00_0000_3000, 0, "[anon]"),
                (0x7f10_0130_0000, 0x7f10_0130_4000, 0, "[anon]"),
                (VDSO, VDSO + 0x2000, 0, "[vdso]"),
            ];
            assert_eq!(shown(&map), expected, "{kernel:?}");
            let Backing::File(file) = &map.areas[0].backing else {
                panic!("{map:?}");
            };
            let expected = FileIdentity {
                inode,
                number: 77,
                device: 0x0010_0002,
                length: 2 * PAGE - 100,
                modified: 1_700_000_000,
            };
            assert_eq!(file.identity, expected);
        }
    }
}

/// Other credentials are seen at once, although the mappings stay the same.
#[test]
fn a_process_is_labelled_by_its_user() {
    let guest = guest_with_process();
    let at = TASKS + 0x1000;
    let credentials = at + 0xc00;
    let mut introspector = guest.introspector(0);
    let mut user = |time| {
        let map = look(&mut introspector, &guest, time)?;
        Some(map.labels.get("user").cloned().unwrap_or_default())
    };
    // A pointer that isn't one of the kernel's.
    assert_eq!(user(0).as_deref(), Some(""));
    let pointer = (DIRECT_MAP + credentials).to_le_bytes();
    guest.write(at + task::CREDENTIALS, &pointer);
    guest.write(credentials + task::USER, &1000_u32.to_le_bytes());
    assert_eq!(user(1).as_deref(), Some("1000"));
    assert_eq!(user(2), None);
    guest.write(credentials + task::USER, &u32::MAX.to_le_bytes());
    assert_eq!(user(3).as_deref(), Some("4294967295"));
    assert_eq!(user(4), None);
}

/// Control groups of a guest: `Groups::add` puts each in memory of its own, so many bytes on.
struct Groups<'g>(&'g LinuxGuest, u64);

impl Groups<'_> {
    /// Where the first one is, from the tasks on.
    const BEGIN: u64 = 0x1_0000;

    fn put(&self, at: u64, number: u64) {
        self.0.write(at - DIRECT_MAP, &number.to_le_bytes());
    }

    /// A node with this parent, which is 0 for a root, and its group. The group's address.
    fn add(&mut self, parent: u64, name: &[u8], id: u64) -> [u64; 2] {
        let node = DIRECT_MAP + TASKS + Self::BEGIN + self.1;
        self.1 += 0x400;
        let (group, text) = (node + 0x80, node + 0x101);
        self.put(node + task::NODE_PARENT, parent);
        self.put(node + task::NODE_NAME, text);
        self.put(node + task::NODE_ID, id);
        self.put(group + task::CGROUP_NODE, node);
        self.0.write(text - DIRECT_MAP, &[name, &[0]].concat());
        [node, group]
    }

    /// Puts the task into a set with these groups: of version 2, and of the processor's controller.
    fn set(&mut self, [unified, of_processor]: [u64; 2]) {
        let set = DIRECT_MAP + TASKS + Self::BEGIN + self.1;
        self.1 += 0x400;
        let state = set + 0x80;
        let place = set + task::CONTROLLERS + 8 * u64::from(task::PROCESSOR);
        self.put(place, state);
        self.put(state + task::CGROUP_OF_CONTROLLER, of_processor);
        self.put(set + task::CGROUP, unified);
        self.put(DIRECT_MAP + TASKS + 0x1000 + task::CGROUPS, set);
    }
}

/// Another group is seen at once, although the mappings stay the same, also one in the place of a group that was removed.
#[test]
fn a_process_is_labelled_by_its_control_group() {
    let guest = guest_with_process();
    let mut introspector = guest.introspector(0);
    let mut labels = |time| Some(look(&mut introspector, &guest, time)?.labels.clone());
    let mut groups = Groups(&guest, 0);
    assert!(!labels(0).unwrap().contains_key("cgroup"));
    let [root, root_group] = groups.add(0, b"", 1);
    groups.set([root_group; 2]);
    let cgroup = |labels: Option<BTreeMap<String, String>>| labels?.get("cgroup").cloned();
    assert_eq!(cgroup(labels(1)).as_deref(), Some("/"));
    let [slice, _] = groups.add(root, b"system.slice", 2);
    let [service, of_service] = groups.add(slice, b"web.service", 3);
    groups.set([of_service, root_group]);
    let found = labels(2).unwrap();
    assert_eq!(found["cgroup"], "/system.slice/web.service");
    assert_eq!(found["unit"], "web.service");
    assert_eq!(labels(3), None);
    // The next group at that address has another id.
    groups.put(service + task::NODE_ID, 4);
    groups.put(service + task::NODE_PARENT, root);
    assert_eq!(cgroup(labels(4)).as_deref(), Some("/web.service"));
    // Version 1: the group of the processor's controller counts.
    groups.set([root_group, of_service]);
    assert_eq!(labels(5), None, "the same group");
    let [_, of_other] = groups.add(root, b"other\n\xff", 5);
    groups.set([root_group, of_other]);
    assert_eq!(cgroup(labels(6)).as_deref(), Some("/other\n\u{fffd}"));
}

/// A path that is too long, names that are, and groups that are their own ancestors.
#[test]
fn control_groups_of_a_hostile_kernel_are_bounded() {
    let guest = guest_with_process();
    let mut introspector = guest.introspector(0);
    let mut cgroup = |time| {
        let map = look(&mut introspector, &guest, time)?;
        map.labels.get("cgroup").cloned()
    };
    let mut groups = Groups(&guest, 0);
    let [root, _] = groups.add(0, b"", 1);
    let (mut node, mut group) = (root, 0);
    for id in 2..22 {
        [node, group] = groups.add(node, &[b'a'; 255], id);
    }
    groups.set([group; 2]);
    let path = cgroup(0).unwrap();
    assert!(path.starts_with(".../aaa"), "{path}");
    assert!(path.len() < 4096 + 8, "{path}");
    groups.put(node + task::NODE_PARENT, node);
    groups.put(node + task::NODE_ID, 100);
    assert!(cgroup(1).unwrap().len() < 4096 + 8);
    let [_, group] = groups.add(root, &[b'a'; 256], 101);
    groups.set([group; 2]);
    assert_eq!(cgroup(2), None);
}

#[test]
fn a_process_is_named_by_its_main_thread() {
    let guest = guest_with_process();
    let name = |time| {
        let map = look(&mut guest.introspector(0), &guest, time).unwrap();
        let end = map.name.iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8(map.name[..end].to_vec()).unwrap()
    };
    assert_eq!(name(0), "task-41");
    // Another task is the main thread.
    guest.task(2, 77, 77, 77);
    guest.leader(1, 2);
    assert_eq!(name(1), "task-77");
    // A pointer that isn't to a task gives no name.
    guest.write(TASKS + 0x1000 + task::LEADER, &0x1234_u64.to_le_bytes());
    assert_eq!(name(2), "");
}

#[test]
fn a_map_is_returned_once_and_after_changes() {
    for (kernel, areas) in [(OLD, Areas::List), (HOT, Areas::Tree)] {
        let guest = LinuxGuest::new(kernel);
        let mut room = FixtureMemory::new(&guest, areas);
        let first = [area(0x40_0000, 4, true, 0, 0)];
        let mm = room.process(1, &first);
        let mut introspector = guest.introspector(0);
        let mut look = |time| look(&mut introspector, &guest, time);
        assert!(look(0).is_some());
        assert!(look(1).is_none());
        assert!(look(SECOND).is_none());
        // More executable memory.
        let second = [first[0], area(0x50_0000, 1, true, 0, 0)];
        room.map(mm, &second);
        assert_eq!(look(SECOND + 1).unwrap().areas.len(), 2);
        // The same size at other addresses is noticed a little later.
        let third = [
            first[0],
            area(0x60_0000, 1, true, 0, 0),
            area(0x70_0000, 1, false, 0, 0),
        ];
        room.map(mm, &third);
        assert!(look(SECOND + 2).is_none());
        assert_eq!(look(2 * SECOND).unwrap().areas[1].begin, 0x60_0000);
        // Only other memory changes.
        let fourth = [third[0], third[1], area(0x70_0000, 2, false, 0, 0)];
        room.map(mm, &fourth);
        assert!(look(3 * SECOND).is_none());
        // The same sizes at other addresses.
        let fifth = [third[0], area(0x65_0000, 1, true, 0, 0), fourth[2]];
        room.map(mm, &fifth);
        assert!(look(4 * SECOND - 1).is_none());
        assert_eq!(look(4 * SECOND).unwrap().areas[1].begin, 0x65_0000);
        // Another process with the same page tables.
        guest.task(1, 50, 51, 50);
        assert_eq!(look(4 * SECOND + 1).unwrap().pid, 50);
        room.process(1, &fourth);
        assert!(look(4 * SECOND + 2).is_some());
    }
}

#[test]
fn an_undelivered_map_is_returned_again() {
    let guest = guest_with_process();
    let mut introspector = guest.introspector(0);
    assert!(look(&mut introspector, &guest, 0).is_some());
    introspector.forget_process();
    assert!(look(&mut introspector, &guest, 1).is_some());
    assert!(look(&mut introspector, &guest, 2).is_none());
}

/// Tests two vCPUs, which share one budget.
#[test]
fn constantly_changing_mappings_are_rate_limited() {
    let guest = LinuxGuest::new(HOT);
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let plans = |count| -> Vec<_> {
        let area = |index: u64| area(index * 0x10_0000, 4, true, 0, 0);
        (1..=count).map(area).collect()
    };
    let mm = room.process(1, &plans(50));
    let mut vcpus = [guest.introspector(0), guest.introspector(0)];
    let mut areas = 0;
    let end = 2 * SECOND;
    for time in (0..end).step_by(100_000) {
        // Another program each time.
        room.start_code(mm, 1 + time);
        for vcpu in &mut vcpus {
            areas += look(vcpu, &guest, time).map_or(0, |map| map.areas.len());
        }
    }
    // Each map takes a microsecond or two of work, and a quarter of the time is allowed.
    let limit = usize::try_from(end / 4000).unwrap();
    assert!((limit / 2..=limit).contains(&areas), "{areas}");
    // The last state is finally passed on. Until then, no mapping of the previous program counts.
    room.map(mm, &plans(3));
    for vcpu in &mut vcpus {
        let mut looks = (end..)
            .step_by(100_000)
            .map(|time| look(vcpu, &guest, time));
        let map = looks.by_ref().take(10_000).flatten().next().unwrap();
        assert_eq!(map.areas.len(), 3);
        assert!(looks.take(100).all(|map| map.is_none()));
    }
}

#[test]
fn tasks_in_borrowed_address_spaces_have_no_mappings() {
    let guest = LinuxGuest::new(HOT);
    let mut introspector = guest.introspector(0);
    // A kernel thread.
    assert!(look(&mut introspector, &guest, 0).is_none());
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    room.process(1, &[area(0x40_0000, 4, true, 0, 0)]);
    let mut elsewhere = guest.user();
    elsewhere.cr3 = 0x2_0000;
    guest.identify(0, &guest.user());
    assert!(look_with(&mut introspector, &guest, &elsewhere, 0).is_none());
    assert!(look(&mut introspector, &guest, 0).is_some());
}

#[test]
fn paths_cross_mounts_and_end() {
    let guest = LinuxGuest::new(HOT);
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let root = room.dentry(0, "/");
    let (mnt, below) = (room.dentry(root, "mnt"), room.dentry(root, "below"));
    let outer = room.mount(root, 0, 0);
    let other = room.dentry(0, "/");
    let lib = room.dentry(other, "li\nb");
    let inner = room.mount(other, outer, mnt);
    // A cycle of directories, a cycle of mounts, and a name that is too long.
    let circle = room.dentry(below, "circle");
    room.put(below + 0x18, circle);
    let ring = room.mount(other, inner, other);
    let long = room.dentry(root, &"x".repeat(255));
    let inode = room.inode(1, 1, 0);
    let code = room.dentry(0, "memfd:code");
    let mut path = |mount, dentry| {
        let file = room.file(mount, dentry, inode);
        room.process(1, &[area(0x40_0000, 4, true, 0, file)]);
        let map = look(&mut guest.introspector(0), &guest, 0).unwrap();
        map.areas.first().map(|area| area.name().to_owned())
    };
    assert_eq!(path(inner, lib).unwrap(), "/mnt/li?b");
    assert_eq!(path(outer, mnt).unwrap(), "/mnt");
    // A file without a directory.
    assert_eq!(path(outer, code).unwrap(), "/memfd:code");
    assert_eq!(path(outer, long).unwrap().len(), 256);
    assert!(path(outer, circle).unwrap().len() <= 64 * 7);
    assert!(path(ring, lib).is_some());
    guest.write(long + 0x24 - DIRECT_MAP, &[0xff; 4]);
    assert_eq!(path(outer, long), None);
}

#[test]
fn circles_end() {
    let plans = [
        area(0x40_0000, 4, true, 0, 0),
        area(0x50_0000, 4, true, 0, 0),
    ];
    let guest = LinuxGuest::new(OLD);
    let mut room = FixtureMemory::new(&guest, Areas::List);
    let mm = room.process(1, &plans);
    let list = GuestAddress(mm + 0x50 - DIRECT_MAP);
    let first: u64 = guest.memory.read_obj(list).unwrap();
    room.put(first + 0x10, first);
    let map = look(&mut guest.introspector(0), &guest, 0).unwrap();
    assert_eq!(map.areas.len(), 1);

    let guest = LinuxGuest::new(HOT);
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let mm = room.process(1, &plans);
    // Nodes with many pointers to themselves.
    for kind in [2, 3] {
        let node = room.take(256);
        let root = node | kind << 3 | 2;
        for slot in 0..10 {
            room.put(node + 8 + slot * 8, (slot + 1) * PAGE);
            room.put(node + if kind == 2 { 128 } else { 80 } + slot * 8, root);
        }
        room.put(mm + 0x48, root);
        assert!(look(&mut guest.introspector(0), &guest, 0).is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_hostile_guest_is_bounded(
        seeds in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0..4_u8), 0..300),
        tree in any::<bool>(),
    ) {
        let (kernel, areas): (Kernel, Areas) =
            if tree { (HOT, Areas::Tree) } else { (OLD, Areas::List) };
        let guest = LinuxGuest::new(kernel);
        guest.identify(0, &guest.user());
        let mut room = FixtureMemory::new(&guest, areas);
        let (program, inode) = file(&mut room, "program", 77, &[1, 2]);
        let plans: Vec<_> = (1..30)
            .map(|index| area(index * 0x10_0000, 4, true, 0, program))
            .collect();
        room.process(1, &plans);
        let known = identity(&guest, inode);
        for (index, value, kind) in seeds {
            // Most writes go to the structures, and have values that point to them.
            let place = 0x43_0000 + index.index(0x4000) as u64 * 8;
            let value = match kind {
                0 => value,
                1 => value % 64,
                2 => DIRECT_MAP + 0x43_0000 + value % 0x2_0000,
                _ => (DIRECT_MAP + 0x43_0000 + value % 0x2_0000) & !0xff | value & 0xff,
            };
            guest.memory.write_obj(value, GuestAddress(place)).unwrap();
        }
        let mut introspector = guest.introspector(0);
        for time in [0, SECOND] {
            if let Some(map) = look(&mut introspector, &guest, time) {
                prop_assert!(map.areas.len() <= 2048);
                prop_assert!(map.areas.is_sorted_by_key(|area| area.begin));
                for area in &map.areas {
                    prop_assert!(area.name().len() <= 64 * 1024);
                }
            }
        }
        let linux = guest.linux();
        linux.file_contents(&guest.memory, &known, 1 << 20);
        linux.vdso(&guest.memory);
    }
}
