//! Disks of the guest: image files of the host, which are opened, checked and locked.
//!
//! Images are as untrusted as the guest, which has written them: all sizes that they claim are bounded, and the files that they name are
//! opened only within the disk's folder, unless the disk's options allow other folders.

mod error;
mod file;
mod image;
mod options;
pub mod partitions;
mod qcow2;

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub use error::DiskError;
pub use image::Image;
pub use options::{Backing, DiskFormat, DiskOptions, InvalidDisk};

use file::HostFile;
use kvmprof_devices::virtio::block::SECTOR;
use qcow2::Qcow2Image;

/// Maximum number of disks of a machine.
pub const DISKS_MAX: usize = 16;

/// An open disk.
#[derive(Debug)]
pub struct Disk {
    /// The disk's properties.
    pub description: DiskDescription,
    /// The disk's content.
    pub image: Image,
}

/// The properties of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDescription {
    /// The path of the image.
    pub path: PathBuf,
    /// The image's format.
    pub format: DiskFormat,
    /// The disk's size in sectors of 512 bytes, as the guest sees it.
    pub sectors: u64,
    /// Whether the guest can't write it.
    pub readonly: bool,
    /// Its serial number: at most 20 printable ASCII characters.
    pub serial: String,
}

impl Disk {
    /// Opens the image that `options` name. It stays locked by flock(2) until the disk is dropped: exclusively if it is opened for writing,
    /// else shared.
    ///
    /// # Errors
    /// The image can't be used. It is unchanged then.
    pub fn open(options: &DiskOptions) -> Result<Self, DiskError> {
        let path = options.path.as_path();
        let file = HostFile::open(path, !options.readonly)?;
        let is_qcow2 = qcow2::has_magic(&file).map_err(DiskError::open(path))?;
        let format = match options.format {
            None if is_qcow2 => return Err(DiskError::LooksLikeQcow2(path.to_owned())),
            None => DiskFormat::Raw,
            Some(format) => format,
        };
        let image = match format {
            DiskFormat::Raw => Image::Raw(file),
            DiskFormat::Qcow2 if !is_qcow2 => return Err(DiskError::NotQcow2(path.to_owned())),
            DiskFormat::Qcow2 => {
                let folder = match options.backing {
                    Backing::SameFolder => Some(folder_of(path)?),
                    Backing::Anywhere => None,
                };
                Image::Qcow2(Qcow2Image::open(file, !options.readonly, folder)?)
            }
        };
        // An incomplete last sector reads as zeroes beyond the file's end, and a write of it makes the file longer.
        let sectors = image.bytes().div_ceil(SECTOR);
        if sectors == 0 {
            return Err(DiskError::Empty(path.to_owned()));
        }
        Ok(Self {
            description: DiskDescription {
                path: path.to_owned(),
                format,
                sectors,
                readonly: options.readonly,
                serial: options.serial.clone(),
            },
            image,
        })
    }
}

/// The folder of a file whose path may have symbolic links.
fn folder_of(path: &Path) -> Result<PathBuf, DiskError> {
    let real = path.canonicalize().map_err(DiskError::open(path))?;
    Ok(real.parent().map(Path::to_owned).unwrap_or(real))
}

/// Whether a file of this type can be an image.
fn can_be_image(kind: std::fs::FileType) -> bool {
    kind.is_file() || kind.is_block_device()
}

#[cfg(test)]
mod damage;
#[cfg(test)]
mod tests;
