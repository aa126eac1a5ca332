//! The contents of files and of the vDSO, read out of guest memory.

use super::*;
use crate::linux::processes::{ProcessFollower, RunningTask};
use crate::linux::{Cpu, LinuxKnowledge};
use kvmprof_introspection_fixtures::kernel::{TEXT, offsets};
use kvmprof_introspection_fixtures::linux_guest::{
    DIRECT_MAP, IMAGE, MEMORY, SLIDE, TABLES, TASKS,
};
use kvmprof_introspection_fixtures::page_tables::Tables;
use kvmprof_introspection_fixtures::processes::PAGES;

/// With CONFIG_BASE_SMALL nodes have 16 slots.
#[test]
fn reads_files_out_of_nodes_of_16_slots() {
    let guest = LinuxGuest::new(HOT);
    guest.identify(0, &guest.user());
    let mut linux = LinuxKnowledge::from_image(&HOT.file()).unwrap();
    let processes = linux.processes.as_mut().unwrap();
    let cache = processes.page_cache.as_mut().unwrap();
    assert_eq!(std::mem::replace(&mut cache.slot_bits, 4), 6);
    let mut cpu = Cpu::new(0);
    cpu.identify(&linux, &guest.memory, &guest.user(), false, false);
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let bytes: Vec<u8> = (1..=20).collect();
    let row = room.pages(&bytes);
    let entries: Vec<_> = (0..16).map(|index| (index, row + index * 64)).collect();
    let low = room.node(0, &entries);
    // A folio of four pages.
    let high = room.node(0, &[(0, row + 16 * 64), (1, 2), (2, 2), (3, 2)]);
    let head = room.node(4, &[(0, low), (1, high)]);
    let inode = room.inode(9, 20 * PAGE, head);
    let read = linux.file_contents(&guest.memory, &identity(&guest, inode), u64::MAX);
    let expected: Vec<u8> = bytes.iter().flat_map(|byte| [*byte; 4096]).collect();
    assert_eq!(read.unwrap(), expected);
}

#[test]
fn reads_files_out_of_the_page_cache() {
    let guest = LinuxGuest::new(HOT);
    guest.identify(0, &guest.user());
    let linux = guest.linux();
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let bytes: Vec<u8> = (1..=70).collect();
    let single = room.pages(&bytes[..1]);
    let row = room.pages(&bytes);
    let page = |index: u64| row + index * 64;
    // A folio of four pages from page 4 on: three sibling slots refer to it.
    let mut entries: Vec<_> = (0..64).map(|index| (index, page(index))).collect();
    for (sibling, entry) in &mut entries[5..8] {
        (*sibling, *entry) = (*sibling, 4 << 2 | 2);
    }
    let low = room.node(0, &entries);
    let high = room.node(0, &[(0, page(64)), (1, page(65)), (3, page(67))]);
    let whole = room.node(6, &[(0, low), (1, high)]);
    // A folio of 64 pages without a node of its own.
    let large = room.node(6, &[(0, page(0)), (1, high)]);
    let contents = |head, length, room: &mut FixtureMemory<'_>| {
        let inode = room.inode(9, length, head);
        linux.file_contents(&guest.memory, &identity(&guest, inode), u64::MAX)
    };
    let expected = |pages: usize| {
        let all = bytes.iter().take(pages);
        all.flat_map(|byte| [*byte; 4096]).collect::<Vec<u8>>()
    };
    assert_eq!(contents(single, 100, &mut room).unwrap(), [1; 100]);
    for head in [whole, large] {
        let read = contents(head, 66 * PAGE, &mut room).unwrap();
        assert_eq!(read, expected(66));
    }
    assert!(contents(0, 0, &mut room).unwrap().is_empty());
    // Absent pages: after the first, in no slot, after the tree's end, swapped out.
    let absent = [
        (single, 2),
        (whole, 67),
        (whole, 68),
        (whole, 5000),
        (0, 1),
        (0x11, 1),
    ];
    for (head, length) in absent {
        assert_eq!(contents(head, length * PAGE, &mut room), None, "{head:#x}");
    }
    // Pages that are still being read from the disk. The flags of a folio are those of its first page.
    for index in [4, 65] {
        room.set_uptodate(page(index), false);
        assert_eq!(contents(whole, 66 * PAGE, &mut room), None, "{index}");
        room.set_uptodate(page(index), true);
    }
    room.set_uptodate(page(5), false);
    let read = contents(whole, 66 * PAGE, &mut room);
    assert_eq!(read.unwrap(), expected(66));
    // A pointer outside guest memory, a node that points to itself, an invalid shift.
    let circle = room.node(6, &[]);
    room.put(circle - 2 + 0x28, circle);
    let shift = room.node(200, &[(0, single)]);
    for head in [
        PAGES + (MEMORY as u64) / PAGE * 64,
        PAGES - 64,
        page(0) + 8,
        circle,
        shift,
    ] {
        assert_eq!(contents(head, PAGE, &mut room), None, "{head:#x}");
    }
    // Only the beginning, and only the requested file.
    let inode = room.inode(9, 68 * PAGE, whole);
    let identity = identity(&guest, inode);
    let start = linux.file_contents(&guest.memory, &identity, PAGE);
    assert_eq!(start.unwrap(), expected(1));
    // Present pages are compared, absent ones aren't.
    let compare =
        |begin: u64, bytes: &[u8]| linux.compare_file(&guest.memory, &identity, begin, bytes);
    let mut bytes = expected(66);
    assert_eq!(compare(0, &bytes), Some(66));
    assert_eq!(compare(100, &bytes[100..8000]), Some(2));
    assert_eq!(compare(66 * PAGE, &[9; 4096]), Some(0));
    assert_eq!(compare(u64::MAX, &[9; 4096]), None);
    bytes[5000] ^= 1;
    assert_eq!(compare(0, &bytes), None);
    let zeros = room.pages(&[0]);
    let empty = room.inode(9, PAGE, zeros);
    let file = self::identity(&guest, empty);
    let compared = linux.compare_file(&guest.memory, &file, 0, &[0; 4096]);
    assert_eq!(compared, Some(0));
    room.touch(inode);
    assert_eq!(compare(0, &expected(1)), None);
    for other in [identity, FileIdentity::default()] {
        assert_eq!(linux.file_contents(&guest.memory, &other, PAGE), None);
    }
}

