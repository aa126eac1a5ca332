//! Reads files from an initial RAM disk: cpio archives in the "newc" form, one after the other. The last ones are compressed
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`).

mod tree;

use std::collections::HashMap;
use std::ops::Range;

use kvmprof_introspection::unpack_archive;

use tree::{FileTree, Node, NodeId};

/// Maximum size of the unpacked archives, in bytes.
const MAX_UNPACKED: u64 = 512 << 20;
/// Bytes of an entry's header.
const HEADER: usize = 110;
/// The magic numbers of headers without and with checksums.
const MAGICS: [&[u8]; 2] = [b"070701", b"070702"];
/// The name of an archive's last entry.
const TRAILER: &str = "TRAILER!!!";
/// Maximum length of a name and of a link's target, in bytes (`PATH_MAX`). The kernel skips longer ones, too.
const MAX_NAME: usize = 4096;
/// The bits of a mode that say what a file is, and those of links and folders (inode(7)).
const TYPE: u32 = 0o170_000;
const LINK: u32 = 0o120_000;
const FOLDER: u32 = 0o040_000;

/// An initial RAM disk, unpacked.
#[derive(Debug)]
pub struct Initrd {
    bytes: Vec<u8>,
    files: FileTree,
}

/// Identifies a file with several names (hard links): inode number, device.
type Inode = (u32, u32, u32);

struct Header {
    inode: Inode,
    mode: u32,
    links: u32,
    length: usize,
    name_length: usize,
}

impl Initrd {
    /// Unpacks a whole file. `None` when nothing is found in it.
    pub fn unpack(file: &[u8]) -> Option<Self> {
        let plain = archives_end(file);
        let mut bytes = file[..plain].to_vec();
        if plain < file.len() {
            // The rest is compressed, or damaged. If it is damaged, only the plain archives are used.
            bytes.extend(unpack_archive(&file[plain..], MAX_UNPACKED).unwrap_or_default());
        }
        let files = unpack_files(&bytes);
        (!files.is_empty()).then_some(Self { bytes, files })
    }

    /// The contents of the file at `path`.
    pub fn read(&self, path: &str) -> Option<&[u8]> {
        self.bytes.get(self.files.file(path)?)
    }
}

/// The end of the plain archives at the start of `file`.
fn archives_end(file: &[u8]) -> usize {
    let mut at = 0;
    while let Some(next) = next_entry(file, at) {
        at = next.end;
    }
    // Zeros may lie between archives.
    at + zeros(file, at)
}

/// The number of zero bytes from `at` on.
fn zeros(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    rest.iter().take_while(|byte| **byte == 0).count()
}

/// An entry of an archive, with its ranges in the file.
struct ArchiveEntry<'a> {
    header: Header,
    name: &'a str,
    contents: Range<usize>,
    end: usize,
}

/// The entry at `at`, or behind the zeros there.
fn next_entry(bytes: &[u8], at: usize) -> Option<ArchiveEntry<'_>> {
    let at = at + zeros(bytes, at);
    let header = Header::parse(bytes.get(at..at.checked_add(HEADER)?)?)?;
    let name_at = at + HEADER;
    let name_end = name_at.checked_add(header.name_length)?;
    let name = bytes
        .get(name_at..name_end)?
        .split(|byte| *byte == 0)
        .next()?;
    let begin = name_end.checked_next_multiple_of(4)?;
    let end = begin.checked_add(header.length)?;
    bytes.get(begin..end)?;
    Some(ArchiveEntry {
        // No name in another encoding than UTF-8 is looked up.
        name: std::str::from_utf8(name).unwrap_or_default(),
        header,
        contents: begin..end,
        end: end.checked_next_multiple_of(4)?.min(bytes.len()),
    })
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        MAGICS
            .iter()
            .find(|magic| bytes.starts_with(magic))
            .copied()?;
        let field = |index: usize| {
            let digits = bytes.get(6 + index * 8..14 + index * 8)?;
            u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        };
        let name_length = usize::try_from(field(11)?).ok()?;
        Some(Self {
            inode: (field(0)?, field(7)?, field(8)?),
            mode: field(1)?,
            links: field(4)?,
            length: usize::try_from(field(6)?).ok()?,
            name_length: Some(name_length).filter(|length| *length <= MAX_NAME)?,
        })
    }
}

/// All files and symbolic links, as the kernel would unpack them.
fn unpack_files(bytes: &[u8]) -> FileTree {
    let mut files = FileTree::new();
    // One of several names of a file has the contents, often the last one.
    let mut linked: HashMap<Inode, NodeId> = HashMap::new();
    let mut at = 0;
    while let Some(entry) = next_entry(bytes, at).filter(|_| !files.is_full()) {
        at = entry.end;
        let ArchiveEntry {
            header,
            name,
            contents,
            ..
        } = entry;
        if name == TRAILER {
            linked.clear();
            continue;
        }
        match header.mode & TYPE {
            FOLDER => {}
            LINK if header.length > MAX_NAME => {}
            LINK => {
                let target = String::from_utf8_lossy(&bytes[contents]).into();
                files.add(name, Node::Link(target));
            }
            _ if header.links < 2 => {
                files.add(name, Node::File(contents));
            }
            _ => match linked.get(&header.inode).copied() {
                Some(id) => {
                    files.add_name(name, id);
                    if header.length > 0 {
                        files.set_contents(id, contents);
                    }
                }
                None => {
                    let id = files.add(name, Node::File(contents));
                    linked.extend(id.map(|id| (header.inode, id)));
                }
            },
        }
    }
    files
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use super::*;

    const FILE: u32 = 0o100_755;

    /// An entry of the form "newc".
    pub fn entry(name: &str, mode: u32, inode: u32, links: u32, contents: &[u8]) -> Vec<u8> {
        let mut bytes = b"070701".to_vec();
        let length = u32::try_from(contents.len()).unwrap();
        let name_length = u32::try_from(name.len() + 1).unwrap();
        for field in [
            inode,
            mode,
            0,
            0,
            links,
            0,
            length,
            8,
            1,
            0,
            0,
            name_length,
            0,
        ] {
            bytes.extend(format!("{field:08x}").bytes());
        }
        bytes.extend(name.bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(contents);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = entries.concat();
        bytes.extend(entry(TRAILER, 0, 0, 1, b""));
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn early() -> Vec<u8> {
        archive(&[
            entry("kernel/x86/microcode", FILE, 1, 1, b"microcode"),
            entry("init", FILE, 2, 1, b"an earlier init"),
        ])
    }

    fn main_archive() -> Vec<u8> {
        archive(&[
            entry(".", 0o040_755, 1, 2, b""),
            entry("usr/bin", 0o040_755, 2, 2, b""),
            entry("bin", 0o120_777, 3, 1, b"usr/bin"),
            entry("init", FILE, 4, 1, b"init"),
            // Hard links, whose last name has the contents; one by a folder that is a link.
            entry("usr/bin/sh", FILE, 5, 3, b""),
            entry("bin/ls", FILE, 5, 3, b""),
            entry("usr/bin/busybox", FILE, 5, 3, b"busybox"),
            entry("usr/bin/vi", 0o120_777, 6, 1, b"/bin/busybox"),
            entry("loop", 0o120_777, 7, 1, b"loop/loop"),
        ])
    }

    fn check(file: &[u8]) {
        let initrd = Initrd::unpack(file).unwrap();
        for (path, contents) in [
            ("/init", "init"),
            ("/usr/bin/busybox", "busybox"),
            ("/usr/bin/sh", "busybox"),
            ("/bin/sh", "busybox"),
            ("/usr/bin/ls", "busybox"),
            ("/usr/bin/vi", "busybox"),
            ("/../bin/./vi", "busybox"),
        ] {
            assert_eq!(initrd.read(path), Some(contents.as_bytes()), "{path}");
        }
        for path in ["/none", "/usr/bin", "/loop", "/init/none", ""] {
            assert_eq!(initrd.read(path), None, "{path}");
        }
    }

    #[test]
    fn finds_files_in_all_archives_packed_or_not() {
        check(&main_archive());
        check(&[early(), main_archive()].concat());
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&main_archive()).unwrap();
        let gzip = packer.finish().unwrap();
        let zstd = zstd::encode_all(main_archive().as_slice(), 3).unwrap();
        for packed in [gzip, zstd] {
            check(&packed);
            check(&[early(), packed].concat());
        }
        let initrd = Initrd::unpack(&early()).unwrap();
        let microcode = initrd.read("/kernel/x86/microcode");
        assert_eq!(microcode, Some(&b"microcode"[..]));
    }

    #[test]
    fn invalid_archives_have_no_files() {
        for invalid in [&b""[..], &[0; 5000], b"070701 nonsense"] {
            assert!(Initrd::unpack(invalid).is_none());
        }
    }

    /// Both took minutes, quadratic in their number: one in one piece, the other in many. Each name is looked up once now.
    #[test]
    fn long_links_and_many_hard_links_cost_no_more_than_others() {
        let link = "a/".repeat(80 << 10);
        let make = |count: usize| {
            let names = (0..count).map(|name| entry(&name.to_string(), FILE, 5, 2, b"x"));
            let mut entries = vec![entry("link", 0o120_777, 1, 1, link.as_bytes())];
            // A file behind the link, and one behind a link to it.
            entries.push(entry("other", 0o120_777, 2, 1, b"link"));
            entries.push(entry("other/file", FILE, 3, 1, b"y"));
            entries.extend(names);
            Initrd::unpack(&archive(&entries)).unwrap()
        };
        for count in [10_000, 20_000] {
            let initrd = make(count);
            assert_eq!(initrd.read("link/b"), None);
            let last = (count - 1).to_string();
            assert_eq!(initrd.read(&last), Some(&b"x"[..]));
            let lookups = initrd.files.lookups();
            assert!(lookups < count + 10, "{lookups} of {count}");
        }
    }

    /// The longest possible link is followed for each name behind it, as the kernel does, up to a total number of lookups.
    #[test]
    fn files_behind_long_links_are_charged_by_name() {
        let link = "a/../".repeat(MAX_NAME / 5);
        let lookups = |count: usize| {
            let mut entries = vec![
                entry("a", FOLDER, 1, 1, b""),
                entry("link", 0o120_777, 2, 1, link.as_bytes()),
            ];
            let names = (0..count).map(|name| format!("link/{name}"));
            entries.extend(names.map(|name| entry(&name, FILE, 3, 1, b"x")));
            let initrd = Initrd::unpack(&archive(&entries)).unwrap();
            initrd.files.lookups()
        };
        let names_of_link = 2 * (MAX_NAME / 5);
        for count in [100, 200] {
            let most = count * (names_of_link + 2) + 10;
            let made = lookups(count);
            assert!(made <= most, "{made} of {most}");
        }
    }
}
