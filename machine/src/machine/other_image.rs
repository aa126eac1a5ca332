//! What a file is that this machine doesn't start as a kernel.

use object::LittleEndian;
use object::elf::{ELFCLASS64, ELFMAG, EM_X86_64, ET_CORE, ET_REL, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};

use super::kernel_notes::KernelNotes;

/// The files that are known by their first bytes.
const BY_START: [(&[u8], &str); 9] = [
    (b"\x1f\x8b", COMPRESSED),
    (b"BZh", COMPRESSED),
    (b"\xfd7zXZ\0", COMPRESSED),
    (b"\x28\xb5\x2f\xfd", COMPRESSED),
    (b"\x04\x22\x4d\x18", COMPRESSED),
    (b"\x02\x21\x4c\x18", COMPRESSED),
    (b"07070", "an initrd, for --initrd"),
    (b"QFI\xfb", DISK),
    (
        b"!<arch>\n",
        "an archive, such as a package: unpack it first",
    ),
];
const COMPRESSED: &str = "compressed: unpack it first";
const DISK: &str = "a disk, for --disk, with a boot loader that only a PC's firmware starts";

/// What the file is, if it is known and certainly no kernel that the machine starts. Call it for a bzImage only if that has no setup header.
pub(super) fn what_else(file: &[u8]) -> Option<&'static str> {
    let has = |offset: usize, bytes: &[u8]| {
        (file.get(offset..)).is_some_and(|rest| rest.starts_with(bytes))
    };
    if has(0, &ELFMAG) {
        return other_elf(file);
    }
    let known = BY_START.iter().find(|(start, _)| has(0, start));
    if let Some((_, what)) = known {
        return Some(what);
    }
    // The place of the PE header is at 0x3c (Microsoft: PE Format, "MS-DOS Stub").
    let header = file.get(0x3c..).and_then(|rest| rest.first_chunk());
    let header = header.map_or(0, |place| u32::from_le_bytes(*place));
    if has(0, b"MZ") && usize::try_from(header).is_ok_and(|place| has(place, b"PE\0\0")) {
        return Some("an EFI program (PE), which only UEFI firmware starts");
    }
    if is_firmware(file) {
        return Some("a PC's firmware or an option ROM, which kvmprof doesn't run");
    }
    // A CD's volume descriptor (ECMA-119, section 8.1), and a boot sector's signature.
    (has(0x8001, b"CD001") || has(510, b"\x55\xaa")).then_some(DISK)
}

/// Whether the file is a ROM: UEFI's firmware, which begins with a volume (UEFI Platform Initialization specification 1.8, volume 3, section 3.2.1); a BIOS,
/// which ends with a far jump at the reset vector; or an option ROM, which begins with its number of blocks (PCI firmware specification 3.3, section 5.1.2).
fn is_firmware(file: &[u8]) -> bool {
    const VOLUME: usize = 40;
    const FAR_JUMP: u8 = 0xea;
    let is_volume = file.get(VOLUME..).is_some_and(|it| it.starts_with(b"_FVH"));
    let vector = file.len().checked_sub(16).and_then(|at| file.get(at));
    let is_bios = file.len().is_multiple_of(64 << 10) && vector == Some(&FAR_JUMP);
    let is_option = match file {
        [0x55, 0xaa, blocks, ..] => *blocks > 0 && file.len() == usize::from(*blocks) * 512,
        _ => false,
    };
    is_volume || is_bios || is_option
}

/// What an ELF file is.
fn other_elf(file: &[u8]) -> Option<&'static str> {
    let endian = LittleEndian;
    if file.get(4) != Some(&ELFCLASS64.0) {
        return Some(match has_multiboot_header(file) {
            true => "a 32-bit Multiboot kernel, which only a boot loader such as GRUB starts",
            false => "a 32-bit program",
        });
    }
    let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
    if !header.is_little_endian() || header.e_machine(endian) != EM_X86_64 {
        return Some("for another processor");
    }
    match header.e_type(endian) {
        ET_REL => return Some("an object file or a module: a whole kernel is needed"),
        ET_CORE => return Some("a core dump"),
        _ => {}
    }
    let segments = header.program_headers(endian, file).unwrap_or_default();
    // Damaged notes say nothing here: who loads the file says what is wrong with them.
    let notes = KernelNotes::read(segments, file).unwrap_or_default();
    if notes.start_all || notes.pvh_entry.is_some() {
        return None;
    }
    let is_linked = (segments.iter()).any(|segment| segment.p_type(endian) == PT_INTERP);
    if is_linked || notes.program {
        return Some("a program that an operating system starts (as linux.uml is), not a kernel");
    }
    has_multiboot_header(file).then_some(MULTIBOOT)
}

const MULTIBOOT: &str = "a Multiboot kernel, which only a boot loader such as GRUB starts; with a PVH entry kvmprof does";

