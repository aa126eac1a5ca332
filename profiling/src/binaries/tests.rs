use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmprof_recording::Sysroot;
use kvmprof_recording::file::{Block, GeneratedCode, Kind, Piece};

use super::initrd::tests::entry;
use super::*;
use kvmprof_introspection::{
    Area, Backing, FileIdentity, GuestKnowledge, MappedFile, ProcessMap, VcpuIntrospector,
};
use kvmprof_introspection_fixtures::kernel::{Areas, HOT, TEXT, offsets, task};
use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, IMAGE, LinuxGuest, TASKS};
use kvmprof_introspection_fixtures::processes::{AreaPlan, FixtureMemory, PAGE, PAGES};

/// An archive with one file.
fn archive(path: &str, contents: &[u8]) -> Vec<u8> {
    entry(path, 0o100_755, 1, 1, contents)
}

/// What is known of `guest` once a vCPU of it was looked at.
fn known(guest: &LinuxGuest) -> Arc<GuestKnowledge> {
    let knowledge = Arc::new(GuestKnowledge::from_kernel_image(&HOT.file()).unwrap());
    let mut vcpu = VcpuIntrospector::new(Arc::clone(&knowledge), 0);
    vcpu.identify(&guest.memory, &guest.user(), false, false);
    knowledge
}

/// What is read of `file`: the source that it names.
fn source(guest: &LinuxGuest, file: &MappedFile, initrd: &Path, sysroot: &Path) -> Option<String> {
    let initrd = fs::File::open(initrd).ok();
    source_of_opened(guest, file, initrd, sysroot)
}

fn loader(guest: &LinuxGuest, initrd: Option<fs::File>, sysroot: &Path) -> BinaryLoader {
    BinaryLoader::new(BinarySources::new(
        Arc::new(guest.memory.clone()),
        known(guest),
        initrd,
        Some(Sysroot::open(sysroot).unwrap()),
    ))
}

/// A process with one page of code from `file`.
fn map_of(file: MappedFile) -> Arc<ProcessMap> {
    let area = Area {
        begin: TEXT,
        end: TEXT + PAGE,
        offset: 0x1000,
        backing: Backing::File(Arc::new(file)),
    };
    Arc::new(ProcessMap::new(0x1000, 7, 0, vec![area]))
}

fn source_of_opened(
    guest: &LinuxGuest,
    file: &MappedFile,
    initrd: Option<fs::File>,
    sysroot: &Path,
) -> Option<String> {
    let (mut loader, map) = (loader(guest, initrd, sysroot), map_of(file.clone()));
    assert!(!loader.is_busy());
    loader.load(Arc::clone(&map), vec![Some(3)]);
    let begun = Instant::now();
    let mut blocks = Vec::new();
    while loader.is_busy() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        blocks.extend(loader.take());
        std::thread::yield_now();
    }
    // Whatever was found, stacks can be unwound now.
    assert!(map.unwinder.get().is_some());
    assert!(blocks.len() <= 1);
    let (id, block) = blocks.first()?;
    assert_eq!(*id, Some(3));
    let block = Block::decode(block).unwrap();
    assert_eq!(block.kind, Some(Kind::Binary));
    let text = String::from_utf8(block.contents).unwrap();
    let info: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(info["id"], 3);
    assert_eq!(info["file"], "/bin/tool");
    Some(info["source"].as_str().unwrap().to_owned())
}

/// Puts one page of `program`'s code into the page cache, and neither its headers nor its build id. The tree of pages, and the physical
/// address of that page.
fn one_page(guest: &LinuxGuest, room: &mut FixtureMemory<'_>, program: &[u8]) -> (u64, u64) {
    let pages = room.pages(&[0, 0]);
    let head = room.node(0, &[(0, pages), (2, pages + 64)]);
    let code = (pages - PAGES) / 64 * PAGE + PAGE;
    guest.write(code, &program[8192..12288]);
    (head, code)
}

/// The file of `program`, whose tree of pages is `head`.
fn tool(room: &mut FixtureMemory<'_>, program: &[u8], head: u64) -> MappedFile {
    let length = program.len() as u64;
    let identity = FileIdentity {
        inode: room.inode(5, length, head),
        number: 5,
        device: 0x0010_0002,
        length,
        modified: 1_700_000_000,
    };
    MappedFile {
        path: "/bin/tool".to_owned(),
        identity,
    }
}

#[test]
fn a_file_that_could_not_be_read_is_read_again() {
    let guest = LinuxGuest::new(HOT);
    let sysroot = tempfile::tempdir().unwrap();
    fs::create_dir(sysroot.path().join("bin")).unwrap();
    let program = HOT.file();
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let (head, _) = one_page(&guest, &mut room, &program);
    let file = tool(&mut room, &program, head);
    let (mut loader, map) = (loader(&guest, None, sysroot.path()), map_of(file));
    loader.load(Arc::clone(&map), vec![Some(3)]);
    let begun = Instant::now();
    let wait = |loader: &mut BinaryLoader| {
        assert!(begun.elapsed() < Duration::from_secs(300));
        std::thread::sleep(Duration::from_millis(10));
        loader.take()
    };
    while loader.is_busy() {
        assert!(wait(&mut loader).is_empty());
    }
    fs::write(sysroot.path().join("bin/tool"), &program).unwrap();
    let blocks = loop {
        let blocks = wait(&mut loader);
        if !blocks.is_empty() {
            break blocks;
        }
    };
    assert!(blocks.len() == 1 && blocks[0].0 == Some(3));
}

