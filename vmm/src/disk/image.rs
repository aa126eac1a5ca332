//! An image's content, whatever its format.

use std::io;

use kvmprof_devices::virtio::block::Extent;

use super::file::HostFile;
use super::qcow2::Qcow2Image;

/// An open image. Usable from several threads at once.
#[derive(Debug)]
pub enum Image {
    /// The file's bytes are the disk's.
    Raw(HostFile),
    /// QEMU's format.
    Qcow2(Qcow2Image),
}

impl Image {
    /// The disk's size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Raw(file) => file.length(),
            Self::Qcow2(image) => image.bytes(),
        }
    }

    /// Fills `bytes` from the disk.
    ///
    /// # Errors
    /// The host can't read them, or the image lacks them.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.read_at(bytes, offset),
            Self::Qcow2(image) => image.read(bytes, offset),
        }
    }

    /// Writes `bytes`, which are on the host's disk after the next flush.
    ///
    /// # Errors
    /// The host can't write them.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.write_at(bytes, offset),
            Self::Qcow2(image) => image.write(bytes, offset),
        }
    }

    /// Puts onto the host's disk what was written by calls that have returned.
    ///
    /// # Errors
    /// The host couldn't; what isn't there is unknown.
    pub fn flush(&self) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.sync(),
            Self::Qcow2(image) => image.flush(),
        }
    }

    /// Frees the space of `extent`, as far as the host and the format can. It is zero then, or as it was.
    ///
    /// # Errors
    /// The host failed.
    pub fn discard(&self, extent: Extent) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.punch(extent.offset, extent.length).map(|_| ()),
            Self::Qcow2(image) => image.discard(extent.offset, extent.length),
        }
    }

    /// Zeroes `extent`.
    ///
    /// # Errors
    /// The host failed.
    pub fn zero(&self, extent: Extent) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.zero(extent.offset, extent.length, extent.unmap),
            Self::Qcow2(image) => image.zero(extent.offset, extent.length),
        }
    }
}