/// Whether the file has a header of the Multiboot Specification 0.6.96 (section 3.1) or of Multiboot2 2.0 (section 3.1), each with its checksum.
fn has_multiboot_header(file: &[u8]) -> bool {
    const FIRST: (u32, usize, usize, usize) = (0x1bad_b002, 8192, 4, 3);
    const SECOND: (u32, usize, usize, usize) = (0xe852_50d6, 32768, 8, 4);

    [FIRST, SECOND]
        .into_iter()
        .any(|(magic, within, step, words)| {
            let searched = &file[..file.len().min(within)];
            (0..searched.len()).step_by(step).any(|place| {
                let header = searched.get(place..place + 4 * words);
                let words = header.into_iter().flat_map(|header| header.chunks_exact(4));
                let mut words = words.map(|word| {
                    word.iter()
                        .rev()
                        .fold(0, |sum: u32, byte| sum << 8 | u32::from(*byte))
                });
                words.next() == Some(magic) && words.fold(magic, u32::wrapping_add) == 0
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file for x86-64 of this type, with a program header of this type.
    fn elf(kind: u8, segment: u8) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64 + 56, 0);
        (file[16], file[18], file[20]) = (kind, 62, 1);
        (file[32], file[52], file[54], file[56]) = (64, 64, 56, 1);
        file[64] = segment;
        file
    }

    /// With a multiboot header, whose words add up to `sum`.
    fn multiboot(mut file: Vec<u8>, words: &[u32], sum: u32) -> Vec<u8> {
        file.resize(0x1000, 0);
        let rest = words.iter().fold(sum, |sum, word| sum.wrapping_sub(*word));
        for word in words.iter().chain([&rest]) {
            file.extend(word.to_le_bytes());
        }
        file
    }

    fn is(file: &[u8], what: &str) {
        let found = what_else(file);
        assert!(found.is_some_and(|found| found.contains(what)), "{found:?}");
    }

    #[test]
    fn other_elf_files_are_named() {
        let mut short = elf(2, 1);
        short[4] = 1;
        is(&short, "32-bit program");
        let mut other = elf(2, 1);
        other[18] = 0xb7;
        is(&other, "another processor");
        is(&elf(1, 0), "object file");
        is(&elf(4, 4), "core dump");
        is(&elf(2, 3), "an operating system starts");
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        is(&own, "an operating system starts");
        for kernel in [&elf(2, 1), &elf(3, 1), kvmprof_demo_guest::ELF] {
            assert_eq!(what_else(kernel), None);
        }
    }

    #[test]
    fn multiboot_headers_count_with_their_checksum() {
        let versions: [&[u32]; 2] = [&[0x1bad_b002, 3], &[0xe852_50d6, 0, 24]];
        for words in versions {
            is(&multiboot(elf(2, 1), words, 0), "Multiboot");
            let mut short = multiboot(elf(2, 1), words, 0);
            short[4] = 1;
            is(&short, "32-bit Multiboot");
            assert_eq!(what_else(&multiboot(elf(2, 1), words, 1)), None);
            let cut = &multiboot(elf(2, 1), words, 0)[..0x1004];
            assert_eq!(what_else(cut), None);
        }
    }

    #[test]
    fn files_of_other_kinds_are_named() {
        is(b"\x1f\x8b\x08 vmlinux.gz", "compressed");
        is(b"\x28\xb5\x2f\xfd", "compressed");
        is(b"070701000", "--initrd");
        is(b"QFI\xfb", "--disk");
        let mut sector = vec![0; 512];
        sector[510..].copy_from_slice(b"\x55\xaa");
        is(&sector, "--disk");
        let mut cd = vec![0; 0x9000];
        cd[0x8001..0x8006].copy_from_slice(b"CD001");
        is(&cd, "--disk");
        let mut volume = vec![0; 0x1000];
        volume[40..44].copy_from_slice(b"_FVH");
        let mut bios = vec![0; 0x2_0000];
        bios[0x1_fff0] = 0xea;
        // Its first sector ends as that of a disk.
        let mut option = vec![0; 0x400];
        option[..3].copy_from_slice(&[0x55, 0xaa, 2]);
        option[510..512].copy_from_slice(b"\x55\xaa");
        for rom in [&volume, &bios, &option] {
            is(rom, "firmware");
        }
        let mut efi = vec![0; 0x100];
        efi[..2].copy_from_slice(b"MZ");
        efi[0x3c] = 0x80;
        efi[0x80..0x84].copy_from_slice(b"PE\0\0");
        is(&efi, "UEFI");
        efi[0x3c..0x40].fill(0xff);
        let text = b"#!/bin/sh\n";
        for other in [&b""[..], text, b"MZ", &[0; 4096], &efi, b"\x7fELF\x02"] {
            assert_eq!(what_else(other), None);
        }
    }
}
