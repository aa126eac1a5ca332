//! Tests of `image`: the formats that it detects, and the messages about files that it refuses.

use object::elf::{ELFMAG, EM_386, PT_NOTE};

use super::super::kernel_file::{KernelFile, KernelSource, open_checked, open_file};
use super::*;
use kvmprof_abi::note;

const PAGE: u64 = 0x1000;

/// A small ELF file with one segment of a page at `address`, whose start is the entry point.
fn elf(address: u64, notes: &[(&[u8], u32, &[u8])]) -> Vec<u8> {
    let mut note_bytes = Vec::new();
    for (owner, kind, desc) in notes {
        let owner_size = owner.len() + 1;
        for word in [owner_size, desc.len()] {
            note_bytes.extend(u32::try_from(word).unwrap().to_le_bytes());
        }
        note_bytes.extend(kind.to_le_bytes());
        for part in [[owner, &b"\0"[..]].concat(), desc.to_vec()] {
            note_bytes.extend(&part);
            note_bytes.resize(note_bytes.len().next_multiple_of(4), 0);
        }
    }

    let mut file = Vec::new();
    file.extend(ELFMAG);
    file.extend([2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend(2u16.to_le_bytes());
    file.extend(EM_X86_64.0.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    file.extend(address.to_le_bytes());
    file.extend(64u64.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 2, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let notes_size = note_bytes.len() as u64;
    push_segment(&mut file, PT_LOAD.0, PAGE, address, PAGE);
    push_segment(&mut file, PT_NOTE.0, 64 + 2 * 56, 0, notes_size);
    file.extend(note_bytes);
    file.resize(0x2000, 0x90);
    file
}

fn push_segment(file: &mut Vec<u8>, kind: u32, offset: u64, address: u64, size: u64) {
    file.extend(kind.to_le_bytes());
    file.extend(5u32.to_le_bytes());
    for word in [offset, address, address, size, size, 4] {
        file.extend(word.to_le_bytes());
    }
}

/// The first sectors of a bzImage, followed by `payload` bytes.
fn bzimage(payload: usize) -> Vec<u8> {
    let mut file = vec![0; 2 * 512 + payload];
    file[0x1f1] = 1;
    let paragraphs = u32::try_from(payload / 16).unwrap();
    file[0x1f4..0x1f8].copy_from_slice(&paragraphs.to_le_bytes());
    file[0x202..0x206].copy_from_slice(b"HdrS");
    file[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
    file[0x211] = 1;
    file[0x214..0x218].copy_from_slice(&0x10_0000u32.to_le_bytes());
    file[0x22c..0x230].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    file[0x236] = 1;
    file[0x238..0x23c].copy_from_slice(&2047u32.to_le_bytes());
    file[0x258..0x260].copy_from_slice(&0x100_0000u64.to_le_bytes());
    file[0x260..0x264].copy_from_slice(&0x80_0000u32.to_le_bytes());
    file
}

fn parse(bytes: &[u8]) -> Result<Image, MachineError> {
    Image::parse("test".to_owned(), Arc::from(bytes))
}

fn message(bytes: &[u8]) -> String {
    parse(bytes).unwrap_err().to_string()
}

#[test]
fn an_elf_file_without_notes_is_entered_as_linux() {
    let image = parse(&elf(0x10_0000, &[])).unwrap();
    assert_eq!(image.kind(), ImageKind::ElfLinux);
    assert_eq!(image.entry, 0x10_0000);
    assert_eq!(image.memory_end(), 0x10_1000);
}

#[test]
fn the_pvh_note_gives_the_entry_point() {
    let entry = 0x10_0010u32.to_le_bytes();
    let image = parse(&elf(0x10_0000, &[(b"Xen", 18, &entry)])).unwrap();
    assert_eq!(image.kind(), ImageKind::Pvh);
    assert_eq!(image.entry, 0x10_0010);
}

#[test]
fn the_kvmprof_note_takes_precedence() {
    let entry = 0x10_0010u32.to_le_bytes();
    let notes: &[(&[u8], u32, &[u8])] = &[
        (b"GNU", 2, b""),
        (b"kvmprof", note::TYPE_START_ALL, b""),
        (b"Xen", 18, &entry),
    ];
    let image = parse(&elf(0x10_0000, notes)).unwrap();
    assert_eq!(image.kind(), ImageKind::StartAll);
    assert_eq!(image.entry, 0x10_0000);
}

#[test]
fn a_bzimage_header_gives_its_memory_needs() {
    let image = parse(&bzimage(4096)).unwrap();
    assert_eq!(image.kind(), ImageKind::BzImage);
    assert_eq!(image.command_line_max(), 2047);
    assert_eq!(image.memory_end(), 0x180_0000);
    assert_eq!(image.initrd_address_max(), 0x7fff_ffff);
}

#[test]
fn kernels_are_loaded_and_entered() {
    let memory = crate::memory::allocate(&crate::memory::MemoryOptions::private(64 << 20)).unwrap();
    let bz = parse(&bzimage(4096)).unwrap().load(&memory, 64 << 20);
    assert_eq!(bz.unwrap().entry, 0x10_0200);

    let elf = parse(&elf(0x20_0000, &[])).unwrap().load(&memory, 64 << 20);
    assert_eq!(elf.unwrap().entry, 0x20_0000);
    let loaded: u32 = vm_memory::Bytes::read_obj(&memory, GuestAddress(0x20_0000)).unwrap();
    assert_eq!(loaded, 0x9090_9090);
}

#[test]
fn other_files_are_no_kernels() {
    for bytes in [&b"#!/bin/sh\necho hello\n"[..], &[], &[0; 4096]] {
        assert_eq!(
            message(bytes),
            "The kernel test is not a bzImage or an ELF file for x86-64"
        );
    }
}

#[test]
fn elf_files_for_other_machines_are_refused() {
    let mut file = elf(0x10_0000, &[]);
    file[18..20].copy_from_slice(&EM_386.0.to_le_bytes());
    assert!(message(&file).contains("is for another processor. kvmprof starts"));
    let mut file = elf(0x10_0000, &[]);
    file[4] = 1;
    assert!(message(&file).contains("is a 32-bit program. kvmprof starts"));
}

/// As memtest86+ is.
#[test]
fn a_bzimage_without_a_packed_kernel_is_another_system() {
    let mut file = bzimage(4096);
    assert!(!parse(&file).unwrap().is_linux());
    file[0x24c] = 1;
    assert!(parse(&file).unwrap().is_linux());
}

#[test]
fn errors_of_truncated_kernels_have_the_missing_size() {
    let bz = bzimage(4096);
    assert_eq!(
        message(&bz[..2000]),
        "The kernel test is truncated: it should have 5120 bytes, but has 2000"
    );
    // Its size is in units of 16 bytes.
    assert!(parse(&bz[..bz.len() - 15]).is_ok());
    assert!(message(&bz[..bz.len() - 16]).contains("is truncated"));
    let elf = elf(0x10_0000, &[]);
    assert_eq!(
        message(&elf[..0x1800]),
        "The kernel test is truncated: it should have 8192 bytes, but has 6144"
    );
}

#[test]
fn an_elf_header_alone_causes_no_panic() {
    for length in 0..elf(0x10_0000, &[]).len().min(300) {
        assert!(parse(&elf(0x10_0000, &[])[..length]).is_err());
    }
}

#[test]
fn kernels_without_a_64_bit_entry_are_refused() {
    let mut file = bzimage(4096);
    file[0x236] = 0;
    assert!(message(&file).contains("without a 64-bit entry point; a"));
}

#[test]
fn kernels_never_overwrite_the_boot_structures() {
    assert!(message(&elf(0x7000, &[])).contains("wants to be loaded at 0x7000"));
}

#[test]
fn kernels_larger_than_memory_are_refused() {
    let memory = crate::memory::allocate(&crate::memory::MemoryOptions::private(32 << 20)).unwrap();
    let image = parse(&elf(0x4000_0000, &[])).unwrap();
    let error = image.load(&memory, 32 << 20).unwrap_err();
    assert_eq!(
        error.to_string(),
        "The kernel test needs memory up to 1025 MiB but the guest's ends at 32 MiB: give it more"
    );
}

#[test]
fn segments_at_the_end_of_the_address_space_do_not_overflow() {
    let image = parse(&elf(u64::MAX - 0x800, &[]));
    assert!(image.is_err() || image.unwrap().memory_end() == u64::MAX);
}

#[test]
fn a_missing_kernel_is_named() {
    let source = KernelSource::Path("/nonexistent/vmlinuz".into());
    let error = KernelFile::open(&source).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Cannot read the kernel /nonexistent/vmlinuz"
    );
    let error = KernelFile::open(&KernelSource::Path("/".into())).unwrap_err();
    assert_eq!(error.to_string(), "The kernel / is not a regular file");
}

#[test]
fn a_path_that_becomes_a_pipe_is_refused_without_blocking() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vmlinuz");
    let owner = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, owner).unwrap();
    let refused = format!("The initrd {} is not a regular file", path.display());
    let error = open_file("initrd", &path).unwrap_err();
    assert_eq!(error.to_string(), refused);
    // As after a check that the path has passed.
    let error = open_checked("initrd", &path).unwrap_err();
    assert_eq!(error.to_string(), refused);
}

/// A file that has this kernel after its first bytes, to be loaded at `load`.
fn bundle(contents: &[u8], load: u64) -> Result<Image, MachineError> {
    let file = [&b"file"[..], contents].concat();
    let kernel = BundledKernel {
        load,
        entry: load + 0x123,
        contents: 4..file.len(),
    };
    Image::bundled("test".to_owned(), file.into(), kernel)
}

/// A kernel that has these words.
fn kernel(words: &str) -> Vec<u8> {
    let mut contents = format!("Linux version 6.12.0 {words}").into_bytes();
    contents.resize(0x1000, 0);
    contents
}

#[test]
fn the_kernel_within_a_file_is_loaded_and_entered() {
    let contents = kernel("");
    let image = bundle(&contents, 0x100_0000).unwrap();
    assert_eq!(image.kind(), ImageKind::ElfLinux);
    assert!(image.is_linux());
    assert_eq!(image.memory_end(), 0x100_1000);
    let memory = crate::memory::allocate(&crate::memory::MemoryOptions::private(64 << 20)).unwrap();
    let loaded = image.load(&memory, 64 << 20).unwrap();
    assert_eq!(loaded.entry, 0x100_0123);
    let mut bytes = vec![0; contents.len()];
    memory
        .read_slice(&mut bytes, GuestAddress(0x100_0000))
        .unwrap();
    assert_eq!(bytes, contents);
    // Nothing else of the file is loaded.
    let before: u64 = memory.read_obj(GuestAddress(0x100_0000 - 8)).unwrap();
    assert_eq!(before, 0);
}

#[test]
fn a_kernel_within_a_file_has_its_place_and_its_contents() {
    let low = bundle(&kernel(""), 0x8000).unwrap_err().to_string();
    assert!(low.contains("wants to be loaded at 0x8000"), "{low}");
    let kernel = BundledKernel {
        load: 0x100_0000,
        entry: 0x100_0000,
        contents: 2..10,
    };
    let short = Image::bundled("test".to_owned(), (*b"contents").into(), kernel).unwrap_err();
    assert_eq!(
        short.to_string(),
        "The kernel test is truncated: it should have 10 bytes, but has 8"
    );
}

#[test]
fn what_a_kernel_lacks_is_known_if_it_is_not_packed() {
    use KernelPart::{Acpi, InitialRamDisk, SerialPort};
    let of = |image: Image| [Acpi, SerialPort, InitialRamDisk].map(|part| image.lacks(part));
    let bundled = |contents: &[u8]| of(bundle(contents, 0x100_0000).unwrap());
    let lacks = |file: &[u8]| of(parse(file).unwrap());
    assert_eq!(bundled(&kernel("")), [true; 3]);
    assert_eq!(bundled(&kernel("serial8250")), [true, false, true]);
    let two = kernel("RSD PTR  TRAILER!!!");
    assert_eq!(bundled(&two), [false, true, false]);
    // Another system, and a packed one.
    assert_eq!(bundled(&[0; 0x1000]), [false; 3]);
    assert_eq!(lacks(&elf(0x10_0000, &[])), [false; 3]);
    assert_eq!(lacks(&bzimage(4096)), [false; 3]);
    assert_eq!(lacks(&elf(0x10_0000, &[(b"Linux", 0x100, b"")])), [true; 3]);
}

/// Each segment may have all notes of the file.
#[test]
fn notes_are_bounded() {
    let mut file = elf(0x10_0000, &[]);
    let place = file.len() as u64;
    // A note without an owner and contents is twelve bytes long.
    let many = [0; 12 * 5000];
    let at = 64 + 56 + 8;
    file[at..at + 8].copy_from_slice(&place.to_le_bytes());
    file[at + 24..at + 32].copy_from_slice(&(many.len() as u64).to_le_bytes());
    file.extend(many);
    assert!(message(&file).contains("it has too many notes"));
}
