//! Images of disks for tests.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use imago::FormatCreateBuilder;
use imago::qcow2::Qcow2;
use kvmprof_machine::disk::{Disk, DiskOptions};

/// An image, and its format for `--disk`.
#[derive(Clone, Debug)]
pub struct DiskImage {
    /// The image's path.
    pub path: PathBuf,
    /// Empty, or an option with a comma before it.
    pub format: &'static str,
}

impl DiskImage {
    /// The value of `--disk`, with further options.
    ///
    /// # Panics
    /// If the path isn't UTF-8.
    pub fn option(&self, more: &str) -> String {
        let path = self.path.to_str().unwrap().replace(',', ",,");
        format!("{path}{}{more}", self.format)
    }

    /// The parsed value of `--disk`, with further options.
    ///
    /// # Panics
    /// If the option is invalid.
    pub fn parsed(&self, more: &str) -> DiskOptions {
        self.option(more).parse().unwrap()
    }
}

/// Makes a raw image of zeros.
///
/// # Panics
/// If this fails.
pub fn make_raw(folder: &Path, name: &str, bytes: u64) -> DiskImage {
    let path = folder.join(name);
    File::create_new(&path).unwrap().set_len(bytes).unwrap();
    DiskImage { path, format: "" }
}

/// Makes a qcow2 image of zeros, or one on top of a backing file of this name and format.
///
/// # Panics
/// If this fails.
pub fn make_qcow2(
    folder: &Path,
    name: &str,
    bytes: u64,
    backing: Option<(&str, &str)>,
) -> DiskImage {
    let path = folder.join(name);
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let storage = imago::file::File::try_from(file.unwrap()).unwrap();
    let mut builder = Qcow2::<imago::file::File>::create_builder(storage).size(bytes);
    if let Some((name, format)) = backing {
        builder = builder.backing(name.to_owned(), format.to_owned());
    }
    builder.create().unwrap();
    let format = ",format=qcow2";
    DiskImage { path, format }
}

/// The whole contents of a disk, to which nobody may be writing.
///
/// # Panics
/// If it can't be read, or is in use.
pub fn disk_content(image: &DiskImage) -> Vec<u8> {
    let disk = Disk::open(&image.parsed(",readonly")).unwrap();
    let mut bytes = vec![0; usize::try_from(disk.image.bytes()).unwrap()];
    disk.image.read(&mut bytes, 0).unwrap();
    bytes
}

impl DiskImage {
    /// Overwrites a part of the file.
    ///
    /// # Panics
    /// If this fails.
    pub fn overwrite(&self, bytes: &[u8], offset: u64) {
        let file = File::options().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }
}

/// Writes a qcow2 image's disk from its first byte on, except for blocks of zeros.
///
/// # Panics
/// If this fails.
pub fn fill_qcow2(image: &DiskImage, content: &[u8]) {
    let disk = Disk::open(&image.parsed("")).unwrap();
    for (block, bytes) in (0_u64..).zip(content.chunks(4096)) {
        if bytes.iter().any(|byte| *byte != 0) {
            disk.image.write(bytes, 4096 * block).unwrap();
        }
    }
    disk.image.flush().unwrap();
}