#[test]
fn reads_the_vdso_out_of_the_kernel() {
    for guest in [HOT, NEW].map(LinuxGuest::new) {
        let vdso = |data: u64, length: u64| {
            guest.set(offsets::VDSO_IMAGE, data);
            guest.set(offsets::VDSO_IMAGE + 8, length);
            guest.linux().vdso(&guest.memory)
        };
        let data = TEXT + SLIDE + offsets::END - 0x1000;
        guest.write(IMAGE + offsets::END - 0x1000, b"\x7fELF");
        assert_eq!(vdso(data, 0x1000), None, "its address is unknown");
        guest.identify(0, &guest.user());
        let found = vdso(data, 0x1000).unwrap();
        assert!(found.starts_with(b"\x7fELF") && found.len() == 0x1000);
        for (data, length) in [(data, 0x1001), (0, 0x1000), (data, u64::MAX), (u64::MAX, 2)] {
            assert_eq!(vdso(data, length), None);
        }
    }
}

/// Kernels that don't describe themselves have no names of variables.
#[test]
fn finds_the_vdso_of_a_kernel_without_its_symbol() {
    let guest = LinuxGuest::new(HOT);
    let mut linux = LinuxKnowledge::from_image(&HOT.file()).unwrap();
    linux.addresses.vdso = None;
    let registers = guest.kernel(0);
    Cpu::new(0).identify(&linux, &guest.memory, &registers, false, false);
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    room.process(1, &[area(VDSO, 1, true, 0, 0)]);
    room.special(VDSO, "[vdso]");
    let seen = RunningTask {
        task: DIRECT_MAP + TASKS + 0x1000,
        pid: 41,
        tid: 41,
        started: None,
        process_started: None,
    };
    let mut tables = Tables::new(guest.memory.clone(), TABLES, guest.levels());
    tables.skip_to(0x58_0000);
    let page = offsets::END - 0x1000;
    let mut found = |physical: u64| {
        tables.map(VDSO, physical, 1);
        let view = linux.view(&guest.memory, &registers).unwrap();
        let map = ProcessFollower::default().follow(&view, &registers, seen, 0);
        assert_eq!(map.unwrap().areas[0].name(), "[vdso]");
        linux.vdso(&guest.memory)
    };
    assert_eq!(found(IMAGE + page), None, "it isn't an ELF file");
    for place in [page, offsets::END] {
        guest.write(IMAGE + place, b"\x7fELF\x02");
    }
    assert_eq!(found(IMAGE + offsets::END), None, "it isn't in the image");
    let contents = found(IMAGE + page).unwrap();
    assert!(contents.starts_with(b"\x7fELF\x02") && contents.len() == 0x1000);
}
