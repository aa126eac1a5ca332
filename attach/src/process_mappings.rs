//! The mappings of a process: the lines of `/proc/PID/maps` (proc_pid_maps(5)).

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

/// Maximum number of bytes of the list of mappings that are read.
pub const MAX_BYTES: u64 = 16 << 20;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMapping<'a> {
    /// Its addresses.
    pub range: Range<u64>,
    pub is_executable: bool,
    /// Whether others that map its file see what is written to it.
    pub is_shared: bool,
    /// Its offset in its file, in bytes.
    pub offset: u64,
    /// The file's device, its major and minor number.
    pub device: (u32, u32),
    /// The file's inode.
    pub inode: u64,
    /// The file's path, without symbolic links; empty if it has no file.
    pub path: &'a str,
}

/// Reads the first `bytes` bytes of the list of mappings of process `pid`. In paths, which can have any bytes, those that aren't UTF-8 are replaced.
///
/// # Errors
/// The list can't be read.
pub fn list(pid: i32, bytes: u64) -> io::Result<String> {
    let mut list = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?
        .take(bytes)
        .read_to_end(&mut list)?;
    Ok(String::from_utf8_lossy(&list).into_owned())
}

impl<'a> ProcessMapping<'a> {
    /// The mappings in `list`.
    pub fn all(list: &'a str) -> impl Iterator<Item = Self> {
        list.lines().filter_map(Self::parse)
    }

    /// The executable mappings in `list`.
    pub fn executable(list: &'a str) -> impl Iterator<Item = Self> {
        Self::all(list).filter(|mapping| mapping.is_executable)
    }

    /// `None` for a line of another form.
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let access = words.next()?.as_bytes();
        let offset = words.next()?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        let path = line.find('/').and_then(|begin| line.get(begin..));
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let device = |digits| u32::from_str_radix(digits, 16).ok();
        let range = number(begin)?..number(end)?;
        (range.start < range.end).then_some(Self {
            range,
            is_executable: access.get(2) == Some(&b'x'),
            is_shared: access.get(3) == Some(&b's'),
            offset: number(offset)?,
            device: (device(major)?, device(minor)?),
            inode,
            path: path.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_parsed() {
        let list = "7f1200001000-7f1200003000 r-xp 00001000 fe:01 1234                       /usr/lib/a file.so\n\
            7f1200001000-7f1200003000 rw-s 00001000 fe:01 1234 /usr/lib/a.so\n\
            7f1200001000 r-xp 0 fe:01 1 /x\n\
            5000-4000 r-xp 0 fe:01 1 /x\n\
            zz-1 r-xp\n\n\
            7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0    [vdso]\n";
        let of_file = ProcessMapping {
            range: 0x7f12_0000_1000..0x7f12_0000_3000,
            is_executable: true,
            is_shared: false,
            offset: 0x1000,
            device: (0xfe, 1),
            inode: 1234,
            path: "/usr/lib/a file.so",
        };
        let of_kernel = ProcessMapping {
            range: 0x7ffd_0000_0000..0x7ffd_0000_2000,
            is_executable: true,
            is_shared: false,
            offset: 0,
            device: (0, 0),
            inode: 0,
            path: "",
        };
        let executable: Vec<_> = ProcessMapping::executable(list).collect();
        assert_eq!(executable, [of_file.clone(), of_kernel]);
        let written = ProcessMapping {
            is_executable: false,
            is_shared: true,
            path: "/usr/lib/a.so",
            ..of_file
        };
        let all: Vec<_> = ProcessMapping::all(list).collect();
        assert_eq!((all.len(), &all[1]), (3, &written));
    }

    #[test]
    fn an_ended_process_has_no_list() {
        assert!(list(i32::MAX, MAX_BYTES).is_err());
    }
}
