//! A small file system in the second extended format, for kernels that take no initial RAM disk but a disk: revision 0, one group of blocks.
//!
//! Source: Linux, `Documentation/filesystems/ext4/`, and `fs/ext2/ext2.h`. The kernel's ext4 reads it.
//!
//! No crate does this (looked for in November 2026): arcbox-ext4 0.1 makes no device files, without which init has no console, and writes only to a file
//! by its path; ext4-mkfs makes an empty file system, by C; bux-e2fs is a binding of libext2fs, in C.

use std::collections::BTreeMap;

use crate::InitramfsError;

/// Bytes of a block.
const BLOCK: usize = 4096;
/// Blocks of a group, which has one bit for each in its bitmap.
const GROUP: u32 = 8 * 4096;
/// Blocks whose numbers are in the inode, and those whose numbers are in a further block.
const DIRECT: usize = 12;
const INDIRECT: usize = BLOCK / 4;
/// Bytes of an inode.
const INODE: usize = 128;
/// Inode of the root, and the first one that isn't reserved.
const ROOT: u32 = 2;
const FIRST: u32 = 11;
/// Blocks of the group's parts.
const BLOCK_BITMAP: u32 = 2;
const INODE_BITMAP: u32 = 3;
const INODES: u32 = 4;

const FOLDER: u16 = 0o040_755;
const FILE: u16 = 0o100_000;
const CHARACTER_DEVICE: u16 = 0o020_000;

/// A file system under construction. All of it belongs to root.
#[derive(Debug)]
pub struct Ext2 {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    mode: u16,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    /// The indices of what is in it, by name, and of the folder above.
    Folder(BTreeMap<String, usize>, usize),
    File(Vec<u8>),
    /// The number of a device, as the format has it.
    Device(u32),
}

impl Ext2 {
    /// A file system with nothing in it.
    pub fn new() -> Self {
        let root = Node {
            mode: FOLDER,
            contents: Contents::Folder(BTreeMap::new(), 0),
        };
        Self { nodes: vec![root] }
    }

    /// Adds a folder, and those above it.
    ///
    /// # Errors
    /// [`InitramfsError::Destination`]: the path isn't plain, or there is something else.
    pub fn folder(&mut self, path: &str) -> Result<(), InitramfsError> {
        let wrong = || InitramfsError::Destination(path.to_owned());
        let mut at = 0;
        for name in names(path).ok_or_else(wrong)? {
            let known = match &self.node(at)?.contents {
                Contents::Folder(inside, _) => inside.get(name).copied(),
                _ => return Err(wrong()),
            };
            let contents = Contents::Folder(BTreeMap::new(), at);
            at = match known {
                Some(known) => known,
                None => self.add(at, name, FOLDER, contents)?,
            };
        }
        Ok(())
    }

    /// Adds a file with these permissions, in a folder that is there.
    ///
    /// # Errors
    /// [`InitramfsError::Destination`]: the path isn't plain, or isn't free.
    pub fn file(&mut self, path: &str, mode: u16, contents: Vec<u8>) -> Result<(), InitramfsError> {
        self.entry(path, FILE | mode, Contents::File(contents))
    }

    /// Adds a character device, in a folder that is there.
    ///
    /// # Errors
    /// As for [`Self::file`].
    pub fn character_device(
        &mut self,
        path: &str,
        mode: u16,
        [major, minor]: [u8; 2],
    ) -> Result<(), InitramfsError> {
        let number = u32::from(major) << 8 | u32::from(minor);
        self.entry(path, CHARACTER_DEVICE | mode, Contents::Device(number))
    }

    fn entry(&mut self, path: &str, mode: u16, contents: Contents) -> Result<(), InitramfsError> {
        let wrong = || InitramfsError::Destination(path.to_owned());
        let names = names(path).ok_or_else(wrong)?;
        let (name, above) = names.split_last().ok_or_else(wrong)?;
        let mut at = 0;
        for name in above {
            at = match &self.node(at)?.contents {
                Contents::Folder(inside, _) => *inside.get(*name).ok_or_else(wrong)?,
                _ => return Err(wrong()),
            };
        }
        self.add(at, name, mode, contents).map(drop)
    }

    fn node(&self, index: usize) -> Result<&Node, InitramfsError> {
        (self.nodes.get(index)).ok_or(InitramfsError::DiskTooLarge)
    }

    fn add(
        &mut self,
        folder: usize,
        name: &str,
        mode: u16,
        contents: Contents,
    ) -> Result<usize, InitramfsError> {
        let index = self.nodes.len();
        let inside = match self.nodes.get_mut(folder).map(|node| &mut node.contents) {
            Some(Contents::Folder(inside, _)) if !inside.contains_key(name) => inside,
            _ => return Err(InitramfsError::Destination(name.to_owned())),
        };
        inside.insert(name.to_owned(), index);
        self.nodes.push(Node { mode, contents });
        Ok(index)
    }

