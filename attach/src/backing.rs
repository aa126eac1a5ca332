//! What the memory of a VMM is backed by.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;

use crate::process_mappings::{ProcessMapping, list};

/// Maximum number of bytes of the list of a VMM's mappings, and of that of its mounts: memory beyond is of an unknown kind.
const MAX_BYTES: u64 = 1 << 20;
/// File systems that have their files in memory.
const IN_MEMORY: [&str; 4] = ["tmpfs", "ramfs", "devtmpfs", "hugetlbfs"];
/// How the kernel calls memory that processes share, which is in no file system that is mounted (`memfd_create`(2), `mmap`(2), `shmget`(2)).
const SHARED: [&str; 3] = ["/memfd:", "/dev/zero (deleted)", "/SYSV"];

/// Where the host's kernel reads a page of memory from that isn't there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// That isn't known, or it may be either.
    #[default]
    Unknown,
    /// Swap.
    Swap,
    /// A file.
    File,
}

/// The mappings of a process, with what each is backed by.
#[derive(Debug)]
pub struct Backings(Vec<(Range<u64>, Backing)>);

impl Backings {
    /// Those of process `pid`.
    ///
    /// # Errors
    /// Its mappings or its mounts can't be read.
    pub fn of(pid: i32) -> io::Result<Self> {
        let mut mounts = String::new();
        File::open(format!("/proc/{pid}/mountinfo"))?
            .take(MAX_BYTES)
            .read_to_string(&mut mounts)?;
        // Its first line is a heading.
        let has_swap = fs::read_to_string("/proc/swaps")?.lines().count() > 1;
        Ok(Self::parse(&list(pid, MAX_BYTES)?, &mounts, has_swap))
    }

    fn parse(list: &str, mounts: &str, has_swap: bool) -> Self {
        let systems: HashMap<(u32, u32), &str> = mounts.lines().filter_map(mount).collect();
        let mappings = ProcessMapping::all(list).map(|mapping| {
            let backing = backing(&mapping, systems.get(&mapping.device).copied(), has_swap);
            (mapping.range, backing)
        });
        Self(mappings.collect())
    }

    /// What the `bytes` bytes at `address` are backed by, if all of them are by the same.
    pub fn at(&self, address: u64, bytes: u64) -> Backing {
        let end = address.saturating_add(bytes);
        let first = self.0.partition_point(|(range, _)| range.end <= address);
        let mut place = address;
        let mut common = None;
        for (range, backing) in self.0.iter().skip(first) {
            if place >= end {
                break;
            }
            if range.start > place || common.is_some_and(|common| common != *backing) {
                return Backing::Unknown;
            }
            (place, common) = (range.end, Some(*backing));
        }
        common.filter(|_| place >= end).unwrap_or_default()
    }
}

/// The device of a file system that is mounted, and its kind (proc_pid_mountinfo(5)).
fn mount(line: &str) -> Option<((u32, u32), &str)> {
    let (mounted, system) = line.split_once(" - ")?;
    let (major, minor) = mounted.split_ascii_whitespace().nth(2)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some((device, system.split_ascii_whitespace().next()?))
}

/// What a mapping of a file on a file system of this kind is backed by; `None` if none that is mounted has it.
fn backing(mapping: &ProcessMapping<'_>, system: Option<&str>, has_swap: bool) -> Backing {
    if mapping.inode == 0 && mapping.device == (0, 0) {
        return Backing::Swap;
    }
    match system {
        Some(system) if IN_MEMORY.contains(&system) => Backing::Swap,
        // A page that was written to is no longer the file's.
        Some(_) if mapping.is_shared || !has_swap => Backing::File,
        None if SHARED.iter().any(|name| mapping.path.starts_with(name)) => Backing::Swap,
        _ => Backing::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
        23 22 0:21 / /dev/shm rw - tmpfs tmpfs rw,size=1024k\n\
        24 22 7:0 no dash\n";
    const LIST: &str = "10000-20000 rw-p 00000000 00:00 0\n\
        20000-30000 rw-p 00000000 00:00 0    [heap]\n\
        30000-40000 rw-s 00000000 fe:01 77    /var/guest memory\n\
        40000-50000 rw-p 00000000 fe:01 78    /var/snapshot\n\
        60000-70000 rw-s 00000000 00:15 5    /dev/shm/guest\n\
        70000-80000 rw-s 00000000 00:01 6    /memfd:guest (deleted)\n\
        80000-90000 rw-s 00000000 00:2a 7    /srv/subvolume/guest\n";

    #[test]
    fn memory_is_read_from_where_it_is_kept() {
        use Backing::{File, Swap, Unknown};
        for (address, bytes, expected) in [
            (0x1_0000, 0x1_0000, Swap),
            (0x1_8000, 0x1_0000, Swap),
            (0x3_0000, 0x1_0000, File),
            // A page of it may be in swap.
            (0x4_0000, 0x1_0000, Unknown),
            (0x2_8000, 0x1_0000, Unknown),
            (0x6_0000, 0x2_0000, Swap),
            // Mounts of btrfs have other devices than its files.
            (0x8_0000, 0x1000, Unknown),
            (0x8_0000, 0x1_0001, Unknown),
            (0x5_0000, 0x1000, Unknown),
            (0x4_f000, 0x1_2000, Unknown),
            (u64::MAX - 1, u64::MAX, Unknown),
        ] {
            let backings = Backings::parse(LIST, MOUNTS, true);
            assert_eq!(backings.at(address, bytes), expected, "{address:#x}");
        }
        let without_swap = Backings::parse(LIST, MOUNTS, false);
        assert_eq!(without_swap.at(0x4_0000, 0x1_0000), File);
    }

    #[test]
    fn memory_of_a_process_is_backed_by_swap() {
        let memory = vec![1_u8; 1 << 20];
        let backings = Backings::of(std::process::id().cast_signed()).unwrap();
        assert_eq!(backings.at(memory.as_ptr() as u64, 1 << 20), Backing::Swap);
    }
}
