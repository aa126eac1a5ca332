//! Images of disks for tests.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use imago::FormatCreateBuilder;
use imago::qcow2::Qcow2;
use kvmprof_vmm::disk::{Disk, DiskOptions};

/// An image, and what `--disk` has to say of its format.
#[derive(Clone, Debug)]
pub struct DiskImage {
    /// Where it is.
    pub path: PathBuf,
    /// Empty, or an option with a comma before it.
    pub format: &'static str,
}

impl DiskImage {
    /// The value of `--disk`, with further options.
    ///
    /// # Panics
    /// When the path isn't UTF-8.
    pub fn option(&self, more: &str) -> String {
        let path = self.path.to_str().unwrap().replace(',', ",,");
        format!("{path}{}{more}", self.format)
    }

    /// The same, parsed.
    ///
    /// # Panics
    /// When that isn't an option.
    pub fn parsed(&self, more: &str) -> DiskOptions {
        self.option(more).parse().unwrap()
    }
}

/// Makes a raw image of zeroes.
///
/// # Panics
/// When that fails.
pub fn make_raw(folder: &Path, name: &str, bytes: u64) -> DiskImage {
    let path = folder.join(name);
    File::create_new(&path).unwrap().set_len(bytes).unwrap();
    DiskImage { path, format: "" }
}

/// Makes a qcow2 image of zeroes, or on top of a backing file of this name and format.
///
/// # Panics
/// When that fails.
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

/// All that a disk has now, which nobody may be writing.
///
/// # Panics
/// When it can't be read, or is in use.
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
    /// When that fails.
    pub fn overwrite(&self, bytes: &[u8], offset: u64) {
        let file = File::options().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    /// How long the file is.
    ///
    /// # Panics
    /// When it isn't there.
    pub fn length(&self) -> u64 {
        fs::metadata(&self.path).unwrap().len()
    }
}

/// Writes a qcow2 image's disk from its first byte on, but for blocks of zeroes.
///
/// # Panics
/// When that fails.
pub fn fill_qcow2(image: &DiskImage, content: &[u8]) {
    let disk = Disk::open(&image.parsed("")).unwrap();
    for (block, bytes) in (0_u64..).zip(content.chunks(4096)) {
        if bytes.iter().any(|byte| *byte != 0) {
            disk.image.write(bytes, 4096 * block).unwrap();
        }
    }
    disk.image.flush().unwrap();
}
