//! Kernels as the machine loads them: bzImage and ELF files, whose parts are put into guest memory.

use kvmprof_introspection_fixtures::library::{Function, Library};
use kvmprof_machine::{GuestMemory, ImageKind, layout};
use kvmprof_vmm::vm::parse_kernel;
use vm_memory::GuestAddress;

/// Bytes of guest memory.
const MEMORY: usize = 4 << 20;

/// Reads the file, and loads it if it is a kernel.
pub fn run(data: &[u8]) {
    let Ok(image) = parse_kernel("fuzzed".to_owned(), data.into()) else {
        return;
    };
    assert!(image.command_line_max() <= layout::COMMAND_LINE_MAX);
    let memory: GuestMemory = GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let loaded = image.load(&memory, MEMORY as u64);
    if let Ok(loaded) = loaded {
        assert!(image.memory_end() <= MEMORY as u64);
        let has_header = loaded.setup_header.is_some();
        assert_eq!(has_header, image.kind() == ImageKind::BzImage);
    }
}

/// A small ELF file with notes, a bzImage without a kernel in it, and a library with one.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let note = |owner: &[u8], kind: u32, content: &[u8]| {
        let padded = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_le_bytes();
        [
            &length(owner)[..],
            &length(content),
            &kind.to_le_bytes(),
            &padded(owner),
            &padded(content),
        ]
        .concat()
    };
    let start_all = note(b"kvmprof\0", kvmprof_abi::note::TYPE_START_ALL, &[]);
    let pvh = note(b"Xen\0", 18, &0x10_0000_u32.to_le_bytes());
    let linux = note(b"Linux\0", 0x100, &[0; 4]);
    vec![
        ("elf", elf(&linux)),
        ("pvh", elf(&pvh)),
        ("start-all", elf(&start_all)),
        ("bzimage", bzimage()),
        ("library", library()),
    ]
}

/// A file with two segments: what is loaded, and the notes.
fn elf(notes: &[u8]) -> Vec<u8> {
    const ADDRESS: u64 = 0x10_0000;
    /// Bytes of the headers.
    const HEADERS: u64 = 64 + 2 * 56;
    let segment = |kind: u32, offset: u64, file: u64, memory: u64| {
        [
            &kind.to_le_bytes()[..],
            // Read, write and execute.
            &7_u32.to_le_bytes(),
            &offset.to_le_bytes(),
            &ADDRESS.to_le_bytes(),
            &ADDRESS.to_le_bytes(),
            &file.to_le_bytes(),
            &memory.to_le_bytes(),
            &4_u64.to_le_bytes(),
        ]
        .concat()
    };
    let length = notes.len() as u64;
    [
        // 64 bits, little-endian, version 1.
        &b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"[..],
        // An executable for x86-64.
        &[2, 0, 62, 0, 1, 0, 0, 0],
        &ADDRESS.to_le_bytes(),
        // The segments' headers follow; there are no sections.
        &64_u64.to_le_bytes(),
        &[0; 12],
        &[64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0],
        &segment(1, 0, HEADERS, 0x2000),
        &segment(4, HEADERS, length, length),
        notes,
    ]
    .concat()
}

/// A library with a kernel.
fn library() -> Vec<u8> {
    Library {
        function: Function::Framed,
        load: 0x10_0000,
        entry: 0x10_0010,
        length: 0x40,
        contents: &[0x90; 0x40],
    }
    .file()
}

/// One sector of setup, and a kernel of one that is never run (kernel: Documentation/arch/x86/boot.rst).
fn bzimage() -> Vec<u8> {
    const SECTOR: usize = 512;
    let mut file = vec![0; 3 * SECTOR];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    // setup_sects, syssize in units of 16 bytes, boot_flag.
    put(0x1f1, &[1]);
    put(0x1f4, &32_u32.to_le_bytes());
    put(0x1fe, &[0x55, 0xaa]);
    put(0x202, b"HdrS");
    // Version 2.15, loaded high, for 64-bit entry.
    put(0x206, &0x020f_u16.to_le_bytes());
    put(0x211, &[1]);
    put(0x22c, &0x7fff_ffff_u32.to_le_bytes());
    put(0x236, &1_u16.to_le_bytes());
    put(0x238, &2047_u32.to_le_bytes());
    put(0x258, &0x10_0000_u64.to_le_bytes());
    put(0x260, &0x1000_u32.to_le_bytes());
    file
}
