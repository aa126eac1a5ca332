//! Files of ext4 file systems on the guest's disks, while the guest uses them.
//!
//! A program's file is seldom all in the guest's page cache: nothing reads its symbols and its unwind information but a debugger.
//! So it is read from the disk. The guest may be changing the file system meanwhile. The checksums of ext4's own structures reveal
//! inconsistent data, and callers have to compare a file's build id with the one in the guest.

use std::cell::RefCell;
use std::error::Error;
use std::ops::Range;
use std::sync::Weak;
use std::time::{Duration, Instant};

use ext4_view::{Ext4, Ext4Read, Path};

use kvmprof_machine::disk::{Image, partitions};

/// After this time a file system is opened again: the guest may have changed it.
const FRESH: Duration = Duration::from_secs(2);
/// Maximum numbers of reads and of bytes of a file system until it is opened again, for any image.
const READS_MAX: u64 = 1 << 20;
const BYTES_MAX: u64 = 2 << 30;

/// The guest's disks.
#[derive(Clone, Debug, Default)]
pub struct GuestDisks {
    /// The images. Their devices close them.
    pub images: Vec<Weak<Image>>,
}

/// The file systems on the guest's disks. They belong to one thread.
#[derive(Default)]
pub struct DiskFiles {
    opened: RefCell<Option<(Instant, Vec<Ext4>)>>,
}

impl DiskFiles {
    /// The contents of the files at `path` of all file systems, each at most `limit` bytes long.
    pub fn read(&self, disks: &GuestDisks, path: &str, limit: u64) -> Vec<Vec<u8>> {
        if disks.images.is_empty() {
            return Vec::new();
        }
        let mut opened = self.opened.borrow_mut();
        opened.take_if(|(at, _)| at.elapsed() > FRESH);
        let (_, systems) = opened.get_or_insert_with(|| (Instant::now(), file_systems(disks)));
        let contents = |system: &Ext4| {
            let path = Path::try_from(path).ok()?;
            let metadata = system.metadata(path).ok()?;
            if !metadata.file_type().is_regular_file() || metadata.len() > limit {
                return None;
            }
            system.read(path).ok()
        };
        systems.iter().filter_map(contents).collect()
    }
}

/// All that can be read as ext2, ext3 or ext4.
fn file_systems(disks: &GuestDisks) -> Vec<Ext4> {
    let mut found = Vec::new();
    for image in &disks.images {
        let places = image
            .upgrade()
            .and_then(|image| partitions::places(&image).ok());
        for place in places.unwrap_or_default() {
            let reader = Reader {
                image: Weak::clone(image),
                place,
                reads: 0,
                bytes: 0,
            };
            found.extend(Ext4::load(Box::new(reader)));
        }
    }
    found
}

/// A part of a disk.
struct Reader {
    image: Weak<Image>,
    place: Range<u64>,
    reads: u64,
    bytes: u64,
}

