use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};

const SIZE: usize = 8 << 20;
/// Where images are loaded to, and where their volume is.
const LOADED: u64 = 0x40_0000;
const VOLUME: u64 = 0x10_0000;
const IMAGE_SIZE: u32 = 0x2000;
const ENTRY: u32 = 0x400;

/// An image with code, as in a file: loaded to nowhere. With a debug record of that kind and path.
fn image(code: u8, debug: Option<(&[u8; 4], &str)>) -> Vec<u8> {
    let mut image = vec![0; IMAGE_SIZE as usize];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let optional = 0x98;
    for (at, number) in [
        (0x3c, 0x80),
        (0x84, 0x8664),
        (optional, 0x20b),
        (optional + 16, ENTRY),
        (optional + 56, IMAGE_SIZE),
        (optional + 108, 16),
    ] {
        put(at, &number.to_le_bytes());
    }
    put(0, b"MZ");
    put(0x80, b"PE\0\0");
    put(0x400, &[code; 0x1400]);
    if let Some((kind, path)) = debug {
        let directory = optional + 160;
        for (at, number) in [
            (directory, 0x1800),
            (directory + 4, 28),
            (0x180c, 2),
            (0x1814, 0x1900),
        ] {
            put(at, &u32::to_le_bytes(number));
        }
        put(0x1900, kind);
        put(
            0x1900 + if kind == b"RSDS" { 24 } else { 16 },
            path.as_bytes(),
        );
    }
    image
}

fn section(kind: u8, contents: &[u8]) -> Vec<u8> {
    let length = u32::try_from(contents.len() + 4).unwrap().to_le_bytes();
    let mut section = vec![length[0], length[1], length[2], kind];
    section.extend(contents);
    section.resize(section.len().next_multiple_of(4), 0);
    section
}

fn file(name: &str, image: &[u8]) -> Vec<u8> {
    let name: Vec<u8> = (name.encode_utf16().chain([0]))
        .flat_map(u16::to_le_bytes)
        .collect();
    let sections = [section(0x10, image), section(0x15, &name)].concat();
    let length = u32::try_from(sections.len() + 24).unwrap().to_le_bytes();
    let mut file = vec![0; 24];
    file[20..23].copy_from_slice(&length[..3]);
    file.extend(sections);
    file.resize(file.len().next_multiple_of(8), 0xff);
    file
}

fn volume(files: &[Vec<u8>]) -> Vec<u8> {
    let mut volume = vec![0; 72];
    let length = 72 + files.iter().map(Vec::len).sum::<usize>() + 64;
    volume[32..40].copy_from_slice(&(length as u64).to_le_bytes());
    volume[40..44].copy_from_slice(b"_FVH");
    volume[48] = 72;
    let words = volume.as_chunks::<2>().0.iter();
    let sum = words.fold(0_u16, |sum, word| {
        sum.wrapping_add(u16::from_le_bytes(*word))
    });
    volume[50..52].copy_from_slice(&sum.wrapping_neg().to_le_bytes());
    volume.extend(files.concat());
    volume.resize(length, 0xff);
    volume
}

/// A guest with memory that is mapped one to one.
struct Guest {
    memory: Memory,
    firmware: Firmware,
}

impl Guest {
    fn new() -> Self {
        let memory = Memory::from_ranges(&[(GuestAddress(0), SIZE)]).unwrap();
        let mut tables = Tables::new(memory.clone(), 0x1000, 4);
        for address in (0..SIZE as u64).step_by(2 << 20) {
            tables.map(address, address, 2);
        }
        Self {
            memory,
            firmware: Firmware::default(),
        }
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        self.memory
            .write_slice(bytes, GuestAddress(address))
            .unwrap();
    }

    /// Loads an image as UEFI does.
    fn load(&self, address: u64, image: &[u8]) {
        self.put(address, image);
        self.put(address + 0x98 + 24, &address.to_le_bytes());
    }

    fn at(&self, address: u64, time: u64) {
        let registers = registers(address);
        self.firmware.note(&self.memory, &registers, time);
    }

    /// The names in the text, with their addresses.
    fn named(&self) -> Vec<String> {
        self.firmware.name(&self.memory);
        let new = self.firmware.functions_after(0);
        let text = new.map_or_else(String::new, |new| new.text);
        text.lines().map(str::to_owned).collect()
    }
}