#[test]
fn files_are_searched_in_all_places() {
    let guest = LinuxGuest::new(HOT);
    let folder = tempfile::tempdir().unwrap();
    let (initrd, sysroot) = (folder.path().join("initrd"), folder.path().join("root"));
    fs::create_dir_all(sysroot.join("bin")).unwrap();
    let program = HOT.file();
    // Of the same length.
    let mut other = program.clone();
    other[9000] ^= 1;
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    let (head, code) = one_page(&guest, &mut room, &program);
    let file = tool(&mut room, &program, head);
    let found = || source(&guest, &file, &initrd, &sysroot);
    assert_eq!(found(), None);
    // Another one of the same name isn't the program.
    fs::write(&initrd, archive("bin/tool", &other)).unwrap();
    fs::write(sysroot.join("bin/tool"), &other).unwrap();
    assert_eq!(found(), None);
    fs::write(&initrd, archive("bin/tool", &program)).unwrap();
    assert_eq!(found().as_deref(), Some("initrd"));
    // A file that takes the place of the one that the guest was started with changes nothing.
    let opened = fs::File::open(&initrd).unwrap();
    fs::remove_file(&initrd).unwrap();
    fs::write(&initrd, archive("bin/tool", &other)).unwrap();
    let still = source_of_opened(&guest, &file, Some(opened), &sysroot);
    assert_eq!((found(), still.as_deref()), (None, Some("initrd")));
    fs::write(sysroot.join("bin/tool"), &program).unwrap();
    assert_eq!(found().as_deref(), Some("sysroot"));
    // With more symbols the file is longer.
    let longer = [&program[..], b"symbols"].concat();
    fs::write(sysroot.join("bin/tool"), longer).unwrap();
    assert_eq!(found().as_deref(), Some("sysroot"));
    // A page of zeros proves nothing.
    guest.write(code, &[0; 4096]);
    assert_eq!(found(), None);
}

/// The next names of generated code that `loader` has read.
fn next_code(loader: &mut BinaryLoader) -> GeneratedCode {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(300));
        let blocks = loader.take();
        assert!(blocks.len() <= 1);
        let Some((None, block)) = blocks.first() else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        return generated(block);
    }
}

fn generated(block: &[u8]) -> GeneratedCode {
    match Block::decode(block).unwrap().piece() {
        Ok(Some(Piece::GeneratedCode(code))) => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_of_generated_code_are_read_as_a_process_writes_them() {
    let guest = LinuxGuest::new(HOT);
    let knowledge = known(&guest);
    let mut room = FixtureMemory::new(&guest, Areas::Tree);
    guest.task(2, 1, 1, 1);
    let tasks = DIRECT_MAP + TASKS + 2 * 0x1000 + task::TASKS;
    room.put(DIRECT_MAP + IMAGE + offsets::INIT_TASK + task::TASKS, tasks);
    let root = room.dentry(0, "/");
    let mount = room.mount(root, 0, 0);
    let folder = room.dentry(root, "tmp");
    let inode = room.inode(2, 0, 0);
    room.instantiate(folder, inode);
    room.namespaces(1, &[41, 9], mount, root);
    room.namespaces(2, &[1], mount, root);
    let begin = 0x7f00_0000_0000;
    let area = AreaPlan {
        begin,
        end: begin + PAGE,
        executable: true,
        offset: 0,
        file: 0,
    };
    room.process(1, &[area]);
    let mut vcpu = VcpuIntrospector::new(Arc::clone(&knowledge), 0);
    for registers in [guest.kernel(0), guest.user()] {
        vcpu.identify(&guest.memory, &registers, false, false);
    }
    let map = vcpu
        .follow_process(&guest.memory, &guest.user(), 77)
        .unwrap();
    let memory = Arc::new(guest.memory.clone());
    let mut loader = BinaryLoader::new(BinarySources::new(memory, knowledge, None, None));
    loader.load(Arc::clone(&map), vec![None; map.areas.len()]);
    // The file comes after the process.
    let page = room.pages(&[0]);
    let text = (page - PAGES) / 64 * PAGE;
    guest.write(text, b"10 1 dye\n20 1 weave\n30 ");
    let inode = room.inode(5, 11, page);
    let entry = room.dentry(folder, "perf-9.map");
    room.instantiate(entry, inode);
    let first = next_code(&mut loader);
    let info = &first.info;
    assert_eq!((info.pid, info.begins, info.since), (41, true, 77));
    assert_eq!(first.lines, "10 1 dye\n");
    room.resize(inode, 23);
    let second = next_code(&mut loader);
    assert!(
        !second.info.begins && second.lines == "20 1 weave\n",
        "{second:?}"
    );
    assert!(first.info.since < second.info.since && first.info.until < second.info.until);
    // The process ends: what it wrote at its end counts, and then nothing any more.
    guest.write(text + 20, b"30 1 card\n");
    room.resize(inode, 30);
    guest.write(TASKS + 0x1000 + task::EXIT_STATE, &0x20_u32.to_le_bytes());
    let blocks = loop {
        let blocks = loader.take();
        if !blocks.is_empty() {
            break blocks;
        }
    };
    let codes = blocks.iter().map(|(_, block)| generated(block));
    let lines: Vec<(bool, String)> = codes.map(|code| (code.info.begins, code.lines)).collect();
    assert_eq!(lines[0], (false, "30 1 card\n".to_owned()));
    if let Some(last) = lines.get(1) {
        assert_eq!(*last, (true, String::new()));
    } else {
        assert_eq!(next_code(&mut loader).lines, "");
    }
}