impl Ext4Read for Reader {
    fn read(
        &mut self,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        self.reads += 1;
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.reads > READS_MAX || self.bytes > BYTES_MAX {
            return Err("the file system takes too long to read".into());
        }
        let begin = self.place.start.saturating_add(offset);
        if begin.saturating_add(bytes.len() as u64) > self.place.end {
            return Err("beyond the end of the file system".into());
        }
        let image = self.image.upgrade().ok_or("the guest has ended")?;
        Ok(image.read(bytes, begin)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::sync::Arc;

    use kvmprof_machine::disk::Disk;

    use super::*;

    const MEBIBYTE: usize = 1 << 20;
    const PROGRAM: &str = "/usr/bin/program";
    const LIMIT: u64 = 1 << 30;

    /// An ext4 file system with a program.
    fn file_system() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        fs::write(root.join(&PROGRAM[1..]), contents()).unwrap();
        let image = folder.path().join("image");
        let made = Command::new("/sbin/mke2fs")
            .args(["-q", "-t", "ext4", "-d"])
            .args([&root, &image])
            .arg("8M")
            .output()
            .expect("apt-get install e2fsprogs");
        assert!(made.status.success(), "{made:?}");
        fs::read(image).unwrap()
    }

    fn contents() -> Vec<u8> {
        (0..300_000_u32).flat_map(u32::to_le_bytes).collect()
    }

    /// The files found on a disk with these bytes.
    fn read(bytes: &[u8], path: &str, limit: u64) -> Vec<Vec<u8>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, bytes).unwrap();
        let words = format!("{},readonly", file.path().display());
        let disk = Disk::open(&words.parse().unwrap()).unwrap();
        let image = Arc::new(disk.image);
        let disks = GuestDisks {
            images: vec![Arc::downgrade(&image)],
        };
        DiskFiles::default().read(&disks, path, limit)
    }

    #[test]
    fn a_program_is_found_on_a_whole_disk() {
        let system = file_system();
        assert_eq!(read(&system, PROGRAM, LIMIT), [contents()]);
        for (disk, path, limit) in [
            (&system[..], PROGRAM, 1000),
            (&system, "/usr/bin", LIMIT),
            (&system, "/usr/bin/other", LIMIT),
            (&system[..MEBIBYTE], PROGRAM, LIMIT),
            (&[0; 512], PROGRAM, LIMIT),
        ] {
            assert!(read(disk, path, limit).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_program_is_found_on_partitions() {
        let system = file_system();
        let sectors = u32::try_from(system.len() / 512).unwrap();
        // One after another, each at a whole mebibyte.
        let mut disk = vec![0; MEBIBYTE];
        disk.extend(&system);
        disk.resize(10 * MEBIBYTE, 0);
        let mut first = vec![0; 446];
        let entry = |kind: u8, start: u32, sectors: u32| {
            let (start, sectors) = (start.to_le_bytes(), sectors.to_le_bytes());
            [&[0, 0, 0, 0, kind, 0, 0, 0], &start[..], &sectors[..]].concat()
        };
        first.extend(entry(0x83, 2048, sectors));
        first.extend(entry(0x83, u32::MAX, u32::MAX));
        first.extend(entry(0, 2048, sectors));
        first.extend(entry(0x82, 64, 64));
        first.extend([0x55, 0xaa]);
        disk[..512].copy_from_slice(&first);
        assert_eq!(read(&disk, PROGRAM, LIMIT), [contents()]);

        disk[446..510].fill(0);
        disk[446 + 4] = 0xee;
        disk[512..520].copy_from_slice(b"EFI PART");
        disk[512 + 72..][..8].copy_from_slice(&2_u64.to_le_bytes());
        disk[512 + 80..][..4].copy_from_slice(&4_u32.to_le_bytes());
        disk[512 + 84..][..4].copy_from_slice(&128_u32.to_le_bytes());
        let second = 1024 + 128;
        disk[second..second + 16].fill(7);
        disk[second + 32..][..8].copy_from_slice(&2048_u64.to_le_bytes());
        let last = 2048 + u64::from(sectors) - 1;
        disk[second + 40..][..8].copy_from_slice(&last.to_le_bytes());
        assert_eq!(read(&disk, PROGRAM, LIMIT), [contents()]);
        // Entries without an end.
        disk[512 + 72..][..8].fill(0xff);
        disk[512 + 80..][..4].fill(0xff);
        assert!(read(&disk, PROGRAM, LIMIT).is_empty());
    }

    #[test]
    fn a_damaged_file_system_has_no_other_program() {
        let system = file_system();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |end: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 8).unwrap() % end
        };
        let mut found = 0;
        for case in 0..100 {
            let mut damaged = system.clone();
            // The superblock, the groups' descriptors, the tables; and the journal.
            let end = if case % 2 == 0 { 8192 } else { damaged.len() };
            for _ in 0..=random(8) {
                let at = random(end - 1024) + 1024;
                damaged[at] = u8::try_from(random(256)).unwrap();
            }
            let all = read(&damaged, PROGRAM, LIMIT);
            found += all.len();
            assert!(all.iter().all(|it| it.len() <= 4 * contents().len()));
        }
        assert!(found > 0);
    }
}
