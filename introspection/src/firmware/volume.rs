//! Firmware volumes in memory, and the names of their files (UEFI Platform Initialization specification 1.8, volume 3, sections 2 and 3).
//!
//! A firmware unpacks its volumes into memory, and loads images out of their files. A file's user interface section has the image's name.

use std::ops::Range;

use vm_memory::GuestAddress;

use super::pe::Image;
use super::{NamedCode, bytes, word};
use crate::PhysicalMemory;
use crate::bytes::{array_at, u16_at, u32_at, u64_at};

/// The memory in which volumes are searched: unpacked ones, and those in the ROM below 4 GiB. They begin at a page.
const SEARCHED: [Range<u64>; 2] = [0..64 << 20, 0xff00_0000..1 << 32];
const PAGE: u64 = 4096;
/// How often volumes are searched: a firmware unpacks more of them while it runs.
const MAX_SEARCHES: u32 = 16;
const MAX_VOLUMES: usize = 32;
const MAX_VOLUME: u64 = 32 << 20;
const MAX_FILES: usize = 1024;
const MAX_SECTIONS: usize = 32;
/// All files of all volumes.
const MAX_KNOWN: usize = 4096;

/// `EFI_FIRMWARE_VOLUME_HEADER`.
const VOLUME_HEADER: usize = 56;
/// `EFI_FFS_FILE_HEADER`.
const FILE_HEADER: usize = 24;
/// `EFI_COMMON_SECTION_HEADER`, and types of sections.
const SECTION_HEADER: u64 = 4;
const SECTION_PE32: u8 = 0x10;
const SECTION_TE: u8 = 0x12;
const SECTION_UI: u8 = 0x15;
/// Characters of a name.
const MAX_NAME: usize = 64;
/// Bytes of an image's code that have to be those of its file.
const PROOF: usize = 32;

/// A file of a volume, with an image.
#[derive(Clone, Debug)]
struct VolumeFile {
    name: String,
    /// The section's contents: where they are, and their length in bytes.
    image: u64,
    length: u64,
}

/// The files of the volumes that were found.
#[derive(Debug, Default)]
pub struct Volumes {
    files: Vec<VolumeFile>,
    searches: u32,
}

impl Volumes {
    /// The name of a loaded image in which `address` is: that of the file that has the same headers, and the same code there.
    pub fn name_of<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        image: &Image,
        address: u64,
    ) -> Option<String> {
        self.search_for(memory, |file, memory| {
            let distance = address.checked_sub(image.base)?;
            let original = Image::read(memory, file.image)?;
            let is_within = distance.checked_add(PROOF as u64)? <= file.length;
            let code = |begin: u64| bytes::<PROOF, M>(memory, begin + distance);
            let is_same =
                is_within && original.is_same(image) && code(file.image)? == code(image.base)?;
            is_same.then_some(())
        })
        .map(|file| file.name)
    }

    /// The file whose image is executed where it is in its volume, as those before UEFI has found the machine's memory.
    pub fn executed_in_place<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        address: u64,
    ) -> Option<NamedCode> {
        let file = self.search_for(memory, |file, _| {
            let distance = address.checked_sub(file.image)?;
            (distance < file.length).then_some(())
        })?;
        Some(NamedCode {
            begin: file.image,
            end: file.image + file.length,
            name: file.name,
        })
    }

    /// The file for which `is_it`, if all such files have one name. Searches volumes again if there is none.
    fn search_for<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        is_it: impl Fn(&VolumeFile, &M) -> Option<()>,
    ) -> Option<VolumeFile> {
        loop {
            let mut found = self
                .files
                .iter()
                .filter(|file| is_it(file, memory).is_some());
            if let Some(first) = found.next() {
                let is_only = found.all(|other| other.name == first.name);
                return is_only.then(|| first.clone());
            }
            if self.searches == MAX_SEARCHES {
                return None;
            }
            self.searches += 1;
            let before = self.files.len();
            self.files = search(memory);
            if self.files.len() == before {
                return None;
            }
        }
    }
}

/// The files of all volumes in memory.
fn search<M: PhysicalMemory>(memory: &M) -> Vec<VolumeFile> {
    let pages = SEARCHED
        .into_iter()
        .flat_map(|range| range.step_by(usize::try_from(PAGE).unwrap_or(usize::MAX)));
    let volumes = pages.filter_map(|begin| volume(memory, begin));
    let mut files = Vec::new();
    for volume in volumes.take(MAX_VOLUMES) {
        add_files(memory, &volume, &mut files);
    }
    files
}