    /// The file system's blocks.
    ///
    /// # Errors
    /// [`InitramfsError::DiskTooLarge`]: a file has more than 4 MiB, a folder's names more than a block, or all together more than a group.
    pub fn finish(&self) -> Result<Vec<u8>, InitramfsError> {
        let too_large = |_| InitramfsError::DiskTooLarge;
        let used = FIRST - 1 + u32::try_from(self.nodes.len()).map_err(too_large)? - 1;
        let inodes = used.next_multiple_of(u32::try_from(BLOCK / INODE).map_err(too_large)?);
        let table = usize::try_from(inodes).map_err(too_large)? * INODE;
        let mut image = Image {
            bytes: vec![0; INODES as usize * BLOCK + table],
        };
        for (index, node) in self.nodes.iter().enumerate() {
            let inode = self.inode(node, index, &mut image)?;
            let place = INODES as usize * BLOCK + (number(index)? as usize - 1) * INODE;
            image.write(place, &inode);
        }
        let blocks = image.blocks()?;
        if blocks > GROUP || inodes > GROUP {
            return Err(InitramfsError::DiskTooLarge);
        }
        let folders = self.nodes.iter().filter(|node| node.mode == FOLDER).count();
        let folders = u32::try_from(folders).map_err(too_large)?;
        image.write(1024, &super_block(blocks, inodes, inodes - used));
        image.write(
            BLOCK,
            &words(&[
                BLOCK_BITMAP,
                INODE_BITMAP,
                INODES,
                (inodes - used) << 16,
                folders,
            ]),
        );
        // No block is free, and none is after the last one.
        image.write(BLOCK_BITMAP as usize * BLOCK, &[0xff; BLOCK]);
        image.write(INODE_BITMAP as usize * BLOCK, &bitmap(used, inodes));
        Ok(image.bytes)
    }

    /// The inode of the node with this index, whose contents are appended to `image`.
    fn inode(
        &self,
        node: &Node,
        index: usize,
        image: &mut Image,
    ) -> Result<Vec<u8>, InitramfsError> {
        let (bytes, links) = match &node.contents {
            Contents::Folder(inside, above) => {
                let folders = inside.values().filter(|index| {
                    let inner = self.nodes.get(**index);
                    inner.is_some_and(|inner| inner.mode == FOLDER)
                });
                (folder(index, *above, inside)?, 2 + folders.count())
            }
            Contents::File(bytes) => (bytes.clone(), 1),
            Contents::Device(_) => (Vec::new(), 1),
        };
        let length = u32::try_from(bytes.len()).map_err(|_| InitramfsError::DiskTooLarge)?;
        let links = u32::try_from(links).map_err(|_| InitramfsError::DiskTooLarge)?;
        let before = image.blocks()?;
        let mut places = image.append(&bytes)?;
        if let Contents::Device(device) = node.contents {
            places = vec![device];
        }
        let sectors = (image.blocks()? - before) * 8;
        let mut inode = words(&[
            u32::from(node.mode),
            length,
            0,
            0,
            0,
            0,
            links << 16,
            sectors,
            0,
            0,
        ]);
        inode.extend(words(&places));
        inode.resize(INODE, 0);
        Ok(inode)
    }
}

/// The blocks that are made.
struct Image {
    bytes: Vec<u8>,
}

impl Image {
    fn blocks(&self) -> Result<u32, InitramfsError> {
        u32::try_from(self.bytes.len() / BLOCK).map_err(|_| InitramfsError::DiskTooLarge)
    }

    fn write(&mut self, place: usize, bytes: &[u8]) {
        for (target, byte) in self.bytes.iter_mut().skip(place).zip(bytes) {
            *target = *byte;
        }
    }

    /// Appends a file's blocks. Returns the numbers for its inode.
    fn append(&mut self, bytes: &[u8]) -> Result<Vec<u32>, InitramfsError> {
        let mut numbers = Vec::new();
        for block in bytes.chunks(BLOCK) {
            numbers.push(self.blocks()?);
            self.bytes.extend_from_slice(block);
            let whole = self.bytes.len().next_multiple_of(BLOCK);
            self.bytes.resize(whole, 0);
        }
        if numbers.len() > DIRECT {
            let further = numbers.split_off(DIRECT);
            if further.len() > INDIRECT {
                return Err(InitramfsError::DiskTooLarge);
            }
            numbers.push(self.blocks()?);
            let end = self.bytes.len() + BLOCK;
            self.bytes.extend(words(&further));
            self.bytes.resize(end, 0);
        }
        Ok(numbers)
    }
}

/// The inode of the node with this index.
fn number(index: usize) -> Result<u32, InitramfsError> {
    let index = u32::try_from(index).map_err(|_| InitramfsError::DiskTooLarge)?;
    Ok(if index == 0 { ROOT } else { FIRST + index - 1 })
}