/// The registers of a vCPU in 64-bit code at this address.
fn registers(rip: u64) -> Registers {
    Registers {
        rip,
        is_64_bit_code: true,
        ..long_mode(0x1000, false)
    }
}

fn lines(begin: u64, name: &str) -> [String; 2] {
    let end = begin + u64::from(IMAGE_SIZE);
    [
        format!("{begin:016x} t {name}\t[firmware]"),
        format!("{end:016x} ? [end]\t[firmware]"),
    ]
}

#[test]
fn a_loaded_image_has_the_name_of_its_debug_record() {
    for (kind, path, name) in [
        (b"RSDS", "/build/X64/DEBUG/DxeCore.dll", "DxeCore"),
        (b"NB10", "c:\\build\\PcdDxe.debug", "PcdDxe"),
        (b"NB10", "Bds Dxe\n", "pe_image"),
        (b"MTOC", "Bds", "pe_image"),
    ] {
        let guest = Guest::new();
        guest.load(LOADED, &image(0x90, Some((kind, path))));
        guest.at(LOADED + 0x1000, 7);
        let expected = [&["since 7 7".to_owned()][..], &lines(LOADED, name)].concat();
        assert_eq!(guest.named(), expected);
    }
}

#[test]
fn an_image_without_one_has_the_name_of_its_file_in_a_volume() {
    let guest = Guest::new();
    let (first, second) = (image(0x90, None), image(0xcc, None));
    let files = [file("RuntimeDxe", &first), file("BdsDxe", &second)];
    guest.put(VOLUME, &volume(&files));
    guest.load(LOADED, &second);
    guest.load(LOADED + 0x10_0000, &first);
    guest.at(LOADED + 0x800, 5);
    guest.at(LOADED + 0x10_0800, 6);
    let named = guest.named();
    assert_eq!(named[1..3], lines(LOADED, "BdsDxe"));
    assert_eq!(named[4..], lines(LOADED + 0x10_0000, "RuntimeDxe"));
}

/// Two files with the same headers and code there.
#[test]
fn a_file_that_could_be_another_gives_no_name() {
    let guest = Guest::new();
    let files = ["RuntimeDxe", "BdsDxe"].map(|name| file(name, &image(0x90, None)));
    guest.put(VOLUME, &volume(&files));
    guest.load(LOADED, &image(0x90, None));
    guest.at(LOADED + 0x800, 5);
    assert_eq!(guest.named()[1..], lines(LOADED, "pe_image"));
}

#[test]
fn an_image_that_is_executed_in_its_volume_has_its_name() {
    let guest = Guest::new();
    guest.put(VOLUME, &volume(&[file("PeiCore", &image(0x90, None))]));
    let begin = VOLUME + 72 + 24 + 4;
    guest.at(begin + 0x800, 5);
    assert_eq!(guest.named()[1..], lines(begin, "PeiCore"));
    // Behind it.
    let named = guest.named();
    guest.at(begin + u64::from(IMAGE_SIZE), 5);
    assert_eq!(guest.named(), named);
}

#[test]
fn code_outside_images_and_code_that_has_changed_have_no_name() {
    let debug = Some((b"RSDS", "DxeCore.dll"));
    let outside: [&dyn Fn(&Guest); 5] = [
        // A copy of the file, which isn't loaded.
        &|guest| guest.put(LOADED, &image(0x90, debug)),
        // Its header lies about where it is.
        &|guest| guest.load(LOADED - 0x1000, &image(0x90, debug)[..0x1000]),
        &|guest| guest.load(LOADED, &[image(0x90, debug), vec![0]].concat()[2..]),
        // It ends before the code.
        &|guest| guest.load(LOADED - u64::from(IMAGE_SIZE), &image(0x90, debug)),
        // It is for another processor.
        &|guest| {
            guest.load(LOADED, &image(0x90, debug));
            guest.put(LOADED + 0x84, &0x14c_u16.to_le_bytes());
        },
    ];
    for (number, load) in outside.into_iter().enumerate() {
        let guest = Guest::new();
        load(&guest);
        guest.at(LOADED + 0x1000, 7);
        assert_eq!(guest.named(), [""; 0], "{number}");
    }
    let guest = Guest::new();
    guest.load(LOADED, &image(0x90, debug));
    guest.at(LOADED + 0x1000, 7);
    guest.put(LOADED + 0x1000, &[0xcc; 8]);
    assert_eq!(guest.named(), [""; 0]);
}