/// The files of the volume at `begin`: their addresses.
fn volume<M: PhysicalMemory>(memory: &M, begin: u64) -> Option<Range<u64>> {
    let header: [u8; VOLUME_HEADER] = bytes(memory, begin)?;
    (array_at(&header, 40)? == *b"_FVH").then_some(())?;
    let length = u64_at(&header, 32)?;
    let end = begin.checked_add(length).filter(|_| length <= MAX_VOLUME)?;
    let sum = checksum(memory, begin, u16_at(&header, 48)?)?;
    (sum == 0).then_some(())?;
    let extended = u64::from(u16_at(&header, 52)?);
    let first = match extended {
        0 => begin + u64::from(u16_at(&header, 48)?),
        _ => {
            let extended = begin + extended;
            let size: [u8; 20] = bytes(memory, extended)?;
            extended + u64::from(u32_at(&size, 16)?)
        }
    };
    // Files are aligned to 8 bytes within the volume.
    let first = begin + (first - begin).next_multiple_of(8);
    (first < end).then_some(first..end)
}

/// The sum of the 16-bit words of a volume's header.
fn checksum<M: PhysicalMemory>(memory: &M, begin: u64, length: u16) -> Option<u16> {
    let mut header = vec![0; usize::from(length)];
    memory.read_physical(GuestAddress(begin), &mut header)?;
    let (words, _) = header.as_chunks::<2>();
    let words = words.iter().map(|word| u16::from_le_bytes(*word));
    Some(words.fold(0, u16::wrapping_add))
}

/// Adds the files in `volume` that have an image and a name.
fn add_files<M: PhysicalMemory>(memory: &M, volume: &Range<u64>, files: &mut Vec<VolumeFile>) {
    let mut begin = volume.start;
    for _ in 0..MAX_FILES {
        let Some(header) = bytes::<FILE_HEADER, M>(memory, begin) else {
            return;
        };
        let length = size_of_three(&header[20..]);
        let end = begin.saturating_add(length);
        if length <= FILE_HEADER as u64 || end > volume.end || files.len() >= MAX_KNOWN {
            return;
        }
        files.extend(file(memory, begin + FILE_HEADER as u64..end));
        begin = volume.start + (end - volume.start).next_multiple_of(8);
    }
}

/// The file with these sections.
fn file<M: PhysicalMemory>(memory: &M, sections: Range<u64>) -> Option<VolumeFile> {
    let (mut image, mut name) = (None, None);
    let mut begin = sections.start;
    for _ in 0..MAX_SECTIONS {
        let Some(header) = bytes::<4, M>(memory, begin) else {
            break;
        };
        let length = size_of_three(&header);
        let end = begin.saturating_add(length);
        if length <= SECTION_HEADER || end > sections.end {
            break;
        }
        let contents = begin + SECTION_HEADER..end;
        match header[3] {
            SECTION_PE32 | SECTION_TE => image = Some(contents),
            SECTION_UI => name = ui_name(memory, &contents),
            _ => {}
        }
        begin = sections.start + (end - sections.start).next_multiple_of(4);
    }
    let image = image?;
    Some(VolumeFile {
        name: name?,
        image: image.start,
        length: image.end - image.start,
    })
}

/// A name in UCS-2.
fn ui_name<M: PhysicalMemory>(memory: &M, contents: &Range<u64>) -> Option<String> {
    let length = usize::try_from(contents.end - contents.start).ok()?;
    let mut name = vec![0; length.min(2 * MAX_NAME + 2)];
    memory.read_physical(GuestAddress(contents.start), &mut name)?;
    let (letters, _) = name.as_chunks::<2>();
    let letters = letters.iter().map(|letter| u16::from_le_bytes(*letter));
    let letters: Vec<u16> = letters.take_while(|letter| *letter != 0).collect();
    word(&String::from_utf16(&letters).ok()?)
}

/// A number of three bytes.
fn size_of_three(bytes: &[u8]) -> u64 {
    match bytes {
        [a, b, c, ..] => u64::from(u32::from_le_bytes([*a, *b, *c, 0])),
        _ => 0,
    }
}
