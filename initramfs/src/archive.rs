//! The cpio "newc" format that the kernel unpacks.
//!
//! Source: Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`.
//!
//! The crate cpio 0.4 writes records, too, and could replace some 30 lines here. The other ones, for folders on the way, checks of paths and limits, would stay.

use std::collections::BTreeSet;

use crate::InitramfsError;

const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";
/// Longest name that the kernel takes, its end included (`PATH_MAX`).
const NAME_MAX: usize = 4096;

const FILE_TYPE: u32 = 0o100_000;
const FOLDER_TYPE: u32 = 0o040_000;
const LINK_TYPE: u32 = 0o120_000;
const CHARACTER_DEVICE_TYPE: u32 = 0o020_000;

/// The number of a device file.
#[derive(Clone, Copy)]
struct DeviceNumber {
    major: u32,
    minor: u32,
}

/// That of other files.
const NO_DEVICE: DeviceNumber = DeviceNumber { major: 0, minor: 0 };

/// A cpio archive under construction. All entries belong to root; folders on
/// the way to an entry are made as needed.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    inode: u32,
}

impl Archive {
    /// An archive with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file with these permissions (the lower 12 mode bits).
    ///
    /// # Errors
    /// [`InitramfsError::Destination`] when `path` is not absolute, not plain or too
    /// long, or the contents pass the format's 4 GiB.
    pub fn file(&mut self, path: &str, mode: u32, contents: &[u8]) -> Result<(), InitramfsError> {
        self.entry(path, FILE_TYPE | (mode & 0o7777), NO_DEVICE, contents)
    }

    /// Adds a folder with these permissions.
    ///
    /// # Errors
    /// As for [`Archive::file`].
    pub fn folder(&mut self, path: &str, mode: u32) -> Result<(), InitramfsError> {
        let name = plain_name(path)?;
        self.parents(&name)?;
        if self.folders.insert(name.clone()) {
            self.record(&name, FOLDER_TYPE | (mode & 0o7777), NO_DEVICE, &[])?;
        }
        Ok(())
    }

    /// Adds a symbolic link that points to `target`.
    ///
    /// # Errors
    /// As for [`Archive::file`].
    pub fn link(&mut self, path: &str, target: &str) -> Result<(), InitramfsError> {
        self.entry(path, LINK_TYPE | 0o777, NO_DEVICE, target.as_bytes())
    }

    /// Adds a character device with these permissions and device numbers.
    ///
    /// # Errors
    /// As for [`Archive::file`].
    pub fn character_device(
        &mut self,
        path: &str,
        mode: u32,
        major: u32,
        minor: u32,
    ) -> Result<(), InitramfsError> {
        let mode = CHARACTER_DEVICE_TYPE | (mode & 0o7777);
        self.entry(path, mode, DeviceNumber { major, minor }, &[])
    }

    /// Size in bytes so far.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Ends the archive. Several ended archives may be concatenated: the kernel
    /// unpacks them one after the other, later entries replacing earlier ones.
    ///
    /// # Errors
    /// None in practice: the trailer's name is a valid one.
    pub fn finish(mut self) -> Result<Vec<u8>, InitramfsError> {
        self.record(TRAILER, 0, NO_DEVICE, &[])?;
        Ok(self.bytes)
    }

    fn entry(
        &mut self,
        path: &str,
        mode: u32,
        device: DeviceNumber,
        contents: &[u8],
    ) -> Result<(), InitramfsError> {
        let name = plain_name(path)?;
        self.parents(&name)?;
        self.record(&name, mode, device, contents)
    }

    /// Writes the folders above `name` that are not there yet.
    fn parents(&mut self, name: &str) -> Result<(), InitramfsError> {
        for (end, _) in name.match_indices('/') {
            let folder = &name[..end];
            if self.folders.insert(folder.to_owned()) {
                self.record(folder, FOLDER_TYPE | 0o755, NO_DEVICE, &[])?;
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        name: &str,
        mode: u32,
        device: DeviceNumber,
        contents: &[u8],
    ) -> Result<(), InitramfsError> {
        let too_long = |_| InitramfsError::Destination(name.to_owned());
        let size = u32::try_from(contents.len()).map_err(too_long)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_long)?;
        self.inode += 1;
        let links = 1;
        let fields = [
            self.inode,
            mode,
            0,
            0,
            links,
            0,
            size,
            0,
            0,
            device.major,
            device.minor,
            name_size,
            0,
        ];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
        Ok(())
    }

    /// Header with name, and contents, each end on a multiple of four bytes.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The name without its leading slash, as the archive has it.
fn plain_name(path: &str) -> Result<String, InitramfsError> {
    let wrong = || InitramfsError::Destination(path.to_owned());
    let relative = path.strip_prefix('/').ok_or_else(wrong)?;
    let parts: Vec<&str> = relative
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    let name = parts.join("/");
    let bad = name.is_empty()
        || name.len() >= NAME_MAX
        || name.contains('\0')
        || name == TRAILER
        || parts.contains(&"..");
    if bad { Err(wrong()) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_laid_out_as_newc() {
        let mut archive = Archive::new();
        archive.file("/a", 0o755, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        // The number, the mode, the owner, the links, the length of the file and of its name.
        let fields = [1, 0o100_755, 0, 0, 1, 0, 5, 0, 0, 0, 0, 2, 0];
        let fields = fields.map(|field: u32| format!("{field:08x}")).concat();
        let header = format!("070701{fields}a\0hello\0\0\0");
        assert_eq!(&bytes[..header.len()], header.as_bytes());
        assert!(bytes[header.len()..].starts_with(b"070701"));
        assert!(bytes.windows(10).any(|w| w == TRAILER.as_bytes()));
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn parent_folders_are_made_once() {
        let mut archive = Archive::new();
        archive.file("/x/y/one", 0o644, b"").unwrap();
        archive.file("/x/y/two", 0o644, b"").unwrap();
        archive.folder("/x", 0o700).unwrap();
        let text = String::from_utf8(archive.finish().unwrap()).unwrap();
        // x, x/y, two files and the trailer.
        assert_eq!(text.matches(MAGIC).count(), 5);
    }

    #[test]
    fn names_that_leave_the_root_are_refused() {
        let long = format!("/{}", "n".repeat(NAME_MAX));
        for path in ["relative", "/", "/../etc", "/a/../b", "/a\0b", &long] {
            let refused = Archive::new().file(path, 0o644, b"");
            let is_it = matches!(refused, Err(InitramfsError::Destination(_)));
            assert!(is_it, "{path:?} was taken");
        }
    }

    #[test]
    fn needless_slashes_are_dropped() {
        assert_eq!(plain_name("//a/./b/").unwrap(), "a/b");
    }
}