#[test]
fn names_end_when_another_image_or_a_kernel_takes_the_place() {
    let guest = Guest::new();
    guest.load(LOADED, &image(0x90, Some((b"RSDS", "One.dll"))));
    guest.at(LOADED + 0x1000, 7);
    let one = guest.named();
    // Once more, and the same.
    guest.at(LOADED + 0x1400, 8);
    assert_eq!(guest.named(), one);
    guest.load(LOADED, &image(0xcc, Some((b"RSDS", "Two.dll"))));
    guest.at(LOADED + 0x1000, 9);
    let end = LOADED + u64::from(IMAGE_SIZE);
    let gone = format!("gone {LOADED:016x} {end:016x}");
    let named = guest.named();
    let since = ["since 9 9".to_owned(), gone.clone()];
    let two = lines(LOADED, "Two");
    assert_eq!(named, [&one[..], &since, &two].concat());
    let known = named.iter().map(|line| line.len() as u64 + 1).sum();
    assert_eq!(guest.firmware.functions_after(known), None);
    guest.firmware.end(20);
    let new = guest.firmware.functions_after(known).unwrap();
    assert_eq!(new.text, format!("since 20 20\n{gone}\n"));
}

#[test]
fn only_code_of_firmware_is_noted() {
    let guest = Guest::new();
    guest.load(LOADED, &image(0x90, Some((b"RSDS", "One.dll"))));
    let registers = registers(LOADED + 0x1000);
    let (mut program, mut elsewhere) = (registers, registers);
    program.cpl = 3;
    // A kernel maps it elsewhere.
    let mut tables = Tables::new(guest.memory.clone(), 0x10_1000, 4);
    tables.map(LOADED + 0x1000, 0x20_0000, 1);
    elsewhere.cr3 = 0x10_1000;
    for other in [program, elsewhere] {
        guest.firmware.note(&guest.memory, &other, 7);
        assert_eq!(guest.named(), [""; 0]);
    }
    guest.firmware.note(&guest.memory, &registers, 7);
    assert_eq!(guest.named().len(), 3);
}

#[test]
fn a_bios_and_option_roms_are_named() {
    let guest = Guest::new();
    let mut rom = vec![0; 0x8000];
    rom[..3].copy_from_slice(&[0x55, 0xaa, 0x40]);
    rom[0x18] = 0x40;
    rom[0x40..0x48].copy_from_slice(b"PCIR\x86\x80\x0e\x10");
    guest.put(0xc_0000, &rom);
    rom[0x40] = 0;
    guest.put(0xc_8000, &rom);
    guest.put(0xe_1ff8, b"SeaBIOS (version 1.16.2");
    for (address, time) in [(0xc_4000, 1), (0xc_f000, 2), (0xd_8000, 3), (0xf_1000, 4)] {
        guest.at(address, time);
    }
    let named = guest.named();
    let names: Vec<&str> = (named.iter())
        .filter_map(|line| line.split_once(" t "))
        .map(|(_, name)| name)
        .collect();
    let expected = ["option_rom_8086_100e", "option_rom", "SeaBIOS"];
    assert_eq!(names, expected.map(|name| format!("{name}\t[firmware]")));
    // Another BIOS.
    let other = Guest::new();
    other.at(0xf_1000, 1);
    assert_eq!(other.named(), [""; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Damaged images and volumes.
    #[test]
    fn hostile_memory_ends(damage in prop::collection::vec((0..0x3000_usize, any::<u8>()), 0..16), at in 0..0x3000_u64) {
        let guest = Guest::new();
        let mut files = volume(&[file("RuntimeDxe", &image(0x90, Some((b"RSDS", "a.dll"))))]);
        let mut loaded = image(0x90, None);
        for bytes in [&mut files, &mut loaded] {
            for (place, byte) in &damage {
                if let Some(place) = bytes.get_mut(*place) {
                    *place = *byte;
                }
            }
        }
        guest.put(VOLUME, &files);
        guest.load(LOADED, &loaded);
        guest.at(VOLUME + at, 1);
        guest.at(LOADED + at, 2);
        let _ = guest.named();
    }
}