/// The names of a folder: itself, the one above, and what is in it.
fn folder(
    own: usize,
    above: usize,
    inside: &BTreeMap<String, usize>,
) -> Result<Vec<u8>, InitramfsError> {
    let around = [(".", own), ("..", above)];
    let inside = inside.iter().map(|(name, index)| (name.as_str(), *index));
    let mut names = Vec::new();
    let mut last = 0;
    for (name, index) in around.into_iter().chain(inside) {
        last = names.len();
        let length = u16::try_from(name.len()).map_err(|_| InitramfsError::DiskTooLarge)?;
        let whole = (8 + length).next_multiple_of(4);
        names.extend(number(index)?.to_le_bytes());
        names.extend(whole.to_le_bytes());
        names.extend(length.to_le_bytes());
        names.extend(name.as_bytes());
        names.resize(last + usize::from(whole), 0);
    }
    if names.len() > BLOCK {
        return Err(InitramfsError::DiskTooLarge);
    }
    // The last one reaches to the block's end.
    let rest = u16::try_from(BLOCK - last).map_err(|_| InitramfsError::DiskTooLarge)?;
    for (target, byte) in names.iter_mut().skip(last + 4).zip(rest.to_le_bytes()) {
        *target = byte;
    }
    names.resize(BLOCK, 0);
    Ok(names)
}

fn super_block(blocks: u32, inodes: u32, free_inodes: u32) -> Vec<u8> {
    /// Blocks have 1024 bytes, shifted by this.
    const BLOCK_SHIFT: u32 = 2;
    const MAGIC: u32 = 0xef53;
    /// Unmounted in order; at errors the kernel goes on.
    const CLEAN: u32 = 1;
    const CONTINUE: u32 = 1;

    words(&[
        inodes,
        blocks,
        0,
        0,
        free_inodes,
        0,
        BLOCK_SHIFT,
        BLOCK_SHIFT,
        GROUP,
        GROUP,
        inodes,
        0,
        0,
        0xffff << 16,
        MAGIC | CLEAN << 16,
        CONTINUE,
    ])
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A bitmap with `all` bits, of which the first `used` are set. What is after them is set, too.
fn bitmap(used: u32, all: u32) -> Vec<u8> {
    let mut bits = vec![0xff; BLOCK];
    for bit in used..all {
        if let Some(byte) = bits.get_mut(bit as usize / 8) {
            *byte &= !(1 << (bit % 8));
        }
    }
    bits
}

/// The names on the way to `path`; `None` if it isn't absolute and plain.
fn names(path: &str) -> Option<Vec<&str>> {
    let names: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    let plain = |name: &&str| !name.is_empty() && *name != "." && *name != ".." && name.len() < 256;
    names.iter().all(plain).then_some(names)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A file system with a folder in a folder, files of several lengths, and a device.
    fn sample() -> Ext2 {
        let mut made = Ext2::new();
        made.folder("/dev").unwrap();
        made.folder("/a/b").unwrap();
        made.character_device("/dev/console", 0o600, [5, 1])
            .unwrap();
        made.file("/empty", 0o644, Vec::new()).unwrap();
        made.file("/init", 0o755, b"#!/bin/sh\n".to_vec()).unwrap();
        made.file("/a/b/large", 0o644, large()).unwrap();
        made
    }

    /// More than the blocks whose numbers are in the inode.
    fn large() -> Vec<u8> {
        (0..100_000_u32).flat_map(u32::to_le_bytes).collect()
    }

    fn run(image: &std::path::Path, program: &str, words: &[&str]) -> String {
        let ran = Command::new(program).args(words).arg(image).output();
        let ran = ran.unwrap_or_else(|error| panic!("{program} (package e2fsprogs): {error}"));
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success(), "{said}{:?}", ran.stderr);
        said
    }

    /// `e2fsck` finds nothing to repair, and `debugfs` reads the files.
    #[test]
    fn the_formats_own_tools_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, sample().finish().unwrap()).unwrap();
        println!("{}", run(&image, "/sbin/e2fsck", &["-f", "-n"]));
        let out = folder.path().join("large");
        let dump = format!("dump /a/b/large {}", out.display());
        run(&image, "/sbin/debugfs", &["-R", &dump]);
        assert_eq!(std::fs::read(out).unwrap(), large());
        let listed = run(&image, "/sbin/debugfs", &["-R", "ls -p /"]);
        for entry in [
            "/100755/0/0/init/10/",
            "/040755/0/0/a//",
            "/100644/0/0/empty/0/",
        ] {
            assert!(listed.contains(entry), "{listed}");
        }
        let device = run(&image, "/sbin/debugfs", &["-R", "stat /dev/console"]);
        assert!(device.contains("05:01"), "{device}");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut made = Ext2::new();
        made.file("/file", 0o644, vec![0; (DIRECT + INDIRECT) * BLOCK])
            .unwrap();
        assert!(made.finish().is_ok());
        made.file("/larger", 0o644, vec![0; (DIRECT + INDIRECT) * BLOCK + 1])
            .unwrap();
        let refused = made.finish();
        assert!(matches!(refused, Err(InitramfsError::DiskTooLarge)));
        for path in ["file", "/", "/../x", "/no/folder", "/file/x"] {
            let refused = made.file(path, 0o644, Vec::new());
            let is_it = matches!(refused, Err(InitramfsError::Destination(_)));
            assert!(is_it, "{path}");
        }
    }
}
