//! The places of a disk where a file system may be: the whole disk, and its partitions by the tables of MBR and GPT (UEFI specification,
//! section 5).

use std::io;
use std::ops::Range;

use kvmprof_devices::virtio::block::SECTOR;

use super::Image;

/// Size of a sector in bytes.
const SECTOR_BYTES: usize = 512;
const _: () = assert!(SECTOR_BYTES as u64 == SECTOR);
/// Offset of the partition table in the first sector, its number of entries, and the size of an entry in bytes.
const MBR_AT: usize = 446;
const MBR_COUNT: usize = 4;
const MBR_ENTRY: usize = 16;
/// The last bytes of the first sector.
const MBR_SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// The partition type by which an MBR refers to a GPT.
const MBR_PROTECTIVE: u8 = 0xee;
const GPT_SIGNATURE: [u8; 8] = *b"EFI PART";
/// Maximum number of entries of a GPT that are read, and their maximum size in bytes.
const GPT_COUNT: u32 = 128;
const GPT_ENTRY: u32 = 1024;

/// The range of the whole disk in bytes, and then that of each partition. Logical partitions of an MBR are left out.
///
/// # Errors
/// The disk can't be read.
pub fn places(image: &Image) -> io::Result<Vec<Range<u64>>> {
    let bytes = image.bytes();
    let mut places = vec![Range {
        start: 0,
        end: bytes,
    }];
    if bytes < 3 * SECTOR {
        return Ok(places);
    }
    let mut first = [0; SECTOR_BYTES];
    image.read(&mut first, 0)?;
    if !first.ends_with(&MBR_SIGNATURE) {
        return Ok(places);
    }
    let entries = first.get(MBR_AT..).unwrap_or_default();
    let entries = entries.chunks_exact(MBR_ENTRY).take(MBR_COUNT);
    for entry in entries {
        match entry.get(4) {
            None | Some(0) => {}
            Some(&MBR_PROTECTIVE) => gpt(image, &mut places)?,
            Some(_) => {
                let (start, sectors) = (word(entry, 8).into(), word(entry, 12).into());
                places.extend(place(bytes, start, sectors));
            }
        }
    }
    Ok(places)
}

fn gpt(image: &Image, places: &mut Vec<Range<u64>>) -> io::Result<()> {
    let mut header = [0; SECTOR_BYTES];
    image.read(&mut header, SECTOR)?;
    let (count, size) = (word(&header, 80), word(&header, 84));
    if !header.starts_with(&GPT_SIGNATURE) || !(128..=GPT_ENTRY).contains(&size) {
        return Ok(());
    }
    let table = long(&header, 72).saturating_mul(SECTOR);
    let mut entry = vec![0; usize::try_from(size).unwrap_or(0)];
    for index in 0..u64::from(count.min(GPT_COUNT)) {
        let at = table.saturating_add(index * u64::from(size));
        if at.saturating_add(size.into()) > image.bytes() {
            break;
        }
        image.read(&mut entry, at)?;
        let is_used = entry.iter().take(16).any(|byte| *byte != 0);
        let (first, last) = (long(&entry, 32), long(&entry, 40));
        if is_used && let Some(sectors) = last.checked_sub(first) {
            places.extend(place(image.bytes(), first, sectors.saturating_add(1)));
        }
    }
    Ok(())
}

/// The range of a partition in bytes; `None` if it is empty, begins at 0, or isn't within the disk.
fn place(bytes: u64, start: u64, sectors: u64) -> Option<Range<u64>> {
    let begin = start.checked_mul(SECTOR)?;
    let end = sectors.checked_mul(SECTOR)?.checked_add(begin)?;
    (begin != 0 && begin < end && end <= bytes).then_some(begin..end)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_le_bytes(*field.unwrap_or(&[0; 4]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}
